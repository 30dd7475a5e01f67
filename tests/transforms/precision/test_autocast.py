"""autocast: dtypes in programs and their derivatives, values against float64, gradients."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import dtypes, lax, nn, optim, random
from funcgrad.core.ir import sub_jaxprs
from funcgrad.core.rewriting import called_program
from funcgrad.parallel import P, make_mesh, shard_map
from funcgrad.transforms.passes.simplify import simplify
from funcgrad.transforms.precision.lists import FLOAT32, usual
from tests.op_checks import arrays, function, operands
from tests.op_samples import ROWS
from tests.op_samples_base import F32, F64, as_list, widened

BF16, F16 = dtypes.canonical("bfloat16"), np.dtype(np.float16)
PRODUCTS = ("dot_general", "conv_general_dilated", "attention", "ragged_dot", "ragged_outer")


def equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        programs = [called_program(eqn)] if eqn.prim.call else sub_jaxprs(eqn)
        for inner in programs:
            yield from equations(inner)


def program(fun, *args):
    return list(equations(simplify(fg.make_jaxpr(fun)(*args).jaxpr)))


def dtypes_of(eqns, *ops):
    """Of the floats that ops of these names take."""
    return {a.aval.dtype for e in eqns if e.prim.name in ops for a in e.ins
            if dtypes.is_inexact(a.aval.dtype)}  # fmt: skip


def some(rng, *shape, scale=1.0):
    return fnp.array((scale * rng.normal(size=shape)).astype(np.float32))


def mlp(params, x):
    h = nn.relu(x @ params["up"] + params["bias"])
    return nn.log_softmax(nn.standardize(h) @ params["down"])


def loss(params, x):
    return -fnp.mean(mlp(params, x)[:, 0])


@pytest.fixture
def params(rng):
    return {"up": some(rng, 6, 8), "bias": some(rng, 8), "down": some(rng, 8, 4)}


# ---- which dtype


def test_lists(rng):
    """Products are narrow; what loses too much there is float32; the rest takes what it gets."""

    def f(w, x):
        y = x @ w
        return (
            fnp.exp(y),
            fnp.sum(y),
            y**3.5,
            lax.rsqrt(y),
            fnp.cumsum(y),
            fnp.tanh(y),
            y + 1,
            y + x,
        )

    eqns = program(fg.autocast(f), some(rng, 3, 3), some(rng, 3))
    assert dtypes_of(eqns, "dot_general", "tanh") == {BF16}
    wide = dtypes_of(eqns, "exp", "reduce_sum", "pow", "rsqrt", "cumsum")
    assert wide == {F32}
    sums = [e for e in eqns if e.prim.name == "add"]
    assert [e.outs[0].aval.dtype for e in sums] == [BF16, F32]


def test_results_have_the_dtypes_that_they_had(params, rng):
    x = some(rng, 5, 6)
    out = fg.autocast(mlp)(params, x)
    assert out.dtype == F32
    assert np.abs(np.asarray(out) - np.asarray(mlp(params, x))).max() < 0.1


def test_convolutions_attention_and_grouped_products_are_narrow(rng):
    image, kernel = some(rng, 1, 2, 5, 5), some(rng, 3, 2, 3, 3)
    q = some(rng, 1, 6, 2, 4)
    sizes = fnp.array([2, 3])

    def f(image, kernel, q, x, w):
        return (
            lax.conv(image, kernel, (1, 1), "SAME"),
            nn.dot_product_attention(q, q, q, bias=fnp.ones((1, 2, 6, 6)), is_causal=True),
            lax.ragged_dot(x, w, sizes),
        )

    args = image, kernel, q, some(rng, 5, 3), some(rng, 2, 3, 4)
    eqns = program(fg.autocast(f), *args)
    assert dtypes_of(eqns, "conv_general_dilated", "ragged_dot") == {BF16}
    (attention,) = [e for e in eqns if e.prim.name == "attention"]
    assert [a.aval.dtype for a in attention.ins[:4]] == [BF16, BF16, BF16, F32]
    for got, wanted in zip(fg.autocast(f)(*args), f(*args), strict=True):
        assert got.dtype == F32
        assert np.abs(np.asarray(got - wanted)).max() < 0.03 * np.abs(np.asarray(wanted)).max()


def test_explicit_dtypes_win(rng):
    x = some(rng, 3, 3)
    for f in (
        lambda x: x.astype("float64") @ x.astype("float64"),
        lambda x: x.astype("float16") @ x.astype("float16"),
        lambda x: fnp.exp(x.astype("bfloat16")),
        lambda x: x.astype("complex64") @ x.astype("complex64"),
        lambda x: x.astype("int32") @ x.astype("int32"),
    ):
        assert str(fg.make_jaxpr(fg.autocast(f))(x)) == str(fg.make_jaxpr(f)(x))
    preferred = partial(fnp.matmul, preferred_element_type="float32")
    (eqn,) = [e for e in program(fg.autocast(preferred), x, x) if e.prim.name == "dot_general"]
    assert eqn.ins[0].aval.dtype == BF16
    assert eqn.outs[0].aval.dtype == F32
    back = program(fg.autocast(lambda x: (x @ x).astype("float16")), x)
    assert [e.outs[0].aval.dtype for e in back][-1] == F16


def test_sums_of_products_in_float64(rng):
    x = some(rng, 4, 4)
    eqns = program(fg.autocast(lambda x: x @ x, "float16", accumulate="float64"), x)
    (eqn,) = [e for e in eqns if e.prim.name == "dot_general"]
    assert [eqn.ins[0].aval.dtype, eqn.outs[0].aval.dtype] == [F16, F64]


def test_numbers_that_the_narrow_dtype_cannot_hold_stay_wide(rng):
    x = some(rng, 3, 3)
    masked = fg.autocast(lambda x: fnp.where(x > 0, x @ x, -1e9), "float16")
    assert np.asarray(masked(x)).min() == np.float32(-1e9)
    small = fg.autocast(lambda x: (x @ x) + 1e-8, "float16")
    assert dtypes_of(program(small, x), "add") == {F32}
    scaled = fg.autocast(lambda x: (x @ x) * 0.5, "float16")
    assert dtypes_of(program(scaled, x), "mul") == {F16}


def test_float32_is_no_change(params, rng):
    x = some(rng, 5, 6)
    wanted = str(fg.make_jaxpr(mlp)(params, x))
    assert str(fg.make_jaxpr(fg.autocast(mlp, "float32"))(params, x)) == wanted


# ---- programs within


@fg.custom_jvp
def with_jvp(w, x):
    return w @ x


with_jvp.defjvp(lambda p, t: (with_jvp(*p), t[0] @ p[1] + p[0] @ t[1]))


@fg.custom_vjp
def with_vjp(w, x):
    return w @ x


with_vjp.defvjp(
    lambda w, x: (w @ x, (w, x)), lambda kept, ct: (fnp.outer(ct, kept[1]), ct @ kept[0])
)


def over_devices(w, x):
    mesh = make_mesh((2,), ("d",))
    rows = shard_map(lambda w, x: w @ x, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"))
    return rows(w, x)


HOLDERS = {
    "jit": lambda w, x: fg.jit(lambda w, x: w @ x)(w, x),
    "scan": lambda w, x: lax.scan(lambda h, _: (w @ h, None), x, None, length=3)[0],
    "scanned": lambda w, x: lax.scan(lambda h, v: (v @ h, None), x, fnp.stack([w, w]))[0],
    "while": lambda w, x: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, w @ c[1]), (0, x), max_steps=4
    )[1],
    "cond": lambda w, x: lax.cond(x[0] > 0, lambda: w @ x, lambda: x @ w),
    "checkpoint": fg.checkpoint(lambda w, x: fnp.tanh(w @ x)),
    "loop of checkpoint": lambda w, x: lax.fori_loop(
        0, 3, lambda i, h: fg.checkpoint(lambda h: fnp.tanh(w @ h))(h), x
    ),
    "loop in a loop": lambda w, x: lax.fori_loop(
        0, 2, lambda i, h: lax.fori_loop(0, 2, lambda j, h: fnp.tanh(w.T @ h), h), x
    ),
    "custom_jvp": with_jvp,
    "custom_vjp": with_vjp,
    "shard_map": over_devices,
}
by_holder = pytest.mark.parametrize("holder", HOLDERS.values(), ids=list(HOLDERS))


@by_holder
def test_programs_within_are_entered(holder, rng):
    w, x = some(rng, 4, 4, scale=0.3), some(rng, 4)
    for f in (
        fg.autocast(holder),
        fg.grad(lambda w, x: fnp.sum(fg.autocast(holder)(w, x)), (0, 1)),
        fg.autocast(fg.grad(lambda w, x: fnp.sum(holder(w, x)), (0, 1))),
    ):
        assert dtypes_of(program(f, w, x), "dot_general") == {BF16}


@by_holder
def test_values_and_gradients_within(holder, rng):
    w, x = some(rng, 4, 4, scale=0.3), some(rng, 4)

    def value(f, w, x):
        return fnp.sum(fnp.sin(f(w, x)))

    wanted = fg.value_and_grad(partial(value, holder), (0, 1))(w, x)
    for f in (
        fg.value_and_grad(partial(value, fg.autocast(holder)), (0, 1)),
        fg.jit(fg.value_and_grad(partial(value, fg.autocast(holder)), (0, 1))),
        fg.autocast(fg.value_and_grad(partial(value, holder), (0, 1))),
    ):
        for got, right in zip(fg.tree.leaves(f(w, x)), fg.tree.leaves(wanted), strict=True):
            assert got.dtype == F32
            assert np.abs(np.asarray(got - right)).max() < 0.04 * (
                1 + np.abs(np.asarray(right)).max()
            )


@by_holder
def test_idempotent(holder, rng):
    w, x = some(rng, 4, 4), some(rng, 4)
    once = fg.autocast(holder)
    assert str(fg.make_jaxpr(fg.autocast(once))(w, x)) == str(fg.make_jaxpr(once)(w, x))


def test_lanes_and_derivatives_compose(params, rng):
    x = some(rng, 3, 5, 6)
    by_lane = np.stack([np.asarray(fg.autocast(mlp)(params, row)) for row in x])
    for f in (
        fg.vmap(fg.autocast(mlp), (None, 0)),
        fg.autocast(fg.vmap(mlp, (None, 0))),
        fg.jit(fg.vmap(fg.autocast(mlp), (None, 0))),
    ):
        assert np.abs(np.asarray(f(params, x)) - by_lane).max() < 0.05
    t = fg.tree.map(fnp.ones_like, params)
    _, tangent = fg.jvp(lambda p: fg.autocast(mlp)(p, x[0]), (params,), (t,))
    _, wanted = fg.jvp(lambda p: mlp(p, x[0]), (params,), (t,))
    assert np.abs(np.asarray(tangent - wanted)).max() < 0.1
    hessian = fg.hessian(fg.autocast(lambda w: fnp.sum(fnp.tanh(x[0] @ w) ** 2)))(params["up"])
    exact = fg.hessian(lambda w: fnp.sum(fnp.tanh(x[0] @ w) ** 2))(params["up"])
    assert np.abs(np.asarray(hessian - exact)).max() < 0.05 * np.abs(np.asarray(exact)).max()


def test_gradients_against_finite_differences(params, rng):
    """Of the float64 function: that of mixed precision has steps."""
    x = some(rng, 5, 6)
    wide = fg.tree.map(lambda p: p.astype("float64"), params)
    got = fg.grad(fg.autocast(loss))(params, x)
    for name, p in wide.items():
        d = rng.normal(size=p.shape)
        f = lambda h: float(loss({**wide, name: p + h * d}, x.astype("float64")))
        slope = (f(1e-5) - f(-1e-5)) / 2e-5
        along = float(np.sum(np.asarray(got[name], np.float64) * d))
        assert abs(along - slope) < 0.02 * (1 + abs(slope)), name


@pytest.mark.parametrize("name", ["scan", "loop of checkpoint", "loop in a loop", "custom_jvp"])
def test_second_derivatives_within(name, rng):
    w, x = some(rng, 4, 4, scale=0.3), some(rng, 4)
    f = lambda w: fnp.sum(fnp.tanh(HOLDERS[name](w, x)))
    cast = fg.autocast(lambda w: fnp.sum(fnp.tanh(HOLDERS[name](w, x))))
    exact = np.asarray(fg.hessian(f)(w))
    twice = fg.jacrev(fg.grad(cast)) if name != "custom_jvp" else fg.hessian(cast)
    for hessian in (fg.hessian(cast), twice):
        assert np.abs(np.asarray(hessian(w)) - exact).max() < 0.05 * np.abs(exact).max()


# ---- each op


@pytest.mark.parametrize("compute", [BF16, F16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("row", [r for r in ROWS if F32 in r.dtypes and not r.check], ids=str)
def test_ops_take_narrow_values(row, compute, rng):
    """Each op's samples, as results of products, against its oracle in float64 on the same values:
    those that are computed in float32 by float32's bounds, others within half a unit of what the
    narrow format holds, and float32's sums."""
    unit = float(dtypes.finfo(compute).eps) / 2
    for case in row.cases_for("eager"):
        args = [np.asarray(x) for x in operands(row, case, rng, F32)]
        args = [x.astype(compute).astype(F32) if x.dtype == F32 else x for x in args]
        f = function(row, case)

        def narrow(x):
            if x.dtype != F32:
                return x
            return lax.dot_general(x, np.float32(1), (((), ()), ((), ())))

        outs = fg.autocast(lambda *xs: f(*map(narrow, xs)), compute)(*arrays(args))
        for got, wanted in zip(outs, fg.eval_shape(f, *arrays(args)), strict=True):
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        given = args if row.exact else [widened(x) for x in args]
        right = as_list(row.oracle(*given, **case.params))
        if usual(row.prim) == FLOAT32:
            for got, wanted in zip(outs, right, strict=True):
                row.close(np.asarray(got), wanted, str(row), row.ulps, row.atol)
            continue
        a, b = as_one(outs), as_one(right)
        finite = np.isfinite(b)
        assert np.array_equal(a[~finite], b[~finite], equal_nan=True)
        size = np.abs(b[finite])
        # Weights and scores within attention are narrow, too: their errors are added up.
        within = unit if row.prim.name.startswith("attention") else 1e-5
        most = unit * size + within * size.max(initial=0)
        assert (np.abs(a[finite] - b[finite]) <= most).all()


