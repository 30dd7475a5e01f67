"""Random programs inside of shard_map, against the same steps done lane by lane without it.

A program is a list of steps over a list of values. `Device` does them as one device's function;
`Lanes` does them for all devices in turn, with plain sums and picks in place of collectives, and is
differentiated as any function.
"""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.ir import typecheck
from funcgrad.core.sharding import local_index
from funcgrad.parallel import P, make_mesh, shard_map

MESH = make_mesh((2, 3), ("i", "j"))
AXES = [("i",), ("j",), ("i", "j")]
SPECS = [P(), P("i"), P("j"), P(("i", "j")), P("i", "j"), P(None, "j")]
SHAPE = (6, 6)
PLACES = [dict(zip(("i", "j"), p, strict=True)) for p in product(range(2), range(3))]


class Device:
    """Steps as one device does them."""

    def local(self, f, *values):
        return f(*values)

    def psum(self, x, axes):
        return lax.psum(x, axes)

    def pmean(self, x, axes):
        return lax.pmean(x, axes)

    def gathered(self, x, axes):
        return fnp.sum(fnp.sin(lax.all_gather(x, axes)), 0)

    def scattered(self, x, axes):
        stacked = fnp.stack([x * (k + 1) for k in range(prod(MESH.shape[a] for a in axes))])
        return lax.psum_scatter(stacked, axes)

    def rotated(self, x, axes):
        n = MESH.shape[axes[0]]
        return lax.ppermute(x, axes[0], [(k, (k + 1) % n) for k in range(n - 1)])

    def numbered(self, x, axes):
        return x * (1.0 + lax.axis_index(axes))

    def broadcast(self, x, axes):
        return lax.pbroadcast(x, axes, 1)

    def marked(self, x, axes):
        return lax.pvary(x, axes)

    def called(self, kind, steps, values):
        run = lambda *vs: perform(self, steps, list(vs))
        if kind == "scan":
            turn = lambda carry, _: (run(carry, *values)[-1], None)
            return lax.scan(turn, values[-1], None, length=2)[0]
        if kind == "cond":
            # The predicate is the same everywhere.
            total = lax.psum(fnp.sum(values[0] * 0) + 1, ("i", "j"))
            return lax.cond(total > 0, lambda vs: run(*vs)[-1], lambda vs: vs[0], values)
        return {"jit": fg.jit, "checkpoint": fg.checkpoint}[kind](lambda *vs: run(*vs)[-1])(*values)

    def chosen(self, x, axes):
        odd = lax.axis_index(axes) % 2 == 1
        return lax.cond(odd, lambda v: fnp.sin(v), lambda v: v * 2.0, x)


class Lanes:
    """Steps as all devices do them: a value is a list, one for each place of the mesh."""

    def local(self, f, *values):
        return [f(*v) for v in zip(*values, strict=True)]

    def mates(self, place, axes):
        """The lanes that differ from a place along these axes alone, in their order."""
        others = [a for a in place if a not in axes]
        return [k for k, p in enumerate(PLACES) if all(p[a] == place[a] for a in others)]

    def number(self, place, axes):
        return self.mates(place, axes).index(PLACES.index(place))

    def each(self, x, axes, f):
        return [f(p, [x[k] for k in self.mates(p, axes)]) for p in PLACES]

    def psum(self, x, axes):
        return self.each(x, axes, lambda p, xs: sum(xs))

    def pmean(self, x, axes):
        return self.each(x, axes, lambda p, xs: sum(xs) / len(xs))

    def gathered(self, x, axes):
        return self.each(x, axes, lambda p, xs: sum(fnp.sin(v) for v in xs))

    def scattered(self, x, axes):
        return self.each(x, axes, lambda p, xs: sum(xs) * (self.number(p, axes) + 1))

    def rotated(self, x, axes):
        def take(p, xs):
            k = self.number(p, axes[:1])
            return xs[k - 1] if k else xs[0] * 0.0

        return self.each(x, axes[:1], take)

    def numbered(self, x, axes):
        return self.each(x, axes, lambda p, xs: xs[n := self.number(p, axes)] * (1.0 + n))

    def broadcast(self, x, axes):
        return self.each(x, axes, lambda p, xs: xs[1])

    def marked(self, x, axes):
        return x

    def called(self, kind, steps, values):
        run = lambda *vs: perform(self, steps, list(vs))
        if kind == "scan":
            carry = values[-1]
            for _ in range(2):
                carry = run(carry, *values)[-1]
            return carry
        return run(*values)[-1]

    def chosen(self, x, axes):
        def choose(p, xs):
            n = self.number(p, axes)
            return fnp.sin(xs[n]) if n % 2 else xs[n] * 2.0

        return self.each(x, axes, choose)


