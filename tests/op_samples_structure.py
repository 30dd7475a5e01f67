"""Rows of ops that move, join, reduce, accumulate, contract, sort and transform along axes."""

import itertools

import numpy as np

from funcgrad import dtypes
from funcgrad.ops import barrier, base, contract, cumulative, fft, reduce, shape, slicing, sort
from funcgrad.ops import random as random_ops
from funcgrad.ops.convolution import conv, pooling
from funcgrad.ops.convolution.conv import conv_dimension_numbers
from funcgrad.ops.convolution.padding import dilated, padtype_to_pads, positions
from funcgrad.ops.elementwise import convert
from funcgrad.ops.elementwise.compare import ge, le
from funcgrad.ops.sharding import sharding_constraint_p
from funcgrad.parallel import NamedSharding, P, make_mesh, virtual_devices
from tests.op_samples_base import (
    BOOL,
    COMPLEX,
    F32,
    F64,
    FLOATS,
    I32,
    INTEGERS,
    NUMBERS,
    REAL,
    SIGNED,
    Arg,
    Case,
    Domain,
    Row,
    any_integers,
    case,
)
from tests.ops.convolution.test_conv import CASES as CONVOLUTIONS
from tests.ops.convolution.test_conv import arguments as conv_arguments
from tests.ops.convolution.test_conv import reference as conv_reference

ANY = (*REAL, *COMPLEX)
UINT32 = np.dtype("uint32")
# Narrow floats stand for their like in ops that are costly to compile for all of them.
SOME = (F32, F64, np.dtype("float16"), dtypes.canonical("bfloat16"), I32, np.dtype("int8"),
        np.dtype("complex64"), np.dtype("complex128"))  # fmt: skip
SMALL = Domain(-2, 2)
FEW = "eager jit"


CUT = NamedSharding(make_mesh(2, "x", devices=virtual_devices(2)), P("x"))


def moving(prim, oracle, cases, **rest):
    """An op that moves elements of any dtype."""
    rest.setdefault("dtypes", ANY)
    return Row(prim=prim, oracle=oracle, cases=tuple(cases), exact=True, ulps=0, jit_ulps=0, **rest)


# ---- structure


def broadcast(x, shape, broadcast_dimensions):
    out = np.empty(shape, x.dtype)
    for at in np.ndindex(*shape):
        place = [at[d] if n > 1 else 0 for n, d in zip(x.shape, broadcast_dimensions, strict=True)]
        out[at] = x[tuple(place)]
    return out


def padded(x, value, padding_config):
    sizes = [lo + hi + n + max(n - 1, 0) * inner
             for n, (lo, hi, inner) in zip(x.shape, padding_config, strict=True)]  # fmt: skip
    out = np.full(sizes, value, x.dtype)
    for at in np.ndindex(*x.shape):
        place = tuple(lo + i * (k + 1) for i, (lo, _, k) in zip(at, padding_config, strict=True))
        if all(0 <= p < n for p, n in zip(place, sizes, strict=True)):
            out[place] = x[at]
    return out


def sliced(x, start_indices, limit_indices, strides):
    strides = strides or (1,) * x.ndim
    return x[tuple(map(slice, start_indices, limit_indices, strides))]


def regroup(x, new_dtype):
    data = np.ascontiguousarray(x).tobytes()
    k = x.dtype.itemsize // new_dtype.itemsize
    return np.frombuffer(data, new_dtype).reshape((*x.shape, k) if k else x.shape[:-1])


