"""Convolutions against plain loops: strides, padding, dilation of both sides, groups, layouts."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.array import Array
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.convolution.conv import (
    ConvDimensionNumbers,
    conv_dimension_numbers,
    conv_general_dilated,
    conv_general_dilated_p,
    third,
)
from funcgrad.ops.convolution.padding import dilated, padtype_to_pads, positions
from tests.ops.rules import check_derivatives, check_dims, check_transpose, check_vmap, vjp

# lhs N C …, rhs O I …, then the keywords.
CASES = {
    "0d": ((2, 3), (4, 3), {}),
    "1d": ((2, 3, 6), (4, 3, 3), {}),
    "strides": ((2, 3, 7), (4, 3, 3), {"window_strides": (2,)}),
    "same": ((1, 2, 5, 4), (3, 2, 3, 2), {"padding": "SAME", "window_strides": (2, 1)}),
    "pads": ((1, 2, 4), (2, 2, 3), {"padding": ((2, 1),)}),
    "negative": ((1, 2, 8), (2, 2, 3), {"padding": ((-1, -2),)}),
    "more padding than kernel": ((1, 1, 3), (1, 1, 2), {"padding": ((4, 3),)}),
    "kernel dilation": ((1, 2, 7, 6), (2, 2, 2, 3), {"rhs_dilation": (3, 2)}),
    "operand dilation": ((2, 2, 4), (3, 2, 3), {"lhs_dilation": (3,), "padding": ((1, 2),)}),
    "all": (
        (2, 2, 5, 4),
        (4, 2, 2, 3),
        {
            "window_strides": (2, 3),
            "padding": ((1, -1), (3, 2)),
            "lhs_dilation": (2, 1),
            "rhs_dilation": (1, 2),
        },
    ),
    "feature groups": ((2, 4, 5), (6, 2, 2), {"feature_group_count": 2}),
    "depthwise": ((2, 3, 5), (6, 1, 2), {"feature_group_count": 3, "window_strides": (2,)}),
    "batch groups": ((4, 3, 5), (6, 3, 2), {"batch_group_count": 2, "padding": "SAME"}),
    "3d": ((1, 2, 3, 4, 3), (2, 2, 2, 2, 2), {"padding": "SAME_LOWER"}),
    "kernel too large": ((1, 2, 2), (3, 2, 4), {}),
    "empty batch": ((0, 2, 4), (3, 2, 2), {}),
    "no features": ((2, 0, 4), (3, 0, 2), {}),
}
cases = pytest.mark.parametrize("case", CASES)


def arguments(kw, rank):
    return {"window_strides": (1,) * rank, "padding": "VALID", **kw}


def reference(lhs, rhs, kw):
    """The definition: loops over batch, features, positions and window."""
    rank = lhs.ndim - 2
    kw = arguments(kw, rank)
    one = (1,) * rank
    base, holes = kw.get("lhs_dilation", one), kw.get("rhs_dilation", one)
    groups, batch_groups = kw.get("feature_group_count", 1), kw.get("batch_group_count", 1)
    reach = [dilated(k, d) for k, d in zip(rhs.shape[2:], holes, strict=True)]
    pads = padtype_to_pads(lhs.shape[2:], reach, kw["window_strides"], kw["padding"])
    size = [dilated(n, b) + sum(p) for n, b, p in zip(lhs.shape[2:], base, pads, strict=True)]
    counts = [positions(n, r, s) for n, r, s in zip(size, reach, kw["window_strides"], strict=True)]
    n_out, o_out = lhs.shape[0] // batch_groups, rhs.shape[0]
    out = np.zeros((n_out, o_out, *counts), np.result_type(lhs, rhs))
    per_group = o_out // (groups * batch_groups)
    for n, o in itertools.product(range(n_out), range(o_out)):
        group = o // per_group
        row = n + (group * n_out if batch_groups > 1 else 0)
        first = group * rhs.shape[1] if groups > 1 else 0
        for at in itertools.product(*map(range, counts)):
            for k in itertools.product(*map(range, rhs.shape[2:])):
                place = [
                    i * s + j * d - lo
                    for i, s, j, d, (lo, _) in zip(
                        at, kw["window_strides"], k, holes, pads, strict=True
                    )
                ]
                if any(p % b or not 0 <= p < dilated(m, b)
                       for p, b, m in zip(place, base, lhs.shape[2:], strict=True)):  # fmt: skip
                    continue
                where = tuple(p // b for p, b in zip(place, base, strict=True))
                x = lhs[(row, slice(first, first + rhs.shape[1]), *where)]
                out[(n, o, *at)] += np.sum(x * rhs[(o, slice(None), *k)])
    return out


def run(lhs, rhs, kw):
    return conv_general_dilated(lhs, rhs, **arguments(kw, np.ndim(lhs) - 2))


@cases
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int32", "int8"])
def test_values(case, dtype, rng):
    lhs, rhs, kw = CASES[case]
    lhs, rhs = ((rng.standard_normal(s) * 3).astype(dtype) for s in (lhs, rhs))
    got = run(Array(lhs), Array(rhs), kw)
    assert got.dtype == dtype
    np.testing.assert_allclose(np.asarray(got), reference(lhs, rhs, kw), rtol=1e-5, atol=1e-5)


@cases
def test_rules(case, rng):
    lhs, rhs, kw = CASES[case]
    args = [rng.standard_normal(s) for s in (lhs, rhs)]
    fun = lambda a, b: run(a, b, kw)
    check_derivatives(fun, args, rng)
    check_vmap(fun, args, rng)
    check_dims(fun, args)
    check_transpose(lambda a: fun(a, Array(args[1])), [lhs], rng)
    check_transpose(lambda b: fun(Array(args[0]), b), [rhs], rng)


@cases
def test_batching_of_gradients(case, rng):
    lhs, rhs, kw = CASES[case]
    args = [rng.standard_normal(s) for s in (lhs, rhs)]
    out = np.asarray(run(*args, kw))
    pull = lambda a, b, ct: vjp(lambda x, y: run(x, y, kw), [a, b], [ct])
    check_vmap(pull, [*args, rng.standard_normal(out.shape)], rng, size=2)


@pytest.mark.parametrize(
    "spec", [("NHWC", "HWIO", "NHWC"), ("CWNH", "OWIH", "WNHC"), ("NCHW", "WHIO", "CHWN")]
)
def test_layouts(spec, rng):
    shapes = {"N": 2, "C": 4, "H": 5, "W": 6}, {"O": 6, "I": 2, "H": 2, "W": 3}
    lhs, rhs = (
        rng.standard_normal([sizes[c] for c in s])
        for sizes, s in zip(shapes, spec[:2], strict=True)
    )
    kw = {"window_strides": (2, 1) if spec[1].index("H") < spec[1].index("W") else (1, 2)}
    kw |= {"feature_group_count": 2}
    fun = lambda a, b: run(a, b, {**kw, "dimension_numbers": spec})
    as_ = lambda x, old, new: np.transpose(x, [old.index(c) for c in new])
    plain = reference(
        as_(lhs, spec[0], "NCHW"),
        as_(rhs, spec[1], "OIHW"),
        {**kw, "window_strides": (2, 1)},
    )
    got = np.asarray(fun(lhs, rhs))
    np.testing.assert_allclose(as_(got, spec[2], "NCHW"), plain)
    check_derivatives(fun, [lhs, rhs], rng)
    check_vmap(fun, [lhs, rhs], rng)
    check_dims(fun, [lhs, rhs])


def test_dtypes(rng):
    x, w = rng.standard_normal((1, 64, 9)), rng.standard_normal((2, 64, 3))
    x, w = x.astype(ml_dtypes.bfloat16), w.astype(ml_dtypes.bfloat16)
    exact = reference(x.astype(np.float64), w.astype(np.float64), {})
    got = run(x, w, {})
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(np.asarray(got).astype(float), exact, rtol=2**-8)
    wide = lambda a, b: run(a, b, {"preferred_element_type": "float32"})
    assert wide(x, w).dtype == np.float32
    np.testing.assert_allclose(np.asarray(wide(x, w)), exact, rtol=1e-4, atol=1e-4)
    cts = vjp(wide, [Array(x), Array(w)], [Array(np.ones((1, 2, 7), np.float32))])
    assert [c.dtype for c in cts] == [ml_dtypes.bfloat16] * 2
    small = rng.integers(-128, 128, (1, 8, 5)).astype(np.int8)
    kernel = rng.integers(-128, 128, (3, 8, 2)).astype(np.int8)
    got = run(small, kernel, {"preferred_element_type": "int32"})
    expected = reference(small.astype(np.int32), kernel.astype(np.int32), {})
    np.testing.assert_array_equal(np.asarray(got), expected)


def test_gradients_where_no_window_fits():
    x, k = fnp.ones((2, 0, 14, 1)), fnp.ones((4, 1, 4, 5))

    def loss(x, k):
        out = lax.conv_general_dilated(
            x, k, (1, 1), "VALID", rhs_dilation=(1, 2), dimension_numbers=("NHWC", "OIHW", "NHWC")
        )
        return fnp.sum(out**2)

    def again(x, k):
        return sum(fnp.sum(g**2) for g in fg.grad(loss, (0, 1))(x, k))

    for got in (fg.grad(loss, (0, 1))(x, k), fg.jit(fg.grad(again, (0, 1)))(x, k)):
        assert [g.shape for g in got] == [x.shape, k.shape]
        assert not got[1].any()


def test_gradients_say_which_arrays_they_make_of_which():
    shapes = {"images": (2, 3, 11), "kernel": (5, 3, 4), "result": (2, 5, 6)}
    x, w, ct = (fnp.ones(s) for s in shapes.values())

    def conv(x, w):
        return fnp.sin(conv_general_dilated(fnp.sin(x), fnp.sin(w), (2,), [(2, 1)]))

    def twice(x, w, ct):
        return sum(fnp.sum(fnp.sin(g)) for g in fg.vjp(conv, x, w)[1](ct))

    def orders(x, w, ct):
        first = fg.grad(twice, (0, 1, 2))
        return fg.grad(lambda *args: sum(fnp.sum(fnp.sin(g)) for g in first(*args)), (0, 1, 2))(
            x, w, ct
        )

    eqns = fg.make_jaxpr(orders)(x, w, ct).jaxpr.eqns
    found = [e for e in eqns if e.prim is conv_general_dilated_p]
    for e in found:
        said = e.params["operands"]
        names = (*said, third(said))
        for v, name in zip((*e.ins, *e.outs), names, strict=True):
            assert sorted(v.aval.shape) == sorted(shapes[name])
    assert len({e.params["operands"] for e in found}) >= 4


def test_large_operands_go_in_pieces(rng, monkeypatch):
    monkeypatch.setattr("funcgrad.ops.convolution.conv.WINDOW_ELEMENTS", 40)
    x, w = rng.standard_normal((5, 2, 6)), rng.standard_normal((3, 2, 2))
    np.testing.assert_allclose(np.asarray(run(x, w, {})), reference(x, w, {}))


def test_dimension_numbers():
    got = conv_dimension_numbers((1, 2, 3, 4), (1, 2, 3, 4), ("NHWC", "WHIO", "NHWC"))
    assert got == ConvDimensionNumbers((0, 3, 2, 1), (3, 2, 0, 1), (0, 3, 2, 1))
    assert conv_dimension_numbers((1, 2, 3), (1, 2, 3), got) is got
    assert conv_dimension_numbers((1, 2, 3), (1, 2, 3), None).out_spec == (0, 1, 2)


@pytest.mark.parametrize(
    ("lhs", "rhs", "kw", "error", "words"),
    [
        (
            (1, 2, 5),
            (3, 3, 2),
            {},
            ShapeError,
            r"lhs has 2 features, rhs takes 3.*lhs f32\[1,2,5\]",
        ),
        ((1, 4, 5), (3, 2, 2), {"feature_group_count": 2}, ShapeError, "3 output features"),
        ((3, 4, 5), (4, 4, 2), {"batch_group_count": 2}, ShapeError, "a batch of 3 doesn't"),
        (
            (2, 2, 5),
            (4, 1, 2),
            {"batch_group_count": 2, "feature_group_count": 2},
            ShapeError,
            "only one of the group counts",
        ),
        ((1, 2, 5), (3, 2), {}, ShapeError, "same rank"),
        ((1, 2, 5), (3, 2, 2), {"window_strides": (1, 1)}, ShapeError, "window_strides"),
        ((1, 2, 5), (3, 2, 2), {"window_strides": (0,)}, ShapeError, "must be positive"),
        ((1, 2, 5), (3, 2, 2), {"padding": ((-3, -3),)}, ShapeError, "takes more than there is"),
        ((1, 2, 5), (3, 2, 2), {"padding": "FULL"}, ValueError, "got 'FULL'"),
        (
            (1, 2, 5),
            (3, 2, 2),
            {"padding": "SAME", "lhs_dilation": (2,)},
            ValueError,
            "not defined with lhs_dilation",
        ),
        ((1, 2, 5), (3, 2, 2), {"dimension_numbers": ("NCX", "OIX")}, TypeError, "three strings"),
        (
            (1, 2, 5),
            (3, 2, 2),
            {"dimension_numbers": ("NCX", "OIX", "NCY")},
            ShapeError,
            "the out dimension_numbers 'NCY'",
        ),
    ],
)
def test_errors(lhs, rhs, kw, error, words):
    with pytest.raises(error, match=words):
        run(np.zeros(lhs, np.float32), np.zeros(rhs, np.float32), kw)


def test_mixed_dtypes_are_an_error():
    with pytest.raises(DTypeError, match="conv_general_dilated: operands must have one dtype"):
        run(np.zeros((1, 1, 3), np.float32), np.zeros((1, 1, 3)), {})


def test_precision():
    """The highest one asks for sums of products, of which none in a window of zeros is rounded."""
    x = np.random.default_rng(0).standard_normal((2, 32, 20, 20)).astype("float32")
    shift = np.zeros((32, 32, 3, 3), "float32")
    shift[np.arange(32), np.arange(32), 0, 2] = 1

    def conv(x, w, precision):
        return lax.conv_general_dilated(x, w, (1, 1), "VALID", precision=precision)

    for precision in ("highest", lax.Precision.HIGHEST, ("default", "float32")):
        got = fg.jit(conv, static_argnums=2)(x, shift, precision)
        np.testing.assert_array_equal(got, x[:, :, :-2, 2:])
        gradient = fg.grad(lambda x, p=precision: (conv(x, shift, p) * 3).sum())
        assert set(np.unique(fg.jit(gradient)(x))) == {0.0, 3.0}
    for precision in (None, "high", lax.Precision.DEFAULT, (None, "fastest")):
        got = fg.jit(conv, static_argnums=2)(x, shift, precision)
        np.testing.assert_allclose(got, x[:, :, :-2, 2:], rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="conv_general_dilated: precision must be None.*'exact'"):
        conv(x, shift, "exact")
