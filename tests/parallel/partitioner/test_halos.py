"""Slices, pads and concatenations of cut axes: the values, what is sent, and random programs."""

import random

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.ir import interpret, typecheck
from funcgrad.core.sharding import AbstractMesh
from funcgrad.parallel import NamedSharding, P
from funcgrad.parallel.partitioner.halos import with_halos
from funcgrad.parallel.partitioner.partition import MOST_HALOS, _per_device, sent
from funcgrad.parallel.partitioner.propagate import propagate
from tests.op_samples_base import assert_close
from tests.parallel.partitioned import checked, counts, partitioned, run, sharded, traced

LINE = AbstractMesh((4,), ("x",))
GRID = AbstractMesh((2, 2), ("x", "y"))
ROWS, BOTH, MANY = (("x",), ()), (("x",), ("y",)), (("x", "y"), ())
X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(8, 12)).astype("float32")
ROW = X[0].nbytes


def leaves(f):
    return lambda *args: fg.tree.leaves(f(*args))


def check(f, mesh, cuts, *args):
    """The values are those of the whole; the per-device program."""
    program, jaxpr, values = partitioned(leaves(f), args, mesh, cuts)
    checked(program)
    want = interpret(jaxpr, np, *map(np.asarray, values))
    for g, w in zip(run(program, values), want, strict=True):
        assert_close(g, w, 64, 64, f"{jaxpr}\n{program}")
    return program


def grad(f):
    return fg.grad(lambda x: sum(fnp.sum(v**3) for v in fg.tree.leaves(f(x))))


def stencil(x):
    return x.at[1:-1].set(x[2:] - 2 * x[1:-1] + x[:-2])


def padded(x):
    p = fnp.pad(x, ((1, 1), (0, 0)))
    return p[2:] - 2 * p[1:-1] + p[:-2]


def wrapped(x):
    p = fnp.pad(x, ((1, 1), (0, 0)), "wrap")
    return p[2:] - 2 * p[1:-1] + p[:-2]


def plane(x):
    around = x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2]
    return x.at[1:-1, 1:-1].add(around - 4 * x[1:-1, 1:-1])


CASES = {
    # what is done, how many permutations, the rows that a device sends in them
    "shift": (lambda x: fnp.concatenate([x[1:], x[:1]]), 1, 1),
    "roll": (lambda x: fnp.roll(x, 1, 0), 1, 1),
    "roll back": (lambda x: fnp.roll(x, -3, 0), 1, 3),
    "roll a block": (lambda x: fnp.roll(x, 4, 0), 1, 4),
    "roll far": (lambda x: fnp.roll(x, 6, 0), 2, 4),
    "differences": (lambda x: (x[1:] - x[:-1]).sum(0), 1, 1),
    "stencil": (stencil, 2, 2),
    "padded": (padded, 2, 2),
    "wrapped": (wrapped, 2, 2),
    "steps": (lambda x: fnp.roll(fnp.tanh(fnp.roll(fnp.tanh(x), 1, 0)), 2, 0), 2, 3),
    "halves": (lambda x: fnp.concatenate([-x[8:], x[:8]]), 2, 8),
    "every second": (lambda x: x[::2] * x[1::2], 0, 0),
    "every fourth": (lambda x: (x[3::4] * 2).sum(0), 0, 0),
    "spread": (lambda x: fnp.repeat(x[::2], 2, 0), 0, 0),
    "ends": (lambda x: fnp.concatenate([fnp.ones((1, 3)), x[1:-1], fnp.zeros((1, 3))]), 0, 0),
    "set": (lambda x: x.at[2:5].set(1.0), 0, 0),
    "extremes": (lambda x: (x[1:].max(0), x[:-1].min(0)), 0, 0),
    "any": (lambda x: ((x[1:] > 0).any(0), (x[1:] > -9).all(0)), 0, 0),
    "product": (lambda x: (x[1:-1] @ fnp.ones((3, 2))).sum(0), 0, 0),
    "products of neighbours": (lambda x: x[1:].T @ x[:-1], 1, 1),
    "shapes": (lambda x: (x[1:].reshape(15, 3, 1).T * x[1:].T).sum((0, 2)), 0, 0),
    "broadcast": (lambda x: (x[1:, 0][:, None] * fnp.ones((15, 4))).sum(0), 0, 0),
    "what is whole": (lambda x: (x[1:] * fnp.arange(45.0).reshape(15, 3)).sum(0), 0, 0),
    "grad stencil": (grad(stencil), 4, 4),
    "grad padded": (grad(padded), 4, 4),
    "grad shift": (grad(lambda x: fnp.sin(fnp.roll(x, 1, 0))), 2, 2),
    "grad every second": (grad(lambda x: x[::2] * x[1::2]), 0, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_only_edges_are_sent(name):
    f, permutes, rows = CASES[name]
    program = check(f, LINE, [ROWS], X)
    found = counts(program)
    assert not found.get("all_gather")
    assert found.get("ppermute", 0) == permutes
    if not set(found) - {"ppermute"}:
        assert sent(program) == rows * ROW


@pytest.mark.parametrize(
    ("mesh", "cuts", "permutes", "numbers"),
    [(LINE, ROWS, 2, 24), (LINE, ((), ("x",)), 2, 16), (GRID, BOTH, 4, 20), (GRID, MANY, 2, 24)],
)
def test_a_stencil_of_two_axes(mesh, cuts, permutes, numbers):
    y = np.concatenate([Y, Y]) if cuts == ROWS else Y
    want = 24 if mesh is LINE and cuts == ROWS else numbers
    program = check(plane, mesh, [cuts], y)
    assert not counts(program).get("all_gather")
    assert counts(program)["ppermute"] == permutes
    assert sent(program) <= 4 * (want + 8)
    check(grad(plane), mesh, [cuts], y)


def test_in_loops_and_branches():
    def scanned(x):
        return lax.scan(lambda c, _: (plane(c) / 8, fnp.sum(c)), x, length=3)

    def branched(x):
        return lax.cond(x[0, 0] > 0, plane, lambda v: fnp.roll(v, 1, 0), x)

    def repeated(x):
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, plane(s[1])), (0, x))[1]

    for f in (scanned, branched, repeated, grad(scanned)):
        assert "all_gather" not in counts(check(f, GRID, [BOTH], Y))


