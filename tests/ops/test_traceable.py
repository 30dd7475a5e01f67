"""Each elementwise op's `impl` runs on symbols, with the results that it has on arrays.

So a compiler can trace it. What it may use: operators, `astype`, `view`, `real`, `imag`, loops
through `fori_loop` and `while_loop`, and the functions listed here.
"""

import inspect
import itertools

import numpy as np
import pytest

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray
from funcgrad.core.primitive import Primitive
from funcgrad.errors import DTypeError
from funcgrad.ops.elementwise import arithmetic, compare, convert, rounding, special, transcendental
from funcgrad.ops.families import add
from tests.ops.symbols import Names, Symbol

FUNCTIONS = {
    "abs", "add", "bitwise_count", "ceil", "conj", "copy", "copysign", "floor", "fmod", "isfinite",
    "isinf", "maximum", "minimum", "nextafter", "ones_like", "power", "rint", "sign", "sqrt",
    "cbrt", "trunc", "where", "zeros_like",
    "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "cos", "cosh", "exp",
    "exp2", "expm1", "log", "log1p", "sin", "sinh", "tan", "tanh",
}  # fmt: skip
PARAMS = {
    "integer_pow": [{"y": 0}, {"y": 5}, {"y": -2}],
    "round": [{"rounding_method": m} for m in rounding.RoundingMethod],
    "convert_element_type": [{"new_dtype": d} for d in dtypes.ALL],
    "bitcast_convert_type": [{"new_dtype": np.dtype(d)} for d in ("int32", "uint8", "float64")],
    "reduce_precision": [{"exponent_bits": 5, "mantissa_bits": 2}],
}
# Made of two arrays' memory, so that it keeps infinities: compilers know it by its name.
BY_NAME = {"complex"}
MODULES = (arithmetic, compare, convert, rounding, special, transcendental)
OPS = {add.name: add} | {
    p.name: p
    for module in MODULES
    for p in vars(module).values()
    if isinstance(p, Primitive) and p.elementwise and p.name not in BY_NAME
}


def operands(prim):
    """How many operands an op has; two cases and a selector where it takes any number."""
    # `eps` is what the decorator of a series adds.
    named = inspect.signature(prim.impl).parameters.items()
    kinds = [p.kind for name, p in named if name != "eps"]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return 3
    return kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) - 1


@pytest.mark.parametrize("name", sorted(OPS))
def test_impl_runs_on_symbols(name):
    prim, tried = OPS[name], 0
    n = operands(prim)
    for dtype, params in itertools.product(dtypes.ALL, PARAMS.get(name, [{}])):
        args = [np.array([1, 0, 3, 2]).astype(dtype)] * n
        if name == "select_n":
            args[0] = np.array([True, False, True, False])
        try:
            aval = prim.abstract(*(ShapedArray(a.shape, a.dtype) for a in args), **params)
        except DTypeError:
            continue
        if name == "bitcast_convert_type" and dtype.itemsize != params["new_dtype"].itemsize:
            continue
        xp = Names()
        got = prim.impl(xp, *(Symbol(a) for a in args), **params)
        assert isinstance(got, Symbol)
        expected = np.asarray(prim.impl(np, *args, **params)).astype(aval.dtype)
        assert got.value.astype(aval.dtype).tobytes() == expected.tobytes()
        assert xp.used <= FUNCTIONS, f"{name} uses {xp.used - FUNCTIONS}"
        tried += 1
    assert tried
