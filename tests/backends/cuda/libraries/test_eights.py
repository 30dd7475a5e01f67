"""Products of floats of 8 bits: which become cuBLASLt's, with which scales, and what they compute.

The stand-in of the library refuses what the true one refuses: other layouts, other sizes.
"""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.backends.cuda.libraries.products import EIGHTS, products
from funcgrad.backends.program import CopyStep, GemmStep, HostStep, walk
from tests.backends.cuda.simulated import numbers, planned
from tests.backends.cuda.stand_in import on_fake

E4M3, E5M2 = EIGHTS
# name: an einsum, and shapes
CASES = {
    "rows": ("mk,kn->mn", (5, 32), (32, 48)),
    "in order": ("mk,nk->mn", (5, 32), (48, 32)),
    "both turned": ("km,kn->mn", (32, 5), (32, 48)),
    "turned result": ("mk,kn->nm", (16, 32), (32, 48)),
    "batch": ("bmk,bkn->bmn", (3, 5, 32), (3, 32, 16)),
    "heads": ("bqhd,bkhd->bhqk", (2, 5, 3, 16), (2, 32, 3, 16)),
    "several": ("abc,bcn->an", (6, 4, 8), (4, 8, 16)),
}


def product(spec, out="float32"):
    """An einsum as one `dot_general`."""
    left, right, to = spec.replace("->", ",").split(",")
    shared = [c for c in left if c in right]
    batch, inner = ([c for c in shared if (c in to) == kept] for kept in (True, False))
    numbers = tuple(tuple(tuple(map(side.index, axes)) for side in (left, right))
                    for axes in (inner, batch))  # fmt: skip
    made = [*batch, *(c for side in (left, right) for c in side if c not in shared)]
    order = [made.index(c) for c in to]
    return lambda x, y: fnp.transpose(
        lax.dot_general(x, y, numbers, preferred_element_type=out), order
    )


def eights(shape, kind):
    return np.asarray(fnp.asarray(numbers(*shape)).astype(kind))


def steps_of(program, kind=GemmStep):
    return [s for s in walk(program.program.steps) if isinstance(s, kind)]


def both(f, fake, gpu, *args):
    """A function's program on the simulator, and on the stand-in of the libraries."""
    made = planned(f, *args), on_fake(f, fake, gpu, *args)
    for program in made:
        assert not steps_of(program, HostStep)
    return made