def as_one(outs):
    return np.concatenate([np.asarray(x).ravel().astype(np.complex128) for x in outs])


# ---- sums in float32


def test_cotangents_of_a_weight_in_a_loop_are_summed_in_float32(rng):
    """1000 times 1.0: in bfloat16 the sum would stay at 256."""
    x = fnp.ones(4)

    def total(w):
        return lax.scan(lambda c, _: (c + fnp.sum(w @ x), None), 0.0, None, length=1000)[0]

    for f in (fg.grad(fg.autocast(total)), fg.jit(fg.grad(fg.autocast(total)))):
        assert (np.asarray(f(fnp.ones((4, 4)))) == 1000).all()


def test_cotangents_of_a_weight_used_often_are_summed_in_float32():
    def total(w):
        return sum(fnp.sum(w @ fnp.ones(4)) for _ in range(300))

    assert (np.asarray(fg.grad(fg.autocast(total))(fnp.ones((4, 4)))) == 300).all()


def test_sums_of_activations_are_in_float32():
    f = fg.autocast(lambda w, x: fnp.sum(x @ w))
    assert float(f(fnp.ones((4, 1000)), fnp.ones(4))) == 4000
    assert float(f(fnp.ones((1000, 1)), fnp.ones(1000))) == 1000


# ---- one cast