STRUCTURAL = [
    moving(base.broadcast_p, broadcast, (
        case((3,), shape=(2, 3), broadcast_dimensions=(1,)),
        case((2, 1), shape=(2, 4, 3), broadcast_dimensions=(0, 2)),
        case((), shape=(3, 5), broadcast_dimensions=()),
        case((1, 1), shape=(1, 1), broadcast_dimensions=(0, 1), tests=FEW),
        case((2,), shape=(2, 0), broadcast_dimensions=(0,), tests=FEW),
    )),
    moving(base.transpose_p, lambda x, permutation: np.transpose(x, permutation), (
        case((2, 3), permutation=(1, 0)), case((2, 3, 4), permutation=(2, 0, 1)),
        case((17, 9), permutation=(1, 0), tests=FEW), case((), permutation=(), tests=FEW),
        case((0, 3), permutation=(1, 0), tests=FEW),
    )),
    moving(shape.reshape_p, lambda x, new_sizes: np.reshape(x, new_sizes), (
        case((2, 6), new_sizes=(2, 3, 2)), case((2, 3, 4), new_sizes=(6, 4)),
        case((1,), new_sizes=()), case((), new_sizes=(1, 1), tests=FEW),
        case((0, 3), new_sizes=(5, 0), tests=FEW),
    )),
    moving(shape.rev_p, lambda x, dimensions: np.flip(x, dimensions), (
        case((5,), dimensions=(0,)), case((2, 3, 4), dimensions=(0, 2)),
        case((2, 3), dimensions=(), tests=FEW), case((0, 2), dimensions=(0,), tests=FEW),
    )),
    moving(shape.iota_p, lambda dtype, shape, dimension: np.moveaxis(
        np.broadcast_to(np.arange(shape[dimension]),
                        (*shape[:dimension], *shape[dimension + 1:], shape[dimension])),
        -1, dimension), tuple(
        Case((), {"dtype": d, "shape": s, "dimension": k}, frozenset({"eager", "jit", "dims"}))
        for d in (F32, *(d for d in NUMBERS if d != F32))
        for s, k in (((5,), 0), ((2, 3), 1), ((3, 0, 2), 0))),
        dtypes=(F32,), result=lambda d, p: p["dtype"]),
    moving(slicing.concatenate_p, lambda *xs, dimension: np.concatenate(xs, dimension), (
        case((2,), (3,), dimension=0), case((2, 3), (2, 1), (2, 2), dimension=1),
        case((2, 3), dimension=0, tests=FEW), case((0, 2), (3, 2), dimension=0, tests=FEW),
    )),
    moving(slicing.slice_p, sliced, (
        case((7,), start_indices=(1,), limit_indices=(6,), strides=(2,)),
        case((3, 4), start_indices=(0, 1), limit_indices=(3, 3), strides=None),
        case((3, 4), start_indices=(2, 2), limit_indices=(2, 4), strides=(1, 3), tests=FEW),
    )),
    moving(slicing.pad_p, padded, (
        case((3,), (), padding_config=((1, 2, 0),)),
        case((2, 4), (), padding_config=((0, 0, 0), (2, -1, 1))),
        case((5,), (), padding_config=((-2, -1, 2),)),
        case((0, 2), (), padding_config=((1, 1, 3), (0, 1, 0)), tests=FEW),
    )),
    moving(barrier.barrier_p, lambda *xs: list(xs), (case((3,), (2, 2)), case((), tests=FEW))),
    # Cut in other ways by tests/parallel; vmap moves the cut axis, which batched rows can't have.
    moving(sharding_constraint_p, lambda x, sharding: x, (
        case((4, 3), sharding=CUT, tests="eager jit grad"),
        case((2,), sharding=CUT, tests="eager jit"))),
    moving(barrier.name_p, lambda x, name: x, (case((3,), name="here"), case((), name="b"))),
    moving(convert.bitcast_regroup_p, regroup, (
        case((3,), new_dtype=np.dtype("uint8"), draw=any_integers),
        case((2, 3), new_dtype=np.dtype("uint16"), draw=any_integers)),
        dtypes=(np.dtype("int32"), F64), result=lambda d, p: p["new_dtype"]),
    moving(convert.bitcast_regroup_p, regroup, (
        case((3, 4), new_dtype=F32, draw=any_integers), case((4,), new_dtype=np.dtype("int32"))),
        dtypes=(np.dtype("uint8"), np.dtype("int8")), result=lambda d, p: p["new_dtype"],
        name="bitcast_regroup to wider"),
]  # fmt: skip

# ---- reductions and cumulative ops


def over(function):
    return lambda x, axes: function(x, axis=tuple(axes))


def reduction_cases(draw=SIGNED):
    return (
        case((7,), draw=draw, axes=(0,)), case((3, 4), draw=draw, axes=(0,)),
        case((2, 3, 4), draw=draw, axes=(0, 2)), case((2, 3), draw=draw, axes=(1,)),
        case((2, 3), draw=draw, axes=(), tests=FEW),
        case((5, 67), draw=draw, axes=(1,), tests=FEW),
        case((67, 5), draw=draw, axes=(0,), tests=FEW),
        case((0, 3), draw=draw, axes=(0,), tests=FEW),
        case((2, 0), draw=draw, axes=(0,), tests=FEW),
    )  # fmt: skip


def reducer(prim, oracle, accepted, draw=SIGNED, **rest):
    return Row(prim=prim, oracle=oracle, dtypes=accepted, cases=reduction_cases(draw), **rest)