@pytest.mark.parametrize("kinds", [(E4M3, E4M3), (E4M3, E5M2)], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("name", CASES)
def test_calls(name, kinds, fake, gpu):
    spec, left, right = CASES[name]
    x, y = eights(left, kinds[0]), eights(right, kinds[1])
    want = np.einsum(spec, x.astype("f4"), y.astype("f4"))
    for program in both(product(spec), fake, gpu, x, y):
        (step,) = steps_of(program)
        assert {step.dtype, step.b_dtype or step.dtype} == set(kinds)
        np.testing.assert_allclose(program([x, y])[0], want, rtol=1e-5, atol=1e-5)
    assert program.loaded.calls


@pytest.mark.parametrize("out", ["bfloat16", "float16", "float8_e5m2"])
def test_results_are_rounded_once(out, fake, gpu):
    spec, left, right = CASES["in order"]
    x, y = eights(left, E4M3), eights(right, E4M3)
    want = (x.astype("f4") @ y.astype("f4").T).astype(np.dtype(out) if out == "float16" else out)
    for program in both(product(spec, out), fake, gpu, x, y):
        (step,) = steps_of(program)
        assert step.out == ("float32" if out.startswith("float8") else out)
        got = program([x, y])[0]
        assert got.dtype == out
        np.testing.assert_allclose(got.astype("f4"), want.astype("f4"), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("kinds", "shapes"), [
    ((E5M2, E5M2), ((5, 32), (32, 16))), ((E4M3, E4M3), ((5, 32), (32, 10))),
    ((E4M3, E4M3), ((5, 20), (20, 16))), ((E4M3, E4M3), ((1, 32), (32, 16))),
    ((E4M3, np.dtype("float32")), ((5, 32), (32, 16))),
    (("float8_e4m3b11fnuz", E4M3), ((5, 32), (32, 16))),
])  # fmt: skip
def test_what_the_library_lacks_is_wider(kinds, shapes, fake, gpu):
    x, y = (eights(shape, kind) for shape, kind in zip(shapes, kinds, strict=True))
    for program in both(product("mk,kn->mn"), fake, gpu, x, y):
        assert all(s.dtype not in EIGHTS for s in steps_of(program))
        want = x.astype("f4") @ y.astype("f4")
        np.testing.assert_allclose(program([x, y])[0], want, rtol=1e-5, atol=1e-5)


def test_integers_of_four_bits(fake, gpu):
    x, y = (np.arange(-32, 32).reshape(8, 8) % 8 - 4 for _ in range(2))
    x, y = (np.asarray(fnp.asarray(v).astype("int4")) for v in (x, y))
    for program in both(product("mk,kn->mn", "int32"), fake, gpu, x, y):
        np.testing.assert_array_equal(program([x, y])[0], x.astype("i4") @ y.astype("i4"))


def test_an_older_gpu_has_none(gpu):
    """A kernel takes their place there."""
    spec, left, right = CASES["in order"]
    x, y = eights(left, E4M3), eights(right, E4M3)
    program = planned(product(spec), x, y)
    (step,) = steps_of(program)
    assert gpu.calls(step)
    gpu.driver.arch = "sm_80"
    assert not gpu.calls(step)
    program = planned(product(spec), x, y, is_call=gpu.calls)
    assert not steps_of(program)
    want = x.astype("f4") @ y.astype("f4").T
    np.testing.assert_allclose(program([x, y])[0], want, rtol=1e-5, atol=1e-5)


# ---- scales


def scaled(x, y, s, t):
    return product("mk,nk->mn")(x, y) * s * t


SCALED = {
    "two": (scaled, 2),
    "in front": (lambda x, y, s, t: (s * t) * product("mk,nk->mn")(x, y), 1),
    "a number": (lambda x, y, s, t: s * (0.5 * product("mk,nk->mn")(x, y)), 2),
    "reshaped": (lambda x, y, s, t: product("mk,nk->mn")(x, y).reshape(5, 6, 8) * s * t, 2),
    "computed": (lambda x, y, s, t: scaled(x, y, fnp.maximum(s, t) / 448, t), 2),
    "with a bias": (lambda x, y, s, t: fnp.maximum(
        scaled(x, y, s, t).astype("bfloat16") + s.astype("bfloat16"), 0), 2),
    "rows": (lambda x, y, s, t: scaled(x, y, s, t * fnp.arange(48.0)), 1),
    "three": (lambda x, y, s, t: scaled(x, y, s, t) * s, 2),
    "read twice": (lambda x, y, s, t: (lambda z: z * s + z)(product("mk,nk->mn")(x, y)), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALED)
def test_scales_are_pointers(name, fake, gpu):
    f, count = SCALED[name]
    x, y = eights((5, 32), E4M3), eights((48, 32), E5M2)
    s, t = np.float32(0.25), np.float32(3)
    for program in both(f, fake, gpu, x, y, s, t):
        (step,) = steps_of(program)
        assert len(step.tail.scales if step.tail else ()) == count
        assert all(len(p.tail.scales) == count for p in products(step))
        got = program([x, y, s, t])[0].astype("f4")
        want = np.asarray(f(x, y, s, t)).astype("f4")
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=1e-2)


def test_weights_are_read_where_they_are(fake, gpu):
    """Nothing copies an argument whose rows lie along what is contracted."""
    x, w = numbers(5, 32), eights((48, 32), E4M3)
    f = lambda x, w: nn.scaled_matmul(
        x.astype(E4M3)[None], w[None], fnp.ones((1, 5, 1)), fnp.ones((1, 48, 1))
    )
    for program in both(f, fake, gpu, x, w):
        (step,) = steps_of(program)
        assert "input" in {step.a.space, step.b.space}
        assert not steps_of(program, CopyStep)
        want = np.asarray(fnp.asarray(x).astype(E4M3)).astype("f4") @ w.astype("f4").T
        np.testing.assert_allclose(program([x, w])[0][0], want, rtol=1e-5, atol=1e-5)


# ---- training


@pytest.mark.parametrize("scaling", ["tensor", "row"])
def test_an_mlp_forward_and_backward(scaling, fake, gpu):
    params = {"up": numbers(32, 48), "bias": numbers(48), "down": numbers(48, 16)}
    leaves, structure = fg.tree.flatten(params)

    def f(x, y, *leaves):
        dot = lambda a, b: nn.fp8_dot(a, b, scaling=scaling)

        def loss(params):
            h = nn.relu(dot(x, params["up"]) + params["bias"])
            return fnp.mean((dot(h, params["down"]) - y) ** 2)

        value, grads = fg.value_and_grad(loss)(structure.unflatten(leaves))
        return value, *fg.tree.leaves(grads)

    args = [numbers(64, 32), numbers(64, 16), *map(np.asarray, leaves)]
    want = [np.asarray(v) for v in f(*args)]
    for program in both(f, fake, gpu, *args):
        gemms = steps_of(program)
        kinds = [{s.dtype, s.b_dtype or s.dtype} for s in gemms]
        assert kinds.count({E4M3}) == 2
        assert kinds.count({E4M3, E5M2}) == 3  # the gradient of x isn't wanted
        if scaling == "tensor":
            assert all(len(s.tail.scales) == 2 for s in gemms)
        for got, exact in zip(program(args), want, strict=True):
            np.testing.assert_allclose(got, exact, rtol=1e-3, atol=1e-3 * np.abs(exact).max())


def test_in_a_loop(fake, gpu):
    """Float8 values are carried, stacked and read by turns."""

    def f(w, x):
        def body(h, w):
            y = product("mk,nk->mn")(h, w)
            return (y / 32).astype(E4M3), fnp.max(y)

        h, tops = lax.scan(body, x.astype(E4M3), w)
        return h.astype("float32"), tops

    args = eights((2, 32, 32), E4M3), numbers(5, 32)
    want = [np.asarray(v) for v in f(*args)]
    for program in both(f, fake, gpu, *args):
        assert any(s.dtype in EIGHTS for s in steps_of(program))
        for got, exact in zip(program(list(args)), want, strict=True):
            np.testing.assert_allclose(got, exact, rtol=0.1, atol=1e-2)