def casts(eqns, shape):
    """How often something of a shape is made narrow."""
    made = [e.outs[0].aval for e in eqns if e.prim.name == "convert_element_type"]
    return sum(aval.dtype == BF16 and aval.shape == shape for aval in made)


@pytest.mark.parametrize("name", ["scan", "loop of checkpoint", "loop in a loop"])
def test_a_loop_casts_its_weight_once(name, rng):
    w, x = some(rng, 4, 4), some(rng, 4)
    f = fg.autocast(lambda w, x: fnp.sum(HOLDERS[name](w, x)))
    for g in (f, fg.grad(f)):
        jaxpr = simplify(fg.make_jaxpr(g)(w, x).jaxpr)
        assert casts(jaxpr.eqns, (4, 4)) == casts(equations(jaxpr), (4, 4)) == 1


def test_a_loop_of_unknown_length_casts_its_weight_once(rng):
    def f(w, x, n):
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, w @ c[1]), (0, x))[1]

    w, x = some(rng, 4, 4), some(rng, 4)
    jaxpr = simplify(fg.make_jaxpr(fg.autocast(f))(w, x, 3).jaxpr)
    assert casts(jaxpr.eqns, (4, 4)) == casts(equations(jaxpr), (4, 4)) == 1
    assert np.allclose(fg.autocast(f)(w, x, 2), w @ (w @ x), rtol=0.1, atol=0.1)
    tangent = fg.jvp(lambda w: fg.autocast(f)(w, x, 2), (w,), (w,))[1]
    assert np.allclose(tangent, 2 * (w @ (w @ x)), rtol=0.1, atol=0.2)


