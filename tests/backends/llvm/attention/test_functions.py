"""Generated attention against the reference: dtypes, sizes, strides, windows, targets, threads."""

import ctypes

import ml_dtypes
import numpy as np
import pytest

from funcgrad.backends.llvm.attention import functions as module
from funcgrad.backends.llvm.drafts.cuts import PACKED, Cut
from funcgrad.backends.llvm.gemm.pack import Tile
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.runtime import pool
from funcgrad.backends.lower.attention import spans
from funcgrad.backends.program import AttentionSizes, AttentionStep, Ref, Strided
from funcgrad.transforms.attention.attention import attention_backward_p, attention_p
from funcgrad.transforms.attention.operands import wide_dtype

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": BF16}
TOLERANCE = {"float32": 2e-5, "float64": 1e-13, "float16": 4e-3, "bfloat16": 3e-2}
NAMES = ("out", "stats", "dq", "dk", "dv", "dbias")
JOINT = ("joint out", "joint dq", "joint dk", "joint dv")
# batch, queries, keys, heads, key heads, features, before, after, block, ranges
SHAPES = [
    (1, 1, 1, 1, 1, 1, None, None, 128, 1),
    (2, 3, 5, 2, 1, 4, None, None, 128, 1),
    (1, 70, 45, 4, 2, 64, None, None, 128, 1),
    (2, 129, 130, 1, 1, 20, None, 0, 128, 1),
    (1, 300, 700, 3, 1, 40, 30, 40, 256, 2),
    (1, 200, 250, 1, 1, 33, 20, -7, 128, 1),
    (1, 100, 10, 1, 1, 8, 5, 0, 128, 1),
    (1, 10, 300, 2, 2, 16, -5, 100, 128, 3),
    (1, 513, 1100, 1, 1, 128, None, 600, 512, 2),
    # Queries are met by several blocks of keys, some first by a later one.
    (2, 450, 430, 4, 2, 24, 60, 45, 256, 1),
    (1, 300, 600, 2, 1, 20, -150, 270, 128, 1),
]


def laid_out(x, layout):
    """The same values at other strides."""
    if layout == "heads first":
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    if layout == "features first":
        return np.ascontiguousarray(x.transpose(3, 0, 2, 1)).transpose(1, 3, 2, 0)
    if layout == "part":
        wide = np.zeros((*x.shape[:3], 3, x.shape[3]), x.dtype)
        wide[..., 1, :] = x
        return wide[..., 1, :]
    return x


def call(function, step, arrays, rest):
    """Run a step on arrays: names of `CALL` to arrays."""
    words = module.words(step)
    for name, x in {**arrays, **rest}.items():
        words[module.CALL.index(name)] = x.ctypes.data
    packed = (ctypes.c_int64 * len(words))(*words)
    function(ctypes.addressof(packed))