def positions_of(prim, function):
    kinds = ((7,), 0, "int32"), ((3, 4), 0, "int8"), ((2, 3, 4), 1, "int64")
    cases = [case(s, axes=(k,), index_dtype=np.dtype(d), draw=Domain(-4, 4)) for s, k, d in kinds]
    return Row(prim=prim, oracle=lambda x, axes, index_dtype: function(x, axis=axes[0]),
               dtypes=REAL, cases=tuple(cases), exact=True, ulps=0, jit_ulps=0,
               result=lambda d, p: p["index_dtype"])  # fmt: skip


def along(function):
    def oracle(x, axis, reverse):
        if not reverse:
            return function(x, axis)
        return np.flip(function(np.flip(x, axis), axis), axis)

    return oracle


def running(prim, function, accepted, draw=SIGNED, **rest):
    cases = [case(s, axis=k, reverse=b, draw=draw, tests=t)
             for s, k, b, t in (((5,), 0, False, None), ((2, 3), 1, True, None),
                                ((3, 4), 0, False, None), ((0, 2), 0, False, FEW),
                                ((2, 67), 1, False, FEW), ((67, 2), 0, True, FEW))]  # fmt: skip
    return Row(prim=prim, oracle=along(function), dtypes=accepted, cases=tuple(cases), **rest)


def lowest(dtype):
    return reduce.lowest(dtype).astype(dtype)


def highest(dtype):
    return reduce.highest(dtype).astype(dtype)


def many(function, start):
    """A reduction of integers of any dtype, one by one."""

    def oracle(x, axes):
        kept = [i for i in range(x.ndim) if i not in axes]
        y = np.transpose(x, (*kept, *axes))
        count = int(np.prod([x.shape[i] for i in axes], dtype=int))
        rows = y.reshape((*(x.shape[i] for i in kept), count))
        out = np.empty(rows.shape[:-1], object)
        for at in np.ndindex(*out.shape):
            total = start
            for e in rows[at]:
                total = function(total, int(e))
            out[at] = total
        if x.dtype == BOOL:
            return out.astype(object) % 2 == 1
        return np.where(out < 0, out + (1 << 64), out).astype(np.uint64).astype(x.dtype)

    return oracle


BITS = (BOOL, *INTEGERS)
REDUCTIONS = [
    reducer(base.sum_p, over(np.sum), NUMBERS, atol=16, jit_ulps=16, jit_atol=16),
    reducer(reduce.prod_p, over(np.prod), NUMBERS, Domain(0.6, 1.4), ulps=64, jit_ulps=64),
    Row(prim=reduce.max_p, oracle=lambda x, axes: np.max(x, axis=axes, initial=lowest(x.dtype)),
        dtypes=(F32, F64, BOOL, *INTEGERS, *COMPLEX), cases=reduction_cases(), exact=True),
    Row(prim=reduce.min_p, oracle=lambda x, axes: np.min(x, axis=axes, initial=highest(x.dtype)),
        dtypes=(F32, F64, BOOL, *INTEGERS, *COMPLEX), cases=reduction_cases(), exact=True),
    Row(prim=reduce.max_p, name="reduce_max of small floats", oracle=over(np.max),
        dtypes=FLOATS[:-2], cases=reduction_cases()[:4]),
    reducer(reduce.and_p, many(lambda x, y: x & y, -1), BITS, any_integers, exact=True),
    reducer(reduce.or_p, many(lambda x, y: x | y, 0), BITS, any_integers, exact=True),
    reducer(reduce.xor_p, many(lambda x, y: x ^ y, 0), BITS, any_integers, exact=True),
    positions_of(reduce.argmax_p, np.argmax), positions_of(reduce.argmin_p, np.argmin),
    running(cumulative.cumsum_p, np.cumsum, NUMBERS, atol=16, jit_ulps=32, jit_atol=32),
    running(cumulative.cumprod_p, np.cumprod, NUMBERS, Domain(0.6, 1.4), ulps=32, jit_ulps=64),
    running(cumulative.cummax_p, np.maximum.accumulate, REAL),
    running(cumulative.cummin_p, np.minimum.accumulate, REAL),
    running(cumulative.cumlogsumexp_p, np.logaddexp.accumulate, FLOATS, atol=16, ulps=16,
            jit_atol=32, jit_ulps=32),
]  # fmt: skip

# ---- contractions and windows


