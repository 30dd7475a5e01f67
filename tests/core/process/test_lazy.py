"""Names that load late are those that type checkers see, and are found as all others are."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax

PACKAGES = ["funcgrad", "funcgrad.lax", "funcgrad.lax.linalg", "funcgrad.numpy", "funcgrad.scipy"]
# What is loaded with `import funcgrad` is what arrays' methods, jit, grad and vmap are made of.
LATE = [
    "funcgrad.lax", "funcgrad.numpy.fft", "funcgrad.numpy.linalg", "funcgrad.numpy.polynomial",
    "funcgrad.ops.collective", "funcgrad.ops.linalg.decompositions", "funcgrad.ops.special_math",
    "funcgrad.parallel", "funcgrad.random", "funcgrad.scipy",
    "funcgrad.transforms.derivatives.jacobian",
]  # fmt: skip


def for_type_checkers(package: str) -> dict[str, set[str]]:
    """Names by module in the `if TYPE_CHECKING:` block of a package."""
    source = Path(importlib.import_module(package).__file__).read_text(encoding="utf-8")
    blocks = [n for n in ast.parse(source).body if isinstance(n, ast.If)]
    found: dict[str, set[str]] = {}
    for node in (n for block in blocks for n in block.body):
        found.setdefault(node.module, set()).update(alias.name for alias in node.names)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_what_is_there(package):
    module = importlib.import_module(package)
    table = getattr(module, "_LATER", {})
    prefix = "funcgrad." if package == "funcgrad" else ""
    told = {f"{prefix}{m}": set(names.split()) for m, names in table.items()}
    seen = for_type_checkers(package)
    parts = seen.pop(package, set())
    if package == "funcgrad":  # names for other libraries, which type checkers needn't see
        assert parts == set(module._PACKAGES)
        told.pop("funcgrad.numpy")
    if package != "funcgrad.lax.linalg":
        assert seen.keys() == told.keys()
    for home, names in told.items():
        assert seen[home] == names, home
        for name in names:
            assert getattr(module, name) is getattr(importlib.import_module(home), name)
            assert name in vars(module), "a name is looked for once"
    assert parts | {n for names in told.values() for n in names} <= set(dir(module))
    for part in parts:
        assert getattr(module, part) is importlib.import_module(f"{package}.{part}")


def test_import_loads_little():
    code = "import sys, funcgrad; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    early = [m for m in LATE if m in run.stdout.split()]
    assert not early, f"import funcgrad loads {early}, which load on first use"


def test_star_imports_have_all_names():
    space: dict = {}
    exec("from funcgrad.numpy import *", space)
    assert {"linspace", "linalg", "sum", "einsum"} <= space.keys()
    assert not [n for n in space if n.startswith("_") and n != "__builtins__"]


@pytest.mark.parametrize("package", PACKAGES)
def test_listed_names_are_for_users(package):
    module = importlib.import_module(package)
    names = set(dir(module))
    assert set(vars(module).get("__all__", ())) <= names
    assert not names & {"TYPE_CHECKING", "Primitive", "core", "elementwise", "lazy", "sys", "_lazy"}


def test_primitives_of_modules_that_load_late():
    assert lax.cholesky_p.name == "cholesky"
    assert lax.erf_p is lax.erf
    assert lax.reduce_window_max_p.name == "reduce_window_max"


@pytest.mark.parametrize("module", [fg, fnp, lax, lax.linalg, fg.scipy])
def test_a_name_that_is_not_there(module):
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'nil'"):
        module.nil  # noqa: B018