def strided(x):
    return Strided(Ref("arena"), tuple(s // x.itemsize for s in x.strides))


def spread(x):
    """As `strided`, with strides of 0 along axes of size 1."""
    return Strided(Ref("arena"), spans(x.shape, [s // x.itemsize for s in x.strides]))


def step_of(
    dtype, shape, ins, outs, lengths, scratch=None, op="attention", scale=0.3, shared=(1, 1), **more
):
    *sizes, before, after, block, ranges = shape
    refs = tuple(Ref("arena") for _ in lengths)
    return AttentionStep(
        op, np.dtype(dtype), AttentionSizes(*sizes), tuple(map(strided, ins)),
        tuple(map(strided, outs)), Ref("arena"), refs, scale, before, after,
        cut=Cut(block, ranges, shared, scratch), **more,
    )  # fmt: skip


def compiled(dtype, op="attention", pairs=False, target=None):
    """The function of an op."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(module.install(dtype, op, pairs, target))


def operand(rng, shape, kind, size):
    """Normal numbers; with a size whole ones times it, so that products are exact."""
    if size is None:
        return rng.normal(size=shape).astype(kind)
    return (size * rng.integers(-3, 4, size=shape)).astype(kind)


def both(shape, dtype, layout="plain", target=None, lengths=(), scale=0.3, size=None):
    """(got, wanted), by name: both directions, each by itself, then jointly.

    size: of queries and keys, which with it are whole numbers times it, as values are times 1 / 64
    """
    b, t, s, n, k, h, before, after, _, ranges = shape
    rng, kind = np.random.default_rng(sum(shape[:6])), np.dtype(DTYPES[dtype])
    wide = wide_dtype(kind)
    small = size and 1 / 64
    q, ct = (operand(rng, (b, t, n, h), kind, x) for x in (size, small))
    key, v = (operand(rng, (b, s, k, h), kind, x) for x in (size, small))
    params = {"scale": scale, "before": before, "after": after}
    out, stats = attention_p.impl(np, q, key, v, *lengths, **params)
    operands = q, key, v, out, stats, ct, *lengths
    wanted = [out, stats, *attention_backward_p.impl(np, *operands, bias_too=False, **params)]
    q, key, v, out, ct = (laid_out(x, layout) for x in (q, key, v, out, ct))
    found, joint = (
        [laid_out(np.full_like(x, np.nan), layout) for x in (q, q, key, v)] for _ in range(2)
    )
    room = b * n * t + ranges * b * n * (t + 32) * -(-h // 96) * 96
    scratch = np.full(room, np.nan, wide)
    got_stats = np.full((b, n, 2, t), np.nan, wide)
    rest = dict(zip(("query_lengths", "key_lengths"), lengths, strict=False))
    everything = {"q": q, "k": key, "v": v, "out": out, "ct": ct}

    def run(op, names, results, given, **more):
        ins = {name: everything[name] for name in names}
        room = None if op == "attention" else Ref("arena")
        cut = (*shape[:-1], 1) if op == "attention_joint" else shape
        step = step_of(kind, cut, ins.values(), results.values(), lengths, room, op, scale)
        call(compiled(dtype, op, target=target), step, ins | results, {**given, **more, **rest})

    cotangents = ("dq", "dk", "dv")
    run("attention", ("q", "k", "v"), {"out": found[0]}, {"stats": got_stats})
    results = dict(zip(cotangents, found[1:], strict=True))
    run("attention_backward", tuple(everything), results, {"stats": stats}, scratch=scratch)
    results = dict(zip(("out", *cotangents), joint, strict=True))
    run("attention_joint", ("q", "k", "v", "ct"), results, {"scratch": scratch})
    names, wanted = (*NAMES[:5], *JOINT), [*wanted, wanted[0], *wanted[2:]]
    got = [found[0], got_stats, *found[1:], *joint]
    return dict(zip(names, got, strict=True)), dict(zip(names, wanted, strict=True))


# shapes of bias and mask, for 2 items of a batch and 4 heads
PAIRS = {
    "bias": ((2, 4, 130, 300), None),
    "of heads": ((1, 4, 130, 300), None),
    "of all": ((1, 1, 130, 300), None),
    "mask": (None, (2, 1, 130, 300)),
    "of keys": ((2, 1, 1, 300), (2, 1, 1, 300)),
    "of queries": ((2, 4, 130, 1), (1, 4, 130, 1)),
    "numbers": ((1, 4, 1, 1), (1, 1, 130, 300)),
}


def with_pairs(name, dtype, layout="plain", target=None, ranges=2, scale=0.3, size=None):
    """(got, wanted), by name, of both directions with a bias or mask. size: see `both`"""
    rng, kind = np.random.default_rng(len(name)), np.dtype(DTYPES[dtype])
    wide, (bias, mask) = wide_dtype(kind), PAIRS[name]
    shape = (2, 130, 300, 4, 2, 16, None, 250, 128, ranges)
    small = size and 1 / 64
    q, ct = (operand(rng, (2, 130, 4, 16), kind, x) for x in (size, small))
    k, v = (operand(rng, (2, 300, 2, 16), kind, x) for x in (size, small))
    pairs = {}
    if bias is not None:
        pairs["bias"] = (3 * rng.normal(size=bias)).astype(wide)
        pairs["bias"].flat[::5] = -1e9
        pairs["bias"].flat[1::7] = -np.inf
    if mask is not None:
        # Some queries see nothing, and so do whole tiles.
        pairs["mask"] = rng.random(mask) > 0.5
        pairs["mask"][:, :, 7:9] &= mask[2] == 1
        pairs["mask"][..., 20:150] &= mask[3] == 1
    params = {"scale": scale, "before": None, "after": 250}
    out, stats = attention_p.impl(np, q, k, v, *pairs.values(), **params)
    operands = q, k, v, out, stats, ct, *pairs.values()
    back = attention_backward_p.impl(np, *operands, bias_too=bias is not None, **params)
    pairs = {a: laid_out(x, layout) for a, x in pairs.items()}
    given = {a: spread(x) for a, x in pairs.items()}
    forward, backward = (
        compiled(dtype, op, True, target) for op in ("attention", "attention_backward")
    )
    got = [np.full_like(x, np.nan) for x in (out, stats, *back)]
    step = step_of(kind, shape, (q, k, v), got[:1], (), scale=scale, **given)
    call(forward, step, {"q": q, "k": k, "v": v, "out": got[0], **pairs}, {"stats": got[1]})
    shared = (1, 1)
    if bias is not None:
        shared = tuple(2 if n == 1 else 1 for n in bias[:2])
        given |= {"dbias": spread(got[5]), "dbias_size": got[5].size}
        pairs["dbias"] = got[5]
    scratch = np.full(2 * 4 * 130 + ranges * 8 * 162 * 96, np.nan, wide)
    step = step_of(kind, shape, (q, k, v, out, ct), got[2:5], (), Ref("arena"),
                   "attention_backward", scale, shared, **given)  # fmt: skip
    arrays = {
        "q": q,
        "k": k,
        "v": v,
        "out": out,
        "ct": ct,
        **dict(zip(("dq", "dk", "dv"), got[2:5], strict=True)),
    }
    call(backward, step, arrays | pairs, {"stats": stats, "scratch": scratch})
    wanted = [out, stats, *back]
    return dict(zip(NAMES, got, strict=False)), dict(zip(NAMES, wanted, strict=False))


def check(got, wanted, dtype):
    for name in wanted:
        g, w = (np.asarray(x[name]).astype(np.float64) for x in (got, wanted))
        size = np.abs(w[np.isfinite(w)]).max(initial=1)
        tolerance = TOLERANCE[dtype] * size
        if name == "dbias":
            # Sums of so many terms that cancel: of a number a head, to 0.
            tolerance *= max(1.0, np.sqrt(2 * 4 * 130 * 300 / w.size) / 30)
        np.testing.assert_allclose(g, w, rtol=TOLERANCE[dtype], atol=tolerance, err_msg=name)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes(dtype, shape):
    check(*both(shape, dtype), dtype)


@pytest.mark.parametrize("keys", [1, 3, 4, 6, 9, 150])
def test_any_key_may_have_the_largest_score(keys):
    """Far above all others: if it were passed over, the exponentials would overflow."""
    rng = np.random.default_rng(keys)
    q = np.full((keys, 3, 1, 4), 20, np.float32)
    k = np.zeros((keys, keys, 1, 4), np.float32)
    k[np.arange(keys), np.arange(keys)] = 20
    v = rng.normal(size=k.shape).astype(np.float32)
    out, stats = np.empty_like(q), np.empty((keys, 1, 2, 3), np.float32)
    step = step_of("float32", (keys, 3, keys, 1, 1, 4, None, None, 128, 1), (q, k, v), (out,), ())
    call(compiled("float32"), step, {"q": q, "k": k, "v": v, "out": out}, {"stats": stats})
    here = v[np.arange(keys), np.arange(keys)]
    np.testing.assert_array_equal(out, np.broadcast_to(here[:, None], out.shape))


@pytest.mark.parametrize(
    "shape",
    [
        (1, PACKED + 57, 150, 1, 1, 3, None, None, 512, 1),
        (1, PACKED // 3, 140, 4, 1, 2, 70, 200, 128, 1),
    ],
    ids=["many queries", "many heads"],
)
def test_queries_that_are_packed_with_each_block(shape):
    check(*both(shape, "float32"), "float32")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bias_and_mask(dtype, name):
    ranges = 1 if PAIRS[name][0] and PAIRS[name][0][3] == 1 else 2
    check(*with_pairs(name, dtype, ranges=ranges), dtype)


@pytest.mark.parametrize("layout", ["heads first", "features first", "part"])
@pytest.mark.parametrize("name", ["bias", "mask"])
def test_strides_of_bias_and_mask(name, layout):
    check(*with_pairs(name, "float32", layout), "float32")


@pytest.mark.parametrize("layout", ["heads first", "features first", "part"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_strides(dtype, layout):
    check(*both((2, 90, 75, 4, 2, 24, None, 3, 128, 1), dtype, layout), dtype)


@pytest.mark.parametrize("ranges", [1, 2])
def test_lengths(ranges):
    """Also longer than the arrays, negative, and none at all."""
    shape = (5, 80, 300, 2, 2, 16, 100, 100, 128, ranges)
    lengths = (np.int32([80, 33, 0, 1000, 50]), np.int32([300, 77, 20, 999, -4]))
    got, wanted = both(shape, "float32", lengths=lengths)
    check(got, wanted, "float32")
    for name in ("out", "joint out"):
        for nothing in (got[name][2], got[name][4], got[name][1, 33:]):
            assert not nothing.any()
    assert np.isposinf(got["stats"][2, :, 0]).all()


@pytest.mark.parametrize("ranges", [1, 2])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(threads, ranges):
    shape = (2, 150, 1100, 2, 1, 24, None, 500, 128, ranges)
    pool.set_num_threads(1)
    wanted, _ = both(shape, "float32")
    pool.set_num_threads(threads)
    got, _ = both(shape, "float32")
    for name in wanted:
        np.testing.assert_array_equal(got[name], wanted[name])
    for name in ("of all", "mask"):
        got, _ = with_pairs(name, "float32")
        pool.set_num_threads(1)
        wanted, _ = with_pairs(name, "float32")
        pool.set_num_threads(threads)
        for x in wanted:
            np.testing.assert_array_equal(got[x], wanted[x])


@pytest.mark.long
@pytest.mark.sampled(3)
@pytest.mark.parametrize("cpu", ["x86-64", "haswell"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_other_targets(dtype, cpu):
    host = engine().target
    if not host.triple.startswith("x86_64") or not host.has("avx2"):
        pytest.skip("this processor does not run the code")
    features = "+avx,+avx2,+fma,+f16c" if cpu == "haswell" else ""
    target = engine(Target(host.triple, cpu, features))
    for shape in SHAPES[1:6]:
        check(*both(shape, dtype, target=target), dtype)
    for name in ("bias", "of keys"):
        check(*with_pairs(name, dtype, target=target), dtype)


@pytest.mark.long
def test_columns_that_do_not_divide_a_block(monkeypatch):
    """With three vectors, as some processors have, a block's last panel has few queries."""
    host = engine().target
    if not host.triple.startswith("x86_64"):
        pytest.skip("this processor does not run the code")
    plain = lambda target, fmt: Tile(8, 3, 128 // (8 * fmt.acc_bytes), 256, False, False)
    monkeypatch.setattr(Tile, "_plain", staticmethod(plain))
    # A target of its own: what is compiled for others has their tiles.
    target = engine(Target(host.triple, "x86-64", "+sse3"))
    for dtype in ("float32", "float64"):
        check(*both((1, 141, 306, 2, 1, 16, 27, None, 128, 2), dtype, target=target), dtype)
        check(*with_pairs("bias", dtype, target=target), dtype)


@pytest.fixture
def asked():
    """An engine for code of its own, and how many bytes of scratch memory that asks for."""
    host = engine().target
    if not host.triple.startswith("x86_64"):
        pytest.skip("this processor does not run the code")
    found, blocks = [], []

    def take(size):
        found.append(size)
        blocks.append(np.empty(size + 64, np.uint8))
        return blocks[-1].ctypes.data + -blocks[-1].ctypes.data % 64

    types = (
        ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64),
        ctypes.CFUNCTYPE(None, ctypes.c_void_p),
    )
    functions = types[0](take), types[1](lambda block: None)
    target = engine(Target(host.triple, "x86-64", "+sse4.1"))
    for name, function in zip(("take", "give"), functions, strict=True):
        target.bind(f"fg_scratch_{name}", ctypes.cast(function, ctypes.c_void_p).value)
    return target, found, functions


@pytest.mark.long
def test_tasks_ask_for_what_room_says(asked, monkeypatch):
    """All dtypes and ops, sums of dq that are tasks' own and of all, with pairs and without."""
    target, found, _ = asked
    rooms, run = [], call

    def known(function, step, *rest):
        rooms.append(module.room(step, target))
        run(function, step, *rest)

    monkeypatch.setitem(globals(), "call", known)
    for threads in (1, 2):
        pool.set_num_threads(threads)
        for dtype in DTYPES:
            for shape in (SHAPES[0], SHAPES[9], (1, PACKED + 57, 9, 2, 1, 3, None, 0, 512, 1)):
                check(*both(shape, dtype, target=target), dtype)
            check(*with_pairs("bias", dtype, target=target), dtype)
        assert sum(rooms) == sum(found)


def forward(q, k, v):
    """The result and the statistics, by themselves; the result, jointly."""
    b, t, n, h = q.shape
    shape = (b, t, k.shape[1], n, k.shape[2], h, None, None, 128, 1)
    out, joint, *more = (np.zeros_like(q) for _ in range(5))
    stats, scratch = np.zeros((b, n, 2, t), "f4"), np.zeros(b * n * t, "f4")
    step = step_of(np.float32, shape, (q, k, v), (out,), ())
    call(compiled("float32"), step, {"q": q, "k": k, "v": v, "out": out}, {"stats": stats})
    results = dict(zip(("out", "dq", "dk", "dv"), (joint, *more), strict=True))
    step = step_of(np.float32, shape, (q, k, v, q), results.values(), (), Ref("arena"),
                   "attention_joint")  # fmt: skip
    arrays = {"q": q, "k": k, "v": v, "ct": q} | results
    call(compiled("float32", "attention_joint"), step, arrays, {"scratch": scratch})
    return out, stats, joint


@pytest.mark.parametrize("place", ["q", "k", "v"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_reaches_what_it_should(place, value):
    """A query's own row; of keys and values, all rows that see them."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, 40, 1, 16)).astype("f4") for _ in "qkv")
    {"q": q, "k": k, "v": v}[place][0, 7, 0, 3] = value
    wanted, _ = attention_p.impl(np, q, k, v, scale=0.3, before=None, after=None)
    finite = np.isfinite(wanted)
    for out in forward(q, k, v)[::2]:
        np.testing.assert_array_equal(np.isnan(out), np.isnan(wanted))
        np.testing.assert_allclose(out[finite], wanted[finite], rtol=1e-4, atol=1e-5)


def test_large_scores():
    """Maxima are taken out: neither overflow nor loss."""
    rng = np.random.default_rng(1)
    q, k = (100 * rng.normal(size=(1, 50, 2, 32)).astype("f4") for _ in "qk")
    v = rng.normal(size=(1, 50, 2, 32)).astype("f4")
    out, stats, joint = forward(q, k, v)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    wanted, sums = attention_p.impl(np, *wide, scale=0.3, before=None, after=None)
    for found in (out, joint):
        np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(stats.sum(2), sums.sum(2), rtol=1e-5)


# Of queries and keys: scores are then far beyond those whose last place is worth 128.
LARGE = {"float32": [2.0**16, 2.0**58], "float64": [2.0**34, 2.0**300],
         "float16": [2.0**14], "bfloat16": [2.0**17, 2.0**58]}  # fmt: skip
SIZES = [(dtype, size) for dtype, sizes in LARGE.items() for size in sizes]


@pytest.mark.parametrize(("dtype", "size"), SIZES, ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        (2, 129, 130, 4, 2, 8, None, None, 128, 1),
        (2, 129, 130, 1, 1, 8, None, 0, 128, 1),
        (1, 300, 700, 2, 1, 8, 30, 40, 256, 2),
    ],
    ids=str,
)
def test_scores_whose_last_place_is_large(shape, dtype, size):
    """What is largest has the weight 1, what isn't 0, and equal ones share: no infinities, no
    NaN."""
    got, wanted = both(shape, dtype, scale=0.25, size=size)
    assert all(np.isfinite(x.astype("f8")).all() for x in wanted.values())
    check(got, wanted, dtype)
    if shape[0] == 2:
        lengths = np.int32([129, 70]), np.int32([77, 130])
        check(*both(shape, dtype, lengths=lengths, scale=0.25, size=size), dtype)


@pytest.mark.parametrize(("dtype", "size"), SIZES, ids=str)
@pytest.mark.parametrize("name", ["bias", "of all", "mask", "of keys"])
def test_large_scores_with_bias_and_mask(name, dtype, size):
    ranges = 1 if PAIRS[name][0] and PAIRS[name][0][3] == 1 else 2
    check(*with_pairs(name, dtype, ranges=ranges, scale=0.25, size=size), dtype)
