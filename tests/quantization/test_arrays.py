"""Products with quantized arrays: integers against an oracle in int64, and what passes jit, loops,
devices and files."""

import re
from dataclasses import replace

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad import quantization as q
from funcgrad.core.ir import sub_jaxprs
from funcgrad.io.checkpoints import load, save
from funcgrad.io.weights import load_safetensors
from funcgrad.transforms.weights.applied import with_weights

RNG = np.random.default_rng(0)


def normal(*shape):
    return fnp.asarray(RNG.standard_normal(shape), "float32")


def eqns(jaxpr):
    for e in jaxpr.eqns:
        yield e
        for j in sub_jaxprs(e):
            yield from eqns(j)


@pytest.mark.parametrize("kind", ["random", "extremes"])
@pytest.mark.parametrize("activations", ["dynamic", "static"])
@pytest.mark.parametrize("zero", [-128, -37, 1, 127])
def test_integer_products_against_int64(kind, activations, zero):
    k = 1000
    if kind == "extremes":
        w = fnp.asarray(np.where(RNG.random((k, 5)) < 0.5, -1, 1), "float32")
        x = fnp.asarray(np.where(RNG.random((3, k)) < 0.9, 1, -1), "float32")
    else:
        w, x = normal(k, 5), normal(3, k)
    array = replace(q.quantize_int(w), activations=activations)
    if activations == "static":
        shape = (1, 1)
        array = replace(
            array, x_scale=fnp.full(shape, 0.01, "float32"), x_zero=fnp.full(shape, float(zero))
        )
    got = fg.jit(with_weights(lambda p, x: x @ p))(array, x)
    codes, x64 = np.asarray(array.codes).astype(np.int64), np.asarray(x)
    if activations == "static":
        s = np.float32(0.01)
        xq = np.clip(np.round(x64 / s) + np.float32(zero), -128, 127).astype(np.int64)
        sums = (xq - zero) @ codes
        want = sums.astype(np.float32) * (s * np.asarray(array.scale))
    else:
        s = np.abs(x64).max(1, keepdims=True) / np.float32(127)
        sums = np.round(x64 / s).astype(np.int64) @ codes
        want = sums.astype(np.float32) * (s * np.asarray(array.scale))
    np.testing.assert_array_equal(got, want)


