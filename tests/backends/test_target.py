"""What is told of a machine stays with its target."""

import ast
import re
from pathlib import Path

import pytest

import funcgrad as fg
from funcgrad.backends import target
from funcgrad.backends.plan import plan
from funcgrad.backends.program import HostStep, KernelStep, walk
from funcgrad.backends.target import Limits, Target
from tests.backends.checks import hosts

FOLDER = Path(target.__file__).parent
PACKAGES = ("loops", "lower", "fusion", "kernels", "rewrites", "drafts")
SHARED = [*FOLDER.glob("*.py"), *(p for name in PACKAGES for p in (FOLDER / name).glob("*.py"))]
# Numbers that no machine changes, by file, and what they say.
ALLOWED = {
    "loops/builder.py": {"ZERO": "an index", "_BIG": "more than any index"},
    "loops/ir.py": dict.fromkeys(
        ("ARITHMETIC", "BITS", "MATH", "PREDICATES", "OTHER"), "how many operands ops have"
    ),
    "lower/attention.py": dict.fromkeys(("ARRAYS", "GIVEN", "RESULTS"), "positions of operands"),
    "lower/rules.py": {"_COSTS": "how many scalar ops an element takes"},
    "lower/views.py": {
        "DEEP": "how deep Python goes through equations",
        "MOST_FRAMED": "the axes that a step's frame has",
    },
    "machines.py": {
        "LIMITS": "what a kernel had better not exceed on any", "WRITERS": "positions",
    },
    "rewrites/complex_pairs.py": {"MOVES": "positions, and the two parts of a number"},
    "rewrites/exchanges.py": {
        "RANK": "words of native code", "SIZE": "words of native code", "REWRITES": "positions",
    },
    "rewrites/narrow.py": dict.fromkeys(("_INFINITY", "_MANTISSA", "_BIAS"), "float32's"),
    "rewrites/products.py": {"MOST_INT8": "products that an int32 sums exactly"},
    "rewrites/scatters.py": {"FEW": "sums that rounding after each changes little"},
    "target.py": {"NEVER": "a limit that nothing reaches"},
}  # fmt: skip


def numbers(path):
    """The constants of a module that have numbers in them."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {x.id for t in targets for x in ast.walk(t) if isinstance(x, ast.Name)}
        inside = [x.value for x in ast.walk(node.value) if isinstance(x, ast.Constant)]
        if any(type(value) in (int, float) for value in inside):
            found |= {name for name in names if re.fullmatch("_?[A-Z][A-Z_0-9]+", name)}
    return found


@pytest.mark.parametrize("path", SHARED, ids=lambda p: str(p.relative_to(FOLDER)))
def test_shared_layers_have_no_numbers_of_a_machine(path):
    allowed = ALLOWED.get(str(path.relative_to(FOLDER)), {})
    assert numbers(path) == set(allowed), "a limit is the target's: see backends/target.py"


@pytest.mark.parametrize("path", SHARED, ids=lambda p: str(p.relative_to(FOLDER)))
def test_shared_layers_import_no_target(path):
    if path.name in ("numpy_eval.py", "eager.py"):  # a backend, and a door
        return
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"funcgrad\.backends\.(llvm|plain)", text)


def test_what_a_target_leaves_out_is_off():
    """Sums, products and scans are what they say, and nothing is split, joined or moved."""
    x = fg.numpy.ones((4096, 64))

    def f(x):
        rows = fg.lax.scan(lambda c, row: (c + row @ x.T @ x, row), x[0], x)
        return fg.numpy.sum(x), x.T @ x, fg.numpy.cumsum(x, 0), rows

    planned = plan(fg.make_jaxpr(f)(x).jaxpr, [False], "f", Target("any"))
    assert {*hosts(planned)} == {"dot_general", "cumsum"}
    assert all(k.points <= 1 for k in planned.kernels() if "sum" in k.name)
    assert Limits() == Target("any").limits


def test_steps_of_the_host_keep_their_parameters():
    def f(x, w):
        return fg.lax.conv_general_dilated(x, w, (2, 1), "SAME", rhs_dilation=(1, 2))

    shapes = fg.ShapeDtypeStruct((2, 3, 8, 8), "float32"), fg.ShapeDtypeStruct((4, 3, 3, 3), "f4")
    planned = plan(fg.make_jaxpr(f)(*shapes).jaxpr, [False] * 2, "f", Target("any"))
    (step,) = [s for s in walk(planned.steps) if isinstance(s, HostStep)]
    assert step.prim.name == "conv_general_dilated"
    assert step.params["window_strides"] == (2, 1)
    assert step.params["rhs_dilation"] == (1, 2)
    assert not any(isinstance(s, KernelStep) for s in walk(planned.steps))
