"""The shape of the source: imports only go down, nothing optional loads early, files stay small."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from funcgrad.core.backend import DOORS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "funcgrad"
SOURCES = sorted(PACKAGE.rglob("*.py"))
ALL_FILES = [
    p for d in ("funcgrad", "tests", "examples", "benchmarks") for p in (ROOT / d).rglob("*.py")
]

LAYERS = [
    ["errors", "dtypes", "tree", "tree_util"],
    ["core"],
    ["ops"],
    ["transforms"],
    [
        "numpy",
        "lax",
        "nn",
        "random",
        "optim",
        "scipy",
        "sparse",
        "image",
        "interop",
        "monitoring",
        "profiler",
        "experimental",
        "extend",
        "ad_checkpoint",
        "custom_batching",
        "custom_derivatives",
        "dlpack",
        "ref",
        "stages",
        "test_util",
        "typing",
        "debug",
        "flatten_util",
        "__init__",
    ],
    ["backends"],
    ["parallel", "sharding"],
    ["io"],
    ["adapters", "quantization", "recsys"],
    ["export"],
    ["serve"],
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# The packages inside of layers, from below: what is in none of a layer's may import all of them.
PACKAGES = {
    "core": ["process", "display", "telemetry", "places", "eager"],
    "ops": [
        "special_math", "elementwise", "indexing", "collective", "convolution", "linalg",
    ],
    "transforms": [
        "passes", "autodiff", "batching", "control", "tape", "jit", "derivatives", "attention",
        "weights", "precision",
    ],
    "numpy": ["elementwise", "manipulation", "creation", "reductions", "linalg"],
    "backends": [
        "loops", "lower", "fusion", "kernels", "rewrites", "drafts",
        "llvm.kernels", "llvm.rewrites", "llvm.drafts",
        "llvm.native", "llvm.runtime", "llvm.calls", "llvm.vecmath", "llvm.gemm", "llvm.attention",
        "llvm.matrix", "llvm.sort", "llvm.routines", "llvm.emit",
    ],
    "parallel": [
        "communicators", "programs", "mapping", "attention", "partitioner", "runtimes", "launch",
        "experts", "pipelines",
    ],
    "io": ["checkpoints"],
}  # fmt: skip
LOADS_BACKENDS = "funcgrad.core.backend"
IMPORTS = "funcgrad.core.process.fork"  # what importing is done with
OWN_PARTS = ("funcgrad.core.process.lazy",)  # imports parts of packages when they are asked for

# Users without these can still import funcgrad, and those who have them don't wait for them.
LATE_PACKAGES = [
    "IPython", "cupy", "jax", "llvmlite", "matplotlib", "mpi4py", "onnx", "safetensors", "scipy",
    "torch", "uvicorn",
]  # fmt: skip
FORBIDDEN_CALLS = {"eval", "exec", "pickle.load", "pickle.loads", "pickle.Unpickler"}
MAX_LINES = 550


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


@cache
def syntax(module: str) -> ast.Module:
    """What a module is to the parser; most tests here ask for it."""
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def rank(module: str) -> int:
    """The layer of a module by its first part; a part that no layer names is an error."""
    part = module.split(".")[1] if "." in module else "__init__"
    assert part in RANK, f"{module}: add {part!r} to LAYERS in {Path(__file__).name}"
    return RANK[part]


def for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )


def import_nodes(node: ast.AST, depth: int = 0):
    """Each import statement that runs, with the number of functions around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, depth
        elif for_type_checkers(child):
            yield from import_nodes(ast.Module(child.orelse, []), depth)
        else:
            inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from import_nodes(child, depth + inner)