def dot(lhs, rhs, dimension_numbers, preferred_element_type):
    (lc, rc), (lb, rb) = dimension_numbers
    left = list(range(lhs.ndim))
    right = list(range(lhs.ndim, lhs.ndim + rhs.ndim))
    for i, j in zip((*lc, *lb), (*rc, *rb), strict=True):
        right[j] = left[i]
    out = [left[i] for i in lb]
    out += [i for k, i in enumerate(left) if k not in (*lc, *lb)]
    out += [i for k, i in enumerate(right) if k not in (*rc, *rb)]
    return np.einsum(lhs, left, rhs, right, out)


def dots(lhs, rhs, contract_=((), ()), batch=((), ()), preferred=None, tests=None):
    numbers = (contract_, batch)
    return case(lhs, rhs, draw=SMALL, tests=tests, dimension_numbers=numbers,
                preferred_element_type=preferred)  # fmt: skip


def wide_result(dtype, params):
    return params["preferred_element_type"] or dtype


def convolutions():
    found = []
    for i, (lhs, rhs, kw) in enumerate(CONVOLUTIONS.values()):
        rank = len(lhs) - 2
        kw = conv_arguments(kw, rank)
        one = (1,) * rank
        holes = kw.get("rhs_dilation", one)
        reach = [dilated(k, d) for k, d in zip(rhs[2:], holes, strict=True)]
        pads = padtype_to_pads(lhs[2:], reach, kw["window_strides"], kw["padding"])
        params = {
            "window_strides": kw["window_strides"], "padding": pads,
            "lhs_dilation": kw.get("lhs_dilation", one), "rhs_dilation": holes,
            "dimension_numbers": conv_dimension_numbers(lhs, rhs, None),
            "feature_group_count": kw.get("feature_group_count", 1),
            "batch_group_count": kw.get("batch_group_count", 1), "preferred_element_type": None,
            "exact": i % 2 == 0, "operands": conv.ARRAYS[:2],
        }  # fmt: skip
        grad = i in (0, 2, 3, 7, 9, 10, 12)
        found.append(case(lhs, rhs, draw=SMALL, **params,
                          tests="eager jit dims" + " vmap grad" * grad))  # fmt: skip
    return tuple(found)


def convolve(lhs, rhs, **params):
    keys = ("window_strides", "padding", "lhs_dilation", "rhs_dilation", "feature_group_count",
            "batch_group_count")  # fmt: skip
    return conv_reference(lhs, rhs, {k: params[k] for k in keys})


