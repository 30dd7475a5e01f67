"""Backends by their names, and one from outside of the package."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.late import function
from funcgrad.backends.plain import PlainBackend, Planned
from funcgrad.backends.plan import plan
from funcgrad.backends.program import GemmStep, walk
from funcgrad.backends.target import Limits, Target
from funcgrad.core import backend
from funcgrad.core.backend import DOORS, door, register_backend
from funcgrad.ops.contract import dot_general_p
from funcgrad.parallel import P, make_mesh, shard_map
from funcgrad.transforms.passes.simplify import simplify

OUTSIDE = Target(
    "outside",
    alignment=256,
    limits=Limits(lanes=4, tasks=2, cheap=2, small=64, tries=1),
    rewrites={dot_general_p: function("funcgrad.backends.rewrites.products.dot")},
    steps={"product": function("funcgrad.backends.drafts.steps.product")},
)


RAN: list = []


class Traced(Planned):
    """Notes the steps that it runs."""

    def __call__(self, values, began=None):
        RAN[:] = [type(s) for s in walk(self.program.steps)]
        return super().__call__(values, began)

    def bind(self, communicators):
        return Traced(self.program, communicators)


class Outside(PlainBackend):
    """Planned for another target."""

    name = "outside"

    def compile(self, jaxpr, donated, name):
        return Traced(plan(simplify(jaxpr), donated, name, OUTSIDE))


@pytest.fixture
def outside(monkeypatch):
    own = {name: backend._BACKENDS[name] for name in ("numpy", "llvm", "plain")}  # no example's
    monkeypatch.setattr(backend, "_BACKENDS", own)
    loads = []
    register_backend("outside", lambda: loads.append(1) or Outside())
    assert not loads
    yield "outside"
    assert len(loads) == 1


def loss(w, x):
    h = fnp.tanh(x @ w)
    return fnp.mean(h**2) + fnp.max(x)


def test_programs_of_a_backend_from_outside(outside, rng):
    w, x = (rng.normal(size=s).astype("float32") for s in ((8, 5), (16, 8)))
    step = fg.value_and_grad(loss)
    got, wanted = fg.jit(step, backend=outside)(w, x), step(w, x)
    for g, v in zip(fg.tree.leaves(got), fg.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(g, v, rtol=1e-5, atol=1e-6)
    assert GemmStep in RAN
    lowered = fg.jit(step, backend=outside).lower(w, x)
    assert "gemm float32 16x5x8" in lowered.as_text("loops")
    assert lowered.compile().memory_analysis()["temp_size_in_bytes"] % 256 == 0


def test_control_flow_of_a_backend_from_outside(outside, rng):
    xs = rng.normal(size=(6, 4, 4)).astype("float32")

    def f(xs):
        last, ys = fg.lax.scan(lambda c, x: (fnp.tanh(c @ x), c.sum()), fnp.eye(4), xs)
        n = fg.lax.while_loop(lambda i: i < 5, lambda i: i + 2, 0)
        return last, ys, n, fg.lax.cond(n > 3, fnp.sin, fnp.cos, last)

    got = fg.jit(f, backend=outside, donate_argnums=0)(fnp.array(xs))
    for g, v in zip(got, f(xs), strict=True):
        np.testing.assert_allclose(g, v, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["numpy", "plain", "outside"])
def test_collectives_go_through_communicators(outside, name):
    mesh = make_mesh((4,), ("i",))
    f = shard_map(lambda x: fg.lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    assert fg.jit(f, backend=name)(fnp.arange(8.0)).tolist() == [12.0, 16.0]
    fg.jit(lambda x: x + 1, backend=outside)(1.0)


def test_a_name_is_taken_once(outside):
    for name in ("llvm", outside):
        with pytest.raises(ValueError, match=f"there is a backend '{name}' already"):
            register_backend(name, Outside)
    with pytest.raises(ValueError, match="no backend 'x': there are numpy, llvm, plain, outside"):
        fg.jit(lambda x: x, backend="x")(1.0)
    fg.jit(lambda x: x, backend=outside)(1.0)


@pytest.mark.parametrize("name", DOORS)
def test_doors_open(name):
    assert door(name).__name__ == DOORS[name].module