def targets(node: ast.Import | ast.ImportFrom, module: str, modules=MODULES) -> list[str]:
    """The modules of the package that an import statement runs, parents left aside."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        base = node.module or ""
        if node.level:
            is_package = modules[module].name == "__init__.py"
            parents = module.split(".")
            parents = parents[: len(parents) - node.level + is_package]
            base = ".".join([*parents, base] if base else parents)
        names = [
            inner if (inner := f"{base}.{alias.name}") in modules else base for alias in node.names
        ]
    return [name for name in names if name.split(".")[0] == "funcgrad"]


@cache
def imports(module: str) -> list[tuple[str, int, int]]:
    """(imported module, line, functions around it) for each import of the package in a module."""
    tree = syntax(module)
    return [
        (name, node.lineno, depth)
        for node, depth in import_nodes(tree)
        for name in targets(node, module)
    ]


@cache
def calls(module: str) -> list[tuple[str, int]]:
    """(function, line) for each call in a module."""
    nodes = ast.walk(syntax(module))
    return [(ast.unparse(n.func), n.lineno) for n in nodes if isinstance(n, ast.Call)]


def of_each(things):
    """A test of each of many things is one test: that is quicker, and all failures are told."""

    def decorator(test):
        def of_all():
            failed = []
            for thing in things:
                try:
                    test(thing)
                except AssertionError as error:
                    failed.append(str(error).partition("\nassert ")[0])
            assert not failed, "\n".join(failed)

        of_all.__name__, of_all.__doc__ = test.__name__, test.__doc__
        return of_all

    return decorator


by_module = of_each(sorted(MODULES))


@by_module
def test_imports_only_go_down(module):
    above = [
        f"line {line}: {name} is above"
        for name, line, _ in imports(module)
        if rank(name) > rank(module)
    ]
    assert not above, f"{module} may import only its own layer and those below: {above}"


def package_rank(module: str) -> int:
    """Where a module's package stands in its layer's list; -1 for one that is in none of them."""
    layer = module.split(".")[1] if "." in module else ""
    names = [f"funcgrad.{layer}.{name}." for name in PACKAGES.get(layer, [])]
    return next((i for i, name in enumerate(names) if f"{module}.".startswith(name)), -1)


@by_module
def test_packages_only_import_those_below(module):
    """Imports for type checkers count."""
    own, layer = package_rank(module), module.split(".")[1:2]
    nodes = ast.walk(syntax(module))
    found = {name for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)
             for name in targets(n, module) if name.split(".")[1:2] == layer}  # fmt: skip
    above = sorted(name for name in found if package_rank(name) > own >= 0)
    assert not above, f"{module} imports what is above its package: {above}"


NAME = re.compile(r"funcgrad(\.\w+)+")


def named_late(tree: ast.AST) -> list[tuple[str, int]]:
    """(name, line) for each name of the package's modules, or of what is in one, in a string: as it
    is, or as a package and its modules in `late(package, module, …)`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "late":
            package, *names = [x.value for x in ast.walk(node) if isinstance(x, ast.Constant)]
            found += [(f"{package}.{name}", node.lineno) for name in names]
        elif isinstance(node, ast.Constant) and type(node.value) is str:
            found += [(node.value, node.lineno)] if NAME.fullmatch(node.value) else []
    return found


def holds(module: str, name: str) -> bool:
    """Whether a module has something of a name."""
    tree = syntax(module)
    return any(
        name == getattr(node, "name", None)
        or any(name == getattr(t, "id", None) for t in getattr(node, "targets", ()))
        for node in tree.body
    )


def module_of(name: str) -> str | None:
    """The module that a name is of, or in; None if there is none."""
    module, _, own = name.rpartition(".")
    if name in MODULES:
        return name
    return module if module in MODULES and holds(module, own) else None


@by_module
def test_what_is_named_in_strings_exists_and_is_not_above(module):
    """What is imported late is named so. `DOORS` has the names that may be above, and why."""
    own, layer = package_rank(module), module.split(".")[1:2]
    doors = {door.module for door in DOORS.values()} if module == LOADS_BACKENDS else set()
    wrong = []
    for name, line in named_late(syntax(module)):
        found = module_of(name)
        if found is None:
            wrong.append(f"line {line}: there is no {name}")
        elif found in doors:
            continue
        elif rank(found) > rank(module):
            wrong.append(f"line {line}: {name} is above")
        elif found.split(".")[1:2] == layer and package_rank(found) > own >= 0:
            wrong.append(f"line {line}: {name} is above its package")
    assert not wrong, f"{module}: {wrong}"


def test_doors_lead_above_and_say_why():
    for name, door in DOORS.items():
        assert rank(door.module) > rank(LOADS_BACKENDS), name
        assert door.why, name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"funcgrad.core.ir"', ["funcgrad.core.ir"]),
        ('x = {"op": function("funcgrad.core.ir.Eqn")}', ["funcgrad.core.ir.Eqn"]),
        ('late("funcgrad.core", "ir", *("aval",))', ["funcgrad.core.ir", "funcgrad.core.aval"]),
        ('"""Of funcgrad.core.ir."""', []),
        ('"funcgrad"', []),
    ],
)
def test_reader_of_names_in_strings(text, expected):
    found = {name for name, _ in named_late(ast.parse(text))}
    assert set(expected) <= found <= {*expected, "funcgrad.core"}