def pooled(function, empty):
    """Windows one by one; padding and holes don't count."""

    def oracle(x, window_dimensions, window_strides, padding, base_dilation, window_dilation):
        ends = zip(x.shape, base_dilation, padding, strict=True)
        sizes = [dilated(n, b) + lo + hi for n, b, (lo, hi) in ends]
        reach = [dilated(w, d) for w, d in zip(window_dimensions, window_dilation, strict=True)]
        counts = [positions(n, r, s) for n, r, s in zip(sizes, reach, window_strides, strict=True)]
        out = np.empty(counts, x.dtype)
        for at in np.ndindex(*counts):
            held = []
            for k in itertools.product(*map(range, window_dimensions)):
                lines = zip(at, window_strides, k, window_dilation, padding, strict=True)
                place = [i * s + j * d - lo for i, s, j, d, (lo, _) in lines]
                within = zip(place, base_dilation, x.shape, strict=True)
                if all(p >= 0 and p % b == 0 and p // b < n for p, b, n in within):
                    held.append(x[tuple(p // b for p, b in zip(place, base_dilation, strict=True))])
            out[at] = function(held) if held else empty(x.dtype)
        return out

    return oracle


def window_params(window, strides=None, padding=None, base=None, holes=None):
    one = (1,) * len(window)
    return {"window_dimensions": window, "window_strides": strides or one,
            "padding": padding or ((0, 0),) * len(window), "base_dilation": base or one,
            "window_dilation": holes or one}  # fmt: skip


WINDOWS = (
    ((7,), window_params((3,), (2,))),
    ((5, 4), window_params((2, 3), (1, 2), ((1, 0), (1, 1)))),
    ((2, 6), window_params((1, 2), (1, 3), ((0, 0), (2, -1)), (1, 2), (1, 2))),
    ((2, 5), window_params((1, 2))),
    ((2, 6), window_params((1, 5), (1, 1), ((0, 0), (4, -2)), (1, 2))),
    ((3, 4), window_params((2, 3), (1, 2), ((-1, 1), (2, 2)), (3, 3))),
)
POOLS = [
    Row(prim=prim, oracle=pooled(function, empty), dtypes=accepted, jit_ulps=16, jit_atol=16,
        atol=8, exact=function is not sum,
        cases=tuple(case(s, draw=Domain(-3, 3), **p) for s, p in WINDOWS))
    for prim, function, empty, accepted in (
        (pooling.window_sum_p, sum, lambda d: 0, SOME),
        (pooling.window_max_p, max, lambda d: lowest(d), (*SOME[:6],)),
        (pooling.window_min_p, min, lambda d: highest(d), (*SOME[:6],)),
    )
]  # fmt: skip


def selected(x, select_prim, params):
    """For each window (its place): the place of its first extreme element, or None."""
    best = max if select_prim is ge else min
    places = np.arange(1, x.size + 1).reshape(x.shape)

    def chosen(held):
        found = best(x.ravel()[p - 1] for p in held)
        return next(p for p in held if x.ravel()[p - 1] == found)

    return pooled(chosen, lambda d: 0)(places, **params)


def gather_selected(g, x, select_prim, **params):
    return np.concatenate([[0], g.ravel()])[selected(x, select_prim, params)]


def scatter_selected(source, x, select_prim, **params):
    out = np.zeros(x.size + 1, source.dtype)
    np.add.at(out, selected(x, select_prim, params).ravel(), source.ravel())
    return out[1:].reshape(x.shape)


def selecting(prim, oracle, source_shapes):
    cases = tuple(
        case(Arg(g), Arg(s, smooth=False), select_prim=which, **p)
        for (s, p), g in zip(WINDOWS, source_shapes, strict=True) for which in (ge, le)
    )  # fmt: skip
    return Row(prim=prim, oracle=oracle, dtypes=(F32, F64, np.dtype("float16")), cases=cases,
               jit_ulps=16, jit_atol=16, atol=8)  # fmt: skip


COUNTS = [pooled(len, lambda d: 0)(np.zeros(s, int), **p).shape for s, p in WINDOWS]
CONTRACTIONS = [
    Row(prim=contract.dot_general_p, oracle=dot, dtypes=NUMBERS, ulps=32, atol=64, jit_ulps=64,
        jit_atol=128, result=wide_result, cases=(
            dots((3, 4), (4, 2), ((1,), (0,))), dots((5,), (5,), ((0,), (0,))),
            dots((2, 3, 4), (4, 2, 3), ((1,), (2,)), ((0,), (1,))),
            dots((3, 2, 4), (4, 5, 3), ((0, 2), (2, 0))), dots((2,), (3,)),
            dots((3, 4), (5, 4), ((1,), (1,)), tests=FEW), dots((), (2, 3), tests=FEW),
            dots((0, 3), (3, 2), ((1,), (0,)), tests=FEW),
            dots((2, 0), (0, 3), ((1,), (0,)), tests=FEW),
            dots((33, 19), (19, 37), ((1,), (0,)), tests=FEW),
            dots((19, 33), (37, 19), ((0,), (1,)), tests="jit"),
        )),
    Row(prim=contract.dot_general_p, name="dot_general to float32", oracle=dot, ulps=32, atol=64,
        dtypes=(np.dtype("float16"), dtypes.canonical("bfloat16"), *dtypes.FLOAT8[:2], F32),
        jit_ulps=64, jit_atol=64, result=wide_result, order=1,
        cases=(dots((3, 4), (4, 2), ((1,), (0,)), preferred=F32),)),
    Row(prim=contract.dot_general_p, name="dot_general to int32", oracle=dot, result=wide_result,
        dtypes=(np.dtype("int8"), np.dtype("uint8"), dtypes.canonical("int4")),
        cases=(dots((3, 4), (4, 2), ((1,), (0,)), preferred=I32),)),
    Row(prim=conv.conv_general_dilated_p, oracle=convolve, dtypes=SOME, ulps=32, atol=64,
        jit_ulps=64, jit_atol=128, cases=convolutions()),
    *POOLS,
    selecting(pooling.select_and_gather_add_p, gather_selected, [s for s, _ in WINDOWS]),
    selecting(pooling.select_and_scatter_add_p, scatter_selected, COUNTS),
]  # fmt: skip

# ---- sorting, Fourier transforms, random bits


def sorted_together(*xs, dimension, is_stable, num_keys):
    xs = [np.moveaxis(x, dimension, -1) for x in xs]
    out = [np.empty_like(x) for x in xs]
    for at in np.ndindex(*xs[0].shape[:-1]):
        rows = sorted(zip(*(x[at].tolist() for x in xs), strict=True),
                      key=lambda row: row[:num_keys])  # fmt: skip
        for k, o in enumerate(out):
            o[at] = [row[k] for row in rows]
    return [np.moveaxis(o, -1, dimension) for o in out]


def greatest(x, k):
    order = np.argsort(-x.astype(float), axis=-1, kind="stable")[..., :k]
    return [np.take_along_axis(x, order, -1), order]


def fourier(x, fft_type, fft_lengths):
    axes = tuple(range(x.ndim - len(fft_lengths), x.ndim))
    return getattr(np.fft, f"{fft_type.name.lower()}n")(x, s=fft_lengths, axes=axes)


def half(dtype, params):
    kind = params["fft_type"]
    if kind is fft.RFFT:
        return dtypes.to_complex(dtype)
    return dtypes.real_part(dtype) if kind is fft.IRFFT else dtype


KEYS = Domain(-2, 2, whole=True)
WORDS = (
    case((3,), (3,), (3,), (3,), draw=any_integers),
    case((), (), (2, 3), (2, 3), draw=any_integers),
)


def threefry(key0, key1, x0, x1):
    """Salmon et al., on Python integers."""
    mask = (1 << 32) - 1
    shape = np.broadcast_shapes(*(x.shape for x in (key0, key1, x0, x1)))
    out = np.empty((2, *shape), np.int64)
    for at in np.ndindex(*shape):
        k0, k1, a, b = (int(np.broadcast_to(x, shape)[at]) for x in (key0, key1, x0, x1))
        keys = [k0, k1, k0 ^ k1 ^ 0x1BD11BDA]
        a, b = (a + k0) & mask, (b + k1) & mask
        turns = [13, 15, 26, 6, 17, 29, 16, 24]
        for i in range(20):
            a = (a + b) & mask
            r = turns[i % 8]
            b = ((b << r | b >> (32 - r)) & mask) ^ a
            if i % 4 == 3:
                n = i // 4 + 1
                a, b = (a + keys[n % 3]) & mask, (b + keys[(n + 1) % 3] + n) & mask
        out[(0, *at)], out[(1, *at)] = a, b
    return list(out)


ORDERED = [
    Row(prim=sort.sort_p, oracle=sorted_together, dtypes=REAL, exact=True, ulps=0, jit_ulps=0,
        cases=(
            case((6,), dimension=0, is_stable=True, num_keys=1),
            case((2, 5), dimension=0, is_stable=True, num_keys=1),
            case(Arg((3, 5), KEYS, smooth=False), Arg((3, 5)), dimension=1, is_stable=True,
                 num_keys=1, tests="eager vmap jit dims"),
            case(Arg((6,), KEYS), Arg((6,), KEYS), Arg((6,)), dimension=0, is_stable=True,
                 num_keys=2, tests="eager vmap jit dims"),
            case((0,), dimension=0, is_stable=True, num_keys=1, tests=FEW),
        )),
    Row(prim=sort.top_k_p, oracle=greatest, dtypes=REAL, exact=True, ulps=0, jit_ulps=0,
        result=lambda d, p: [d, I32],
        cases=(case((6,), k=3), case((2, 5), k=5), case((3,), k=0, tests=FEW))),
    *(
        Row(prim=fft.fft_p, name=name, oracle=fourier, dtypes=accepted, ulps=64, atol=64,
            jit_ulps=64, jit_atol=64, result=half, cases=tuple(cases))
        for name, accepted, cases in (
            ("fft", COMPLEX, [case(s, fft_type=k, fft_lengths=n)
             for k in (fft.FFT, fft.IFFT) for s, n in (((5,), (5,)), ((2, 3, 4), (3, 4)))]),
            ("rfft", (F32, F64), [case(s, fft_type=fft.RFFT, fft_lengths=n)
             for s, n in (((5,), (5,)), ((2, 3, 4), (3, 4)))]),
            ("irfft", COMPLEX, [case(s, fft_type=fft.IRFFT, fft_lengths=n)
             for s, n in (((3,), (5,)), ((3,), (4,)), ((2, 3, 3), (3, 4)))]),
        )
    ),
    Row(prim=random_ops.threefry2x32_p, oracle=threefry, dtypes=(UINT32,), exact=True,
        result=lambda d, p: [UINT32, UINT32], cases=WORDS),
]  # fmt: skip

STRUCTURE = [*STRUCTURAL, *REDUCTIONS, *CONTRACTIONS, *ORDERED]
