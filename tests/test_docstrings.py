"""What has no underscore has a docstring, public functions with an example; every example runs."""

import doctest
import functools
import gc
import importlib
import inspect
import io
import types
import warnings
from pathlib import Path

import numpy as np
import pytest

PACKAGE = Path(__file__).parent.parent / "funcgrad"
PUBLIC = [
    "", "ad_checkpoint", "adapters", "custom_batching", "custom_derivatives", "debug", "dlpack",
    "dtypes", "experimental.checkify", "experimental.jet", "experimental.ode", "export",
    "export.onnx", "extend.core", "flatten_util", "image", "interop", "io", "io.checkpoints",
    "io.weights", "lax",
    "lax.linalg", "monitoring", "nn", "nn.initializers", "numpy", "numpy.fft", "numpy.linalg",
    "ops", "optim", "parallel", "parallel.pipelines", "profiler", "quantization", "random",
    "recsys", "recsys.models", "ref",
    "scipy", "scipy.cluster.vq", "scipy.fft", "scipy.integrate", "scipy.interpolate",
    "scipy.linalg", "scipy.ndimage", "scipy.optimize", "scipy.signal", "scipy.sparse.linalg",
    "scipy.spatial.transform", "scipy.special", "scipy.stats", "serve", "sharding", "sparse",
    "sparse.linalg", "stages", "test_util", "tree", "tree_util",
]  # fmt: skip
NAMES = {
    "fg": "", "fnp": "numpy", "lax": "lax", "nn": "nn", "optim": "optim", "random": "random",
    "tree": "tree",
}  # fmt: skip
NEEDS_HARDWARE = ("funcgrad.backends.cuda", "funcgrad.parallel.communicators.mpi")
DESCRIBED = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.REPORT_ONLY_FIRST_FAILURE


@pytest.fixture(autouse=True)
def no_garbage():
    """Examples that show how much memory there is get none back from what other tests left."""
    gc.disable()
    yield
    gc.enable()


def path_of(name: str) -> Path | None:
    """The file of a module named relative to the package, if it is there."""
    base = PACKAGE.joinpath(*name.split(".")) if name else PACKAGE
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.exists()), None)


def load(name: str):
    return importlib.import_module(f"funcgrad.{name}" if name else "funcgrad")


def every_module() -> list[str]:
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    names = (".".join(p.parts[:-1] if p.name == "__init__" else p.parts) for p in paths)
    return sorted(n for n in names if not f"funcgrad.{n}".startswith(NEEDS_HARDWARE))


def namespace(owner) -> dict:
    """What an example may name: its module's own names, and the usual ones without an import."""
    usual = {short: load(name) for short, name in NAMES.items() if path_of(name)}
    return {**vars(owner), **usual, "np": np, "__name__": "__main__"}


def failures(name: str, docstring: str, owner) -> str:
    """The report of the examples in one docstring that don't do what they show."""
    test = doctest.DocTestParser().get_doctest(docstring, namespace(owner), name, None, None)
    report = io.StringIO()
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.write)
    return report.getvalue()


def public_functions(module):
    """(name, function) for each function of the package that a public module offers."""
    names = getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")])
    for name in names:
        value = getattr(module, name)
        ours = (getattr(value, "__module__", None) or "").split(".")[0] == "funcgrad"
        if callable(value) and not inspect.isclass(value) and ours:
            yield name, value


def own_docstring(value) -> str:
    """An object's docstring, unless it is only that of its class."""
    doc = value.__doc__ or ""
    return "" if not inspect.isroutine(value) and doc == type(value).__doc__ else doc


def undocumented(module) -> list[str]:
    """The functions, classes, methods and properties without underscore that a module defines and
    says nothing about. A method may leave it to the one that it overrides."""
    bare = []
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value):
            if not value.__doc__ or value.__doc__.startswith(f"{name}("):  # made of the fields
                bare.append(name)
            members = [n for n, member in vars(value).items() if isinstance(member, DESCRIBED)]
            for inner in [n for n in members if not n.startswith("_")]:
                if not any(vars(c)[inner].__doc__ for c in value.__mro__ if inner in vars(c)):
                    bare.append(f"{name}.{inner}")
        elif inspect.isroutine(value) and not value.__doc__:
            bare.append(name)
    return bare


existing = [name for name in PUBLIC if path_of(name)]


@pytest.mark.parametrize("name", every_module(), ids=lambda n: f"funcgrad.{n}".rstrip("."))
def test_what_has_no_underscore_has_a_docstring(name):
    bare = undocumented(load(name))
    assert not bare, f"{len(bare)} without a docstring in funcgrad.{name}: {', '.join(bare)}"


@pytest.mark.parametrize("name", existing, ids=lambda n: f"funcgrad.{n}".rstrip("."))
def test_public_functions_have_examples(name):
    bare = [
        function
        for function, value in public_functions(load(name))
        if ">>>" not in own_docstring(value)
    ]
    assert not bare, f"{len(bare)} public functions show no example (>>>): {', '.join(bare)}"


@pytest.mark.parametrize("name", existing, ids=lambda n: f"funcgrad.{n}".rstrip("."))
def test_public_examples_run(name):
    """Through the public names, so that functions made by a factory are read as well."""
    module = load(name)
    reports = [
        failures(f"{module.__name__}.{function}", own_docstring(value), module)
        for function, value in public_functions(module)
    ]
    if any(reports):
        pytest.fail("".join(reports), pytrace=False)


@pytest.mark.parametrize("name", every_module(), ids=lambda n: f"funcgrad.{n}".rstrip("."))
def test_examples_of_module_run(name):
    """All other docstrings: of the module itself, its classes, methods and inner functions."""
    module = load(name)
    for value in list(vars(module).values()):
        # doctest asks each for attributes, and modules that load late then become the package's.
        getattr(value, "__wrapped__", None)
    public = {own_docstring(value) for m in existing for _, value in public_functions(load(m))}
    found = doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__)
    inner = [test for test in found if test.examples and test.docstring not in public]
    reports = [failures(test.name, test.docstring, module) for test in inner]
    if any(reports):
        pytest.fail("".join(reports), pytrace=False)


def test_what_lacks_a_docstring_is_reported():
    class Base:
        def said(self):
            """Said once."""

    class Derived(Base):
        """A class."""

        shape = property(lambda self: ())

        def said(self):
            pass

        def unsaid(self):
            pass

    module = types.ModuleType(__name__)
    module.Base, module.Derived, module._hidden = Base, Derived, lambda: None
    assert undocumented(module) == ["Base", "Derived.shape", "Derived.unsaid"]


def test_a_wrong_example_is_reported():
    report = failures("f", ">>> 1 + 1\n3\n", np)
    assert "Expected:\n    3" in report
    assert "Got:\n    2" in report


def test_an_example_that_warns_is_reported():
    code = ">>> import warnings\n>>> warnings.warn('old', stacklevel=1)\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "UserWarning: old" in failures("f", code, np)