@by_module
def test_no_import_of_the_package_inside_a_function(module):
    hidden = [f"line {line}: {name}" for name, line, depth in imports(module) if depth]
    assert not hidden, f"{module} hides imports in functions: {hidden}"


@by_module
def test_only_one_module_imports_by_name(module):
    """A module below the backends that imports by a computed name could reach anything."""
    if rank(module) >= RANK["backends"] or module in (*OWN_PARTS, LOADS_BACKENDS, IMPORTS):
        return
    names = ("import_module", "importlib.import_module", "fork.import_module", "__import__")
    found = [f"line {line}" for name, line in calls(module) if name in names]
    assert not found, f"{module} imports by name at {found}: only {LOADS_BACKENDS} does"


def test_imports_have_no_cycle():
    graph = {
        module: {name for name, _, _ in imports(module) if name in MODULES and name != module}
        for module in MODULES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("imports form a cycle: " + " → ".join(reversed(error.args[1])))


@by_module
def test_imports_of_the_package_exist(module):
    missing = [f"line {line}: {name}" for name, line, _ in imports(module) if name not in MODULES]
    assert not missing, f"{module} imports modules that are not there: {missing}"


@by_module
def test_module_has_a_docstring(module):
    tree = syntax(module)
    doc = ast.get_docstring(tree)
    assert doc, f"{module} needs a docstring that gives its idea"
    idea = doc.partition("\n- `")[0]  # a package's docstring goes on with a map of its files
    assert len(idea.splitlines()) <= 10, f"{module}: a module's idea fits in ten lines"


MAPPED = ["core", "ops", "transforms", "numpy", "backends", "backends.llvm", "parallel"]
MAPPED += ["backends.llvm.gemm.images", "backends.llvm.gemm.winograd", "backends.plain"]
MAPPED += [f"{layer}.{name}" for layer, names in PACKAGES.items() for name in names]
MOST_FILES = 26  # of a folder: what holds more has packages that want names


@pytest.mark.parametrize("package", MAPPED)
def test_packages_map_their_files(package):
    package = f"funcgrad.{package}"
    path = MODULES[package]
    inside = {p.stem for p in path.parent.glob("*.py")} - {"__init__"}
    inside |= {p.parent.name for p in path.parent.glob("*/__init__.py")}
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert sorted(re.findall(r"^- `(\w+)`: ", doc, re.M)) == sorted(inside), package


def test_no_folder_is_a_heap():
    folders = {path.parent for path in SOURCES}
    heaps = [str(f) for f in folders if len(list(f.glob("*.py"))) > MOST_FILES]
    assert not heaps, f"more than {MOST_FILES} files in {heaps}"


@by_module
def test_nothing_evaluates_text_or_loads_pickles(module):
    found = [f"line {line}: {name}" for name, line in calls(module) if name in FORBIDDEN_CALLS]
    assert not found, f"{module} runs what it reads: {found}"


TYPED = ("funcgrad.core.", "funcgrad.transforms.")


def untyped(tree: ast.AST):
    """(line, what) for each parameter and result that has no annotation, or `Any` in it. What takes
    a user's arguments may be `*args: Any, **kwargs: Any`; it's plain what `self` and `__init__`
    are."""
    functions = {n: None for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    for cls in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)):
        functions |= {n: cls for n in cls.body if n in functions}
    for f, cls in functions.items():
        a = f.args
        given = [*a.posonlyargs, *a.args, *a.kwonlyargs]
        own = cls and "staticmethod" not in map(ast.unparse, f.decorator_list)
        found = [(x.arg, x.annotation) for x in given[bool(own) :]]
        rest = [(x.arg, x.annotation) for x in (a.vararg, a.kwarg) if x]
        found += [(n, t) for n, t in rest if t is None or ast.unparse(t) != "Any"]
        found += [("its result", f.returns)] if f.name != "__init__" else []
        for name, annotation in found:
            if annotation is None or re.search(r"\bAny\b", ast.unparse(annotation)):
                yield f.lineno, f"{name} of {f.name}"


