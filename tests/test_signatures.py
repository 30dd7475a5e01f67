"""Calls that JAX's functions take are calls that ours take: by names of parameters, and by place.

`tests/jax_signatures.json` holds the names of JAX's parameters, as `tools/jax_signatures.py` writes
them. What differs on purpose stands here, with the reason.
"""

import importlib
import inspect
import json
from pathlib import Path

import pytest

from funcgrad.core.primitive import Primitive

TABLE = json.loads((Path(__file__).parent / "jax_signatures.json").read_text())
MODULES = {name: functions for name, functions in TABLE.items() if name != "version"}

# Parameters of any function that ours don't have.
LEFT_OUT = {
    "accuracy": "XLA's choice among implementations",
    "axis_index_groups": "an axis of a mesh can be split in two instead",
    "implementation": "XLA's or cuDNN's; there is one implementation here",
    "use_magma": "a library for GPUs",
}

# Functions that take other arguments: which, and why.
_PLACES = "operands are given by position, as NumPy's are"
DIFFERENT: dict[str, tuple[set[str], str]] = {
    "numpy.fmax": ({"x1", "x2"}, _PLACES),
    "numpy.fmin": ({"x1", "x2"}, _PLACES),
    "numpy.gcd": ({"x1", "x2"}, _PLACES),
    "numpy.lcm": ({"x1", "x2"}, _PLACES),
    "numpy.i0": ({"x"}, _PLACES),
    "numpy.trunc": ({"x"}, _PLACES),
    "numpy.linalg.svd": ({"subset_by_index"}, "slices of the factors are the same"),
    "lax.all_gather": ({"to"}, "what varies over an axis is in the types, which shard_map checks"),
    "lax.conv_transpose": ({"use_consistent_padding"}, "padding is consistent with the kernel's"),
    "nn.dot_product_attention": ({"return_residual"}, "the softmax's sums are not kept"),
}

# Names that are not there.
_SHAPES = "eval_shape gives shapes"
_DEVICES = "devices exchange by ppermute and all_to_all"
_COMPILER = "made for XLA's programs"
MISSING: dict[str, str] = {
    "numpy.fromfile": "JAX's raises NotImplementedError, too",
    "numpy.fromstring": "np.fromstring gives what fnp.array takes",
    "lax.ConvGeneralDilatedDimensionNumbers": "a type for annotations",
    "lax.PrecisionLike": "a type for annotations",
    "lax.after_all": _COMPILER,
    "lax.create_token": _COMPILER,
    "lax.dce_sink": _COMPILER,
    "lax.shape_as_value": _COMPILER,
    "lax.stage": _COMPILER,
    "lax.conv_general_permutations": _SHAPES,
    "lax.conv_general_shape_tuple": _SHAPES,
    "lax.conv_shape_tuple": _SHAPES,
    "lax.conv_transpose_shape_tuple": _SHAPES,
    "lax.reduce_window_shape_tuple": _SHAPES,
    "lax.precv": _DEVICES,
    "lax.psend": _DEVICES,
    "lax.ragged_all_to_all": _DEVICES,
    "lax.rng_uniform": "funcgrad.random draws from keys",
    "lax.with_sharding_constraint": "it is at the top level",
}


def parsed(text):
    """(by position alone, by position or name, by name alone, whether any positional ones)."""
    names = [n.strip() for n in text.split(",") if n.strip()]
    slash = names.index("/") if "/" in names else 0
    stars = [i for i, n in enumerate(names) if n.startswith("*") and n != "**kwargs"]
    star = stars[0] if stars else len(names)
    plain = lambda part: [n for n in part if n != "/" and not n.startswith("*")]
    return (plain(names[:slash]), plain(names[slash:star]), plain(names[star:]),
            star < len(names) and names[star] != "*")  # fmt: skip


def refused(function, text):
    """The parameters of JAX's function that ours doesn't take as JAX's does."""
    alone, both, named, variadic = parsed(text)
    if variadic or isinstance(function, Primitive):  # ops take operands by position alone
        return set()
    parameters = inspect.signature(function).parameters.values()
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    any_place = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters)
    found = set()
    for i, name in enumerate([*alone, *both]):
        at = places[i].name if i < len(places) else None
        unnamed = name in both and name not in by_name and not any_name
        elsewhere = at is None or (name in both and name in by_name and at != name)
        if unnamed or (elsewhere and not any_place):
            found.add(name)
    return found | {name for name in named if name not in by_name and not any_name}


def differences(module, name):
    ours = getattr(importlib.import_module(f"funcgrad.{module}"), name, None)
    if ours is None or inspect.isclass(ours):
        return set()
    found = refused(ours, MODULES[module][name]) - set(LEFT_OUT)
    return {n for n in found if not n.startswith("_")}


@pytest.mark.parametrize("module", MODULES)
def test_calls_of_jax_are_taken(module):
    for name in MODULES[module]:
        known, _ = DIFFERENT.get(f"{module}.{name}", (set(), ""))
        assert not differences(module, name) - known, f"{module}.{name}"


@pytest.mark.parametrize("module", MODULES)
def test_names_of_jax_are_there(module):
    ours = importlib.import_module(f"funcgrad.{module}")
    missing = {f"{module}.{name}" for name in MODULES[module] if not hasattr(ours, name)}
    assert not missing - set(MISSING)


@pytest.mark.parametrize(
    ("ours", "theirs", "want"),
    [
        (lambda a, b=1: 0, "a, b", set()),
        (lambda a, b=1: 0, "a, c", {"c"}),
        (lambda a, b=1: 0, "b, a", {"a", "b"}),
        (lambda a, *, b=1: 0, "a, b", {"b"}),
        (lambda a, b=1, /: 0, "x1, x2, /", set()),
        (lambda a, /: 0, "a", {"a"}),
        (lambda a, b=1: 0, "a, *, b", set()),
        (lambda a: 0, "a, /, *, c", {"c"}),
        (lambda *args, **options: 0, "a, b, *, c", set()),
        (lambda a: 0, "*args, out", set()),
    ],
)  # fmt: skip
def test_what_is_refused_is_found(ours, theirs, want):
    assert refused(ours, theirs) == want