COLLECTIVES = ["psum", "pmean", "gathered", "scattered", "rotated", "numbered", "broadcast",
               "marked", "chosen"]  # fmt: skip
LOCAL = {
    "sin": lambda x, y: fnp.sin(x),
    "mul": lambda x, y: x * y * 0.5,
    "add": lambda x, y: x + y,
    "mix": lambda x, y: fnp.tanh(x) - y * 0.3,
}


def perform(how, steps, values):
    """The values, with what each step makes of earlier ones behind."""
    for kind, name, i, j, extra in steps:
        x, y = values[i % len(values)], values[j % len(values)]
        if kind == "local":
            new = how.local(LOCAL[name], x, y)
        elif kind == "collective":
            new = getattr(how, name)(x, extra)
        else:
            new = how.called(name, extra, [x, y])
        values.append(new)
    return values


places = st.integers(0, 50)
local = st.tuples(st.just("local"), st.sampled_from(sorted(LOCAL)), places, places, st.none())
collective = st.tuples(
    st.just("collective"), st.sampled_from(COLLECTIVES), places, places, st.sampled_from(AXES)
)
simple = st.one_of(local, collective)
call = st.tuples(
    st.just("call"), st.sampled_from(["scan", "cond", "jit", "checkpoint"]), places, places,
    st.lists(simple, min_size=1, max_size=3),
)  # fmt: skip
programs = st.lists(st.one_of(local, collective, call), min_size=1, max_size=6)
A = np.linspace(-1.0, 1.5, 36).reshape(SHAPE)
C = np.cos(np.arange(36.0)).reshape(SHAPE) / 2


def both(program, specs, check):
    """The program's sum over devices, by shard_map and without it."""
    parts = [s.cuts(2) for s in specs]
    sizes = [[MESH.extent(a) for a in c] for c in parts]
    # All parts get one shape: the smallest one, as arrays to be cut less are made smaller.
    shape = (1, 2)
    given = [x[: shape[0] * n, : shape[1] * m] for x, (n, m) in zip((A, C), sizes, strict=True)]

    def device(*args):
        return lax.psum(fnp.sum(perform(Device(), program, list(args))[-1]), ("i", "j"))

    def lanes(*args):
        split = [
            [x[local_index(MESH.shape, c, x.shape, p)] for p in PLACES]
            for x, c in zip(args, parts, strict=True)
        ]
        return sum(fnp.sum(v) for v in perform(Lanes(), program, split)[-1])

    f = shard_map(device, mesh=MESH, in_specs=tuple(specs), out_specs=P(), check_vma=check)
    return f, lanes, given


def close(got, want):
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-9)


@settings(max_examples=25)
@given(programs, st.lists(st.sampled_from(SPECS), min_size=2, max_size=2), st.booleans())
def test_values_and_gradients(program, specs, check):
    f, lanes, given = both(program, specs, check)
    closed = fg.make_jaxpr(fg.grad(f, (0, 1)))(*given)
    typecheck(closed.jaxpr)
    close([fg.jit(f)(*given)], [lanes(*given)])
    close(fg.jit(fg.grad(f, (0, 1)))(*given), fg.grad(lanes, (0, 1))(*given))
    tangents = tuple(np.sin(3 * x) for x in given)
    close(fg.jvp(f, given, tangents), fg.jvp(lanes, given, tangents))


@settings(max_examples=8)
@given(programs, st.lists(st.sampled_from(SPECS), min_size=2, max_size=2))
def test_second_order(program, specs):
    f, lanes, given = both(program, specs, True)

    def norm(f):
        return lambda *xs: sum(fnp.sum(g**2) for g in fg.grad(f, (0, 1))(*xs))

    close(fg.jit(fg.grad(norm(f), (0, 1)))(*given), fg.grad(norm(lanes), (0, 1))(*given))


@settings(max_examples=8)
@given(programs, st.lists(st.sampled_from(SPECS), min_size=2, max_size=2))
def test_gradients_taken_inside(program, specs):
    f, _, given = both(program, specs, True)
    body = lambda *a: lax.psum(fnp.sum(perform(Device(), program, list(a))[-1]), ("i", "j"))
    inside = shard_map(
        fg.grad(body, (0, 1)), mesh=MESH, in_specs=tuple(specs), out_specs=tuple(specs)
    )
    close(fg.jit(inside)(*given), fg.grad(f, (0, 1))(*given))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_each_collective_is_understood(name):
    for axes in AXES:
        f, lanes, given = both([("collective", name, 0, 0, axes)], [P("i"), P()], True)
        close([f(*given)], [lanes(*given)])