def test_what_costs_less_is_taken():
    # The result can't be cut, so all of the operand is needed on all devices.
    program = check(lambda x: x[1:] - x[:-1], LINE, [ROWS], X)
    assert counts(program) == {"all_gather": 1}
    # One device has the row.
    assert counts(check(lambda x: x[3], LINE, [ROWS], X)) == {"psum": 1}


def test_sizes_that_devices_do_not_share():
    """What can't be cut is whole, and nothing is sent."""
    x = X[:10]
    program = check(stencil, LINE, [None], x)
    assert counts(program) == {}


@pytest.mark.parametrize("dtype", ["int32", "bool", "float16", "complex64", "uint8"])
def test_dtypes(dtype):
    x = (X * 9).astype(dtype)
    f = lambda x: fnp.concatenate([x[3:], x[1:4]])
    assert counts(check(f, LINE, [ROWS], x)) == {"ppermute": 2}
    if dtype not in ("bool", "complex64"):
        check(lambda x: (x[1:].max(0), (x[1:] * x[:-1]).sum(0), x[2:].min(0)), LINE, [ROWS], x)


def test_rows_without_meaning_do_not_matter():
    """NaN and infinities outside of what is taken."""
    x = X.copy()
    x[0], x[-1] = np.nan, np.inf
    inside = lambda x: (x[1:-1].sum(0), x[1:-1].max(0), x[1:-1].T @ x[1:-1])
    check(inside, LINE, [ROWS], x)
    check(lambda x: 1 / fnp.pad(x[1:-1], ((1, 1), (0, 0)), constant_values=2.0), LINE, [ROWS], x)
    check(lambda x: 7 // fnp.pad(x[1:-1], ((1, 1), (0, 0)), constant_values=2), LINE, [ROWS],
          np.where(np.abs(X) < 0.2, 1, (X * 9).astype("int32")).astype("int32") | 1)  # fmt: skip


def test_costs_are_shown():
    mesh = AbstractMesh((4096,), ("x",))
    x = fg.ShapeDtypeStruct((8192, 10), "float32", sharding=NamedSharding(mesh, P("x")))
    found = fg.jit(stencil).lower(x).cost_analysis()
    assert found["permute over x: count"] == 2
    assert found["permute over x: bytes sent"] == found["bytes sent"] == 2 * 40


# ---- random programs: each rewriting of them, whether or not it costs less