def test_a_weight_used_twice_is_cast_once(rng):
    w, x = some(rng, 4, 4), some(rng, 4)
    f = fg.autocast(lambda w, x: fnp.sum(w @ (w @ x)))
    for g in (f, fg.grad(f)):
        assert casts(program(g, w, x), (4, 4)) == 1


def test_a_linear_function_with_a_loop_can_be_transposed(rng):
    w, x = some(rng, 4, 4), some(rng, 4)
    f = fg.autocast(lambda w: lax.scan(lambda c, _: (c + w @ x, None), fnp.zeros(4), None, 5)[0])
    (back,) = fg.linear_transpose(f, w)(fnp.ones(4))
    assert np.allclose(back, 5 * np.broadcast_to(np.asarray(x), (4, 4)), rtol=0.01)


# ---- a model


@pytest.fixture
def gpt():
    examples = str(Path(__file__).parents[3] / "examples")
    sys.path.insert(0, examples)
    import gpt

    yield gpt
    sys.path.remove(examples)


def test_a_gpt_trains_as_in_float32(gpt):
    cfg = gpt.Config(32, context=16, width=16, heads=2, layers=1)
    codes = fnp.array(gpt.load_text()[0][:3000] % 32)
    params, optimizer = gpt.init_params(random.key(0), cfg), optim.adam(1e-2)

    def losses(loss):
        step, state, moments = fg.jit(fg.value_and_grad(loss)), params, optimizer.init(params)
        found = []
        for key in random.split(random.key(1), 12):
            value, grads = step(state, *gpt.batch_at(key, codes, 4, 16))
            updates, moments = optimizer.update(grads, moments, state)
            state = optim.apply_updates(state, updates)
            found.append(float(value))
        return np.array(found)

    wanted = losses(partial(gpt.loss_of, cfg=cfg))
    got = losses(fg.autocast(partial(gpt.loss_of, cfg=cfg)))
    assert wanted[-1] < wanted[0] - 0.4
    assert np.abs(got - wanted).max() < 0.01