PRODUCTS = {
    "plain": ((16, 8), (-2,), lambda w, x: x @ w),
    "left": ((8, 16), (-1,), lambda w, x: (w @ x.T).T),
    "transposed": ((8, 16), (-1,), lambda w, x: x @ w.T),
    "heads": ((16, 2, 4), (-3,), lambda w, x: fnp.einsum("bd,dhk->hbk", x, w)),
    "of heads": ((2, 8, 4), (-3, -2), lambda w, x: x.reshape(5, 2, 8).transpose(1, 0, 2).swapaxes(
        0, 1).reshape(5, 16) @ w.reshape(16, 4)),
    "layer": ((3, 16, 8), (-2,), lambda w, x: x @ w[1]),
    "scan": ((3, 16, 16), (-2,), lambda w, x: lax.scan(lambda h, w: (h @ w, None), x, w)[0]),
    "experts": ((5, 16, 4), (-2,), lambda w, x: fnp.einsum("ed,edk->ek", x, w)),
    "experts behind": ((16, 5, 4), (-3,), lambda w, x: fnp.einsum("ed,dek->ek", x, w)),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_of_integers_wherever_the_axes_lie(name):
    shape, axes, f = PRODUCTS[name]
    w, x = normal(*shape), normal(5, 16)
    array = replace(q.quantize_int(w, axes=axes), activations="dynamic")
    run = with_weights(lambda p, x: f(p, x))
    found = eqns(fg.make_jaxpr(run)(array, x).jaxpr)
    products = [e for e in found if e.prim.name == "dot_general"]
    assert products
    assert all([a.aval.dtype for a in e.ins] == [np.int8, np.int8] for e in products)
    assert all(e.outs[0].aval.dtype == np.int32 for e in products)
    assert q.sqnr(f(array.dense(), x), run(array, x)) > 35
    np.testing.assert_allclose(fg.jit(run)(array, x), run(array, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activations", ["", "dynamic", "static"])
def test_vmap_over_inputs(activations):
    w, x = normal(16, 4), normal(3, 5, 16)
    array = replace(q.quantize_int(w), activations=activations)
    if activations == "static":
        array = replace(array, x_scale=fnp.full((1, 1), 0.03), x_zero=fnp.full((1, 1), 3.0))
    run = with_weights(lambda p, x: x @ p)
    got = fg.vmap(run, (None, 0))(array, x)
    want = fnp.stack([run(array, row) for row in x])
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("activations", ["dynamic", "static"])
def test_what_is_not_a_number_stays_so(activations):
    array = replace(q.quantize_int(normal(16, 4)), activations=activations)
    if activations == "static":
        array = replace(array, x_scale=fnp.full((1, 1), 0.03), x_zero=fnp.full((1, 1), 3.0))
    y = with_weights(lambda p, x: x @ p)(array, normal(3, 16).at[1, 2].set(np.nan))
    np.testing.assert_array_equal(fnp.isnan(y).all(1), [False, True, False])
    assert bool(fnp.isfinite(y[0]).all())


def test_scales_that_a_product_sums_over_make_it_dense():
    w, x = normal(16, 16), normal(5, 16)
    array = replace(q.quantize_int(w), activations="dynamic")
    run = with_weights(lambda p, x: x @ p.T)
    np.testing.assert_array_equal(run(array, x), x @ array.dense().T)


KINDS = {
    "int8": lambda w: replace(q.quantize_int(w), activations="dynamic"),
    "int4": lambda w: q.quantize_int(w, 4, 32),
    "int2": lambda w: q.quantize_int(w, 2, 64),
    "nf4": lambda w: q.quantize_nf4(w),
    "float8": lambda w: replace(q.quantize_float8(w), activations=True),
    "mxfp4": lambda w: q.quantize_mxfp4(w),
}


def model(p, x):
    h = lax.scan(lambda h, w: (fnp.tanh(h @ w), None), x, p["stack"])[0]
    return h @ p["w"], p["rows"][np.array([1, 2, 1])]


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_pass_jit_loops_devices_and_files(kind, tmp_path):
    dense = {"stack": normal(3, 64, 64) / 8, "w": normal(64, 5), "rows": normal(64, 8)}
    params, x = tree.map(KINDS[kind], dense), normal(4, 64)
    f = with_weights(model)
    want = model(q.dequantize(params), x)
    near = 20 if kind in ("int8", "float8") else 80
    compiled = fg.jit(f)
    for a, b in zip(compiled(params, x), want, strict=True):
        assert q.sqnr(b, a) > near
    assert fg.jit(f, donate_argnums=1)(params, x + 0)[0].shape == (4, 5)
    put = fg.device_put(params)
    save(tmp_path / "saved", params)
    loaded = load(tmp_path / "saved", params)
    for other in (put, loaded, tree.map(lambda x: x, params)):
        assert tree.structure(other) == tree.structure(params)
        tree.map(np.testing.assert_array_equal, other, params)
    # A checkpoint's file is read in place by names, too: its parts lie in the mapped file.
    parts = load_safetensors(tmp_path / "saved", flat=True)
    assert not any(part.flags.owndata or part.flags.writeable for part in parts.values())
    mapped = tree.map_with_path(lambda path, _: parts.pop(tree.keystr(path)), params)
    assert not parts
    for run in (f, compiled):
        tree.map(np.testing.assert_array_equal, run(mapped, x), run(params, x))


@pytest.mark.parametrize("kind", KINDS)
def test_dtype_and_rows(kind):
    w = normal(64, 64).astype("bfloat16")
    array = KINDS[kind](w)
    assert (array.dtype, array.dense().dtype) == ("bfloat16", "bfloat16")
    rows = with_weights(lambda p, i: p[i])(array, np.array([[3, 1]]))
    np.testing.assert_array_equal(rows, array.dense()[np.array([[3, 1]])])


def test_a_weight_only_array_is_sliced_by_layer():
    """The body of a loop reads the layer's codes: nothing dense of the whole stack is made."""
    array = q.quantize_int(normal(3, 64, 64), 4, 32)
    f = with_weights(lambda p, x: lax.scan(lambda h, w: (h @ w, None), x, p)[0])
    jaxpr = fg.make_jaxpr(f)(array, normal(4, 64)).jaxpr
    assert [e.prim.name for e in jaxpr.eqns] == ["scan"]
    assert not [e for e in eqns(jaxpr) if e.outs[0].aval.shape == (3, 64, 64)]


def test_bytes_of_all_parts():
    w = normal(128, 64)
    sizes = {k: f(w).nbytes for k, f in KINDS.items()}
    assert sizes == {
        "int8": 128 * 64 + 64 * 4, "int4": 128 * 32 + 4 * 64 * 5, "int2": 128 * 16 + 2 * 64 * 5,
        "nf4": 128 * 32 + 2 * 64 + 4 + 4, "float8": 128 * 64 + 64 * 4,
        "mxfp4": 128 * 32 + 4 * 64,
    }  # fmt: skip


FEW = {
    "int8": lambda w: q.quantize_int(w),
    "int4": lambda w: q.quantize_int(w, 4, 128),
    "nf4": lambda w: q.quantize_nf4(w),
    "mxfp4": lambda w: q.quantize_mxfp4(w),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("make", FEW.values(), ids=FEW)
def test_few_rows_times_a_large_weight(make):
    array, x = make(normal(2048, 2048)), normal(1, 3, 2048)
    run = fg.jit(with_weights(lambda p, x: x @ p))
    np.testing.assert_allclose(run(array, x), x @ array.dense(), rtol=1e-4, atol=1e-4)
    for rows in (3, 8):
        program = run.lower(array, fg.ShapeDtypeStruct((rows, 2048), "float32")).as_text("loops")
        arena = re.search(r"arena (\d+) bytes", program)
        assert int(arena[1]) < 1 << 22, rows  # the dense array has 1 << 24
    turned = with_weights(lambda p, x: p.T @ x[0].T)
    np.testing.assert_allclose(turned(array, x), run(array, x)[0].T, rtol=1e-4, atol=1e-4)
    grads = fg.grad(lambda x: (with_weights(lambda p, x: x @ p)(array, x) ** 2).sum())(x)
    want = fg.grad(lambda x: ((x @ array.dense()) ** 2).sum())(x)
    np.testing.assert_allclose(grads, want, rtol=1e-3, atol=1e-2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rows", [5, 8])
def test_more_rows_are_taken_some_at_a_time(rows):
    array, x = FEW["int4"](normal(2048, 2048)), normal(2, rows, 2048)
    f = with_weights(lambda p, x: x @ p)
    np.testing.assert_allclose(f(array, x[0]), x[0] @ array.dense(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        fg.jit(fg.vmap(f, (None, 0)))(array, x), x @ array.dense(), rtol=1e-4, atol=1e-4
    )


def test_what_a_zero_point_adds_is_known_before():
    w, x = q.quantize_int(normal(32, 24)), abs(normal(8, 32))
    static = replace(w.in_range(x.min(), x.max(), (-2,)), activations="static")
    f = with_weights(lambda p, x: x @ p)
    assert static.less.shape == (1, 24)
    assert "reduce_sum" not in str(fg.make_jaxpr(f)(static, x))
    anew = replace(static, less=None)
    assert "reduce_sum" in str(fg.make_jaxpr(f)(anew, x))
    np.testing.assert_array_equal(f(static, x), f(anew, x))
    # A part of what is summed has a part of it; a part of the results keeps theirs.
    halves = with_weights(lambda p, x: x[:, :16] @ p[:16] + x[:, 16:] @ p[16:])
    np.testing.assert_allclose(halves(static, x), f(anew, x), atol=0.1)
    left = with_weights(lambda p, x: x @ p[:, :8])
    np.testing.assert_allclose(left(static, x), f(anew, x)[:, :8], atol=0.1)