@of_each([m for m in sorted(MODULES) if f"{m}.".startswith(TYPED)])
def test_annotations_say_what_is_meant(module):
    """What Python's types can't say has a name in `core.types`."""
    found = list(untyped(syntax(module)))
    assert not found, f"{module} has Any, or no annotation, at {found}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(x: Value, *args: Any, **kwargs: Any) -> Tree: ...", []),
        ("def f(x: Any, y, *, z: dict[str, Any]) -> int: ...", ["x", "y", "z"]),
        ("def f(*args, **kwargs: list[Any]) -> None: ...", ["args", "kwargs"]),
        ("def f(): ...", ["its result"]),
        ("def f() -> Sequence[Any]: ...", ["its result"]),
        ("def f() -> None:\n  def g(x) -> None: ...", ["x"]),
        ("class A:\n  def __init__(self, x: Any): ...", ["x"]),
        ("class A:\n  def f(self, x: int): ...", ["its result"]),
        ("class A:\n  @staticmethod\n  def f(x) -> int: ...", ["x"]),
        ("class A:\n  @classmethod\n  def f(cls) -> int: ...", []),
    ],
)
def test_reader_of_annotations(text, expected):
    assert [what.split(" of ")[0] for _, what in untyped(ast.parse(text))] == expected


@of_each(sorted(ALL_FILES))
def test_file_holds_one_idea(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{path.relative_to(ROOT)} has {lines} lines: it holds two ideas"


WAY = (1, 2, 3, 4, 5, 8, 9, 11, 12)  # of `grad`, `vmap` and `jit`: rows of "A reading order"


def test_the_way_of_grad_vmap_and_jit_is_read_in_an_hour_or_two():
    page = ROOT / "docs" / "architecture.md"
    order = page.read_text(encoding="utf-8").partition("\n## A reading order\n")[2]
    rows = dict(re.findall(r"^\| (\d+) \|(.*)$", order.partition("\n## ")[0], re.M))
    files = [page.parent / f for n in WAY for f in re.findall(r"\((\S+\.py)\)", rows[str(n)])]
    assert len(files) >= 16
    quick = [f for f in files if {"eager", "tape"} & set(f.parts)]
    assert not quick, f"an idea is read without what makes it quick: {quick}"
    assert sum(len(f.read_text(encoding="utf-8").splitlines()) for f in files) <= 3500


def test_the_page_on_the_cpu_backend_names_what_is_there():
    text = (ROOT / "docs" / "cpu_backend.md").read_text(encoding="utf-8")
    tables = text.partition("\n## The algorithms")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*)\|", tables, re.M)
    named = {n.rpartition("/")[2] or n[:-1] for c in cells for n in re.findall(r"`([^`]+)`", c)}
    ways = [MODULES[f"funcgrad.backends.llvm.gemm.{f}"] for f in ("driver", "unpacked", "batch")]
    found = {w for path in ways for w in re.findall(r'Way\("(\w+)"', path.read_text("utf-8"))}
    found |= {m.rpartition(".")[2] for m in MODULES if m.startswith("funcgrad.backends.")}
    assert len(named) > 40
    assert not named - found


@pytest.mark.skipif("funcgrad" not in MODULES, reason="the package has no __init__ yet")
def test_import_loads_no_optional_package():
    code = "import sys, funcgrad; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert run.returncode == 0, run.stderr
    early = set(LATE_PACKAGES) & set(run.stdout.split())
    assert not early, f"import funcgrad loads {sorted(early)}, which load on first use"


def parsed_targets(text: str, module: str) -> list[tuple[str, int]]:
    modules = {"funcgrad": Path("__init__.py"), "funcgrad.core": Path("__init__.py")}
    modules |= {f"funcgrad.core.{name}": Path(f"{name}.py") for name in ("ir", "aval")}
    return [
        (name, depth)
        for node, depth in import_nodes(ast.parse(text))
        for name in targets(node, module, modules)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import numpy as np", []),
        ("import funcgrad.core.ir as ir", [("funcgrad.core.ir", 0)]),
        ("from funcgrad.core import ir", [("funcgrad.core.ir", 0)]),
        ("from funcgrad.core import Jaxpr", [("funcgrad.core", 0)]),
        ("from . import ir", [("funcgrad.core.ir", 0)]),
        ("from .aval import Aval", [("funcgrad.core.aval", 0)]),
        ("from .. import core", [("funcgrad.core", 0)]),
        ("def f():\n  import funcgrad", [("funcgrad", 1)]),
        ("try:\n  from .ir import x\nexcept ImportError: pass", [("funcgrad.core.ir", 0)]),
        ("if TYPE_CHECKING:\n  from .ir import x", []),
        ("if TYPE_CHECKING:\n  pass\nelse:\n  from .ir import x", [("funcgrad.core.ir", 0)]),
    ],
)
def test_reader_of_imports(text, expected):
    assert parsed_targets(text, "funcgrad.core.aval") == expected