def passes(f, mesh, cuts, *args):
    """The per-device programs of all rewritings of a function's program, and its values."""
    jaxpr, args = traced(leaves(f), args)
    shardings = [None] * (len(args) - len(cuts)) + sharded(mesh, *cuts)
    want = interpret(jaxpr, np, *map(np.asarray, args))
    for _ in range(MOST_HALOS):
        plan = propagate(jaxpr, mesh, shardings)
        jaxpr = with_halos(plan)
        if jaxpr is None:
            return
        typecheck(jaxpr)
        for g, w in zip(interpret(jaxpr, np, *map(np.asarray, args)), want, strict=True):
            np.testing.assert_allclose(g, w, 1e-9, 1e-9, err_msg=f"{jaxpr}")
        program = checked(_per_device(propagate(jaxpr, mesh, shardings)))
        for g, w in zip(run(program, args), want, strict=True):
            np.testing.assert_allclose(g, w, 1e-9, 1e-9, err_msg=f"{jaxpr}\n{program}")
        yield program


def part(rng, n):
    """The start and end of a part of n rows."""
    a, b = sorted(rng.sample(range(n + 1), 2))
    return (a, b) if rng.random() < 0.5 else (min(1, n - 1) if a else 0, max(b, n - 1))


def random_step(rng, values):
    """One more value."""
    x = rng.choice(values)
    d = rng.randrange(2)
    n = x.shape[d]
    low, high = part(rng, n)
    at = tuple(slice(low, high) if i == d else slice(None) for i in range(2))
    kind = rng.randrange(12)
    if kind <= 2:
        e = part(rng, x.shape[1 - d])
        both = tuple(slice(low, high) if i == d else slice(*e) for i in range(2))
        return x[both if kind == 0 else at]
    if kind == 3:
        by = rng.randint(2, 3)
        return x[tuple(slice(low, high, by) if i == d else slice(None) for i in range(2))]
    if kind == 4:
        ends = (rng.randint(0, 2), rng.randint(0, 3))
        width = tuple(ends if i == d else (0, 0) for i in range(2))
        return fnp.pad(x, width, constant_values=rng.choice([0.0, 0.5]))
    if kind == 5:
        config = [(0, 0, 0), (0, 0, 0)]
        config[d] = (rng.randint(-1, 1), rng.randint(-1, 1), rng.randint(0, 1))
        return lax.pad(x, fnp.full((), 0.25, x.dtype), config) if n > 2 else x
    if kind == 6:
        others = [v for v in values if v.shape[1 - d] == x.shape[1 - d]]
        return fnp.concatenate([x, rng.choice(others)], d)
    if kind == 7:
        return fnp.roll(x, rng.randint(-n, n), d)
    if kind == 8:
        return fnp.concatenate([x[at], fnp.sin(x[at])], d)
    if kind == 9:
        small = [v for v in values if all(a <= b for a, b in zip(v.shape, x.shape, strict=True))]
        u = rng.choice(small)
        starts = [rng.randint(0, b - a) for a, b in zip(u.shape, x.shape, strict=True)]
        return lax.dynamic_update_slice(x, u, starts)
    same = [v for v in values if v.shape == x.shape]
    if kind == 10:
        return x * rng.choice(same) + fnp.cos(rng.choice(same))
    return rng.choice([fnp.sin, fnp.tanh, lambda v: v.T.T * 2, lambda v: v + v[:, :1]])(x)


def random_program(seed, steps=9):
    """A function of two arrays: random steps, then results of which some are reduced."""

    def f(x, y):
        rng = random.Random(seed)
        values = [x, y]
        for _ in range(steps):
            v = random_step(rng, values)
            if 0 < v.size <= 1500:
                values.append(v)
        outs = []
        for v in values[2:]:
            how = rng.randrange(5)
            if how < 3 and v is not values[-1]:
                continue
            outs.append([v, v.sum(0), v.max(1), v.T @ v, v][how])
        return outs or [values[-1]]

    return f


SHAPES = [(8, 8), (8, 4), (16, 8)]


def random_case(seed):
    rng = random.Random(seed)
    mesh, cuts = rng.choice(
        [(LINE, [ROWS]), (LINE, [((), ("x",))]), (GRID, [BOTH]), (GRID, [MANY])]
    )
    shape = rng.choice(SHAPES)
    numbers = np.random.default_rng(seed)
    x, y = (numbers.uniform(-1, 1, shape) for _ in range(2))
    f = random_program(seed)
    if seed % 3 == 2:
        plain = f
        f = fg.grad(lambda x, y: sum(fnp.sum(fnp.sin(v)) for v in plain(x, y)), (0, 1))
    return f, mesh, [*cuts, rng.choice([cuts[0], None])], x, y


@pytest.mark.sampled(2)
@pytest.mark.parametrize("start", range(0, 60, 10))
def test_random_programs(start, request):
    more = 30 if request.config.getoption("--slow") else 1
    tried = 0
    for seed in range(start * more, (start + 10) * more):
        tried += len(list(passes(*random_case(seed))))
    assert tried
