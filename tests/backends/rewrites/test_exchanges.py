"""Collectives in planned programs, run by every backend on threads as ranks, against vmap."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.llvm.cpu import CPU
from funcgrad.backends.plain.interpret import run as run_program
from funcgrad.backends.plan import plan
from funcgrad.backends.program import ExchangeStep, LaneStep, walk
from funcgrad.core import context
from funcgrad.core.backend import backend
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.errors import CompileError
from funcgrad.ops.collective.reductions import all_gather_p, psum_p
from funcgrad.parallel.programs.overlap import done_p, start_p
from funcgrad.transforms.passes.simplify import simplify
from tests.parallel.threads import Ranks


def device_program(fun, mesh, *lanes):
    """The program of one device, for arrays whose first axes are the mesh's."""
    n = len(mesh)
    with context.scoped(axes=mesh):
        avals = [aval_of(np.zeros(x.shape[n:], x.dtype)) for x in lanes]
        jaxpr, consts = stage(lambda *args: fg.tree.leaves(fun(*args)), avals)
        assert not consts
        return simplify(jaxpr)


def mapped(fun, mesh, *lanes):
    """What vmap over the mesh's axes gives."""
    for name in reversed(mesh):
        fun = fg.vmap(fun, axis_name=name)
    return [np.asarray(x) for x in fg.tree.leaves(fun(*map(fnp.asarray, lanes)))]


def check(fun, mesh, *lanes, exact=True):
    """Each backend on threads, against vmap; the planned program."""
    lanes = [np.asarray(x) for x in lanes]
    jaxpr = device_program(fun, mesh, *lanes)
    ranks = Ranks(**mesh)
    with context.scoped(axes=mesh):
        planned = plan(jaxpr, [False] * len(lanes), "f", CPU)
        compiled = [
            backend(b).compile(jaxpr, (False,) * len(lanes), "f") for b in ("llvm", "numpy")
        ]
    flat = [x.reshape(ranks.size, *x.shape[len(mesh) :]) for x in lanes]
    wanted = [w.reshape(ranks.size, *w.shape[len(mesh) :]) for w in mapped(fun, mesh, *lanes)]
    runs = [
        lambda r, lookup: run_program(planned, [x[r] for x in flat], lookup),
        *(lambda r, lookup, c=c: c.bind(lookup)([x[r] for x in flat]) for c in compiled),
    ]
    for run in runs:
        got = ranks.run(run)
        for i, w in enumerate(wanted):
            g = np.stack([outs[i] for outs in got])
            assert g.dtype == w.dtype
            np.testing.assert_allclose(
                g.astype("complex128"), w.astype("complex128"), rtol=0 if exact else 1e-5, atol=1e-6
            )
    return planned


def exchanges(planned):
    return [s.kind for s in walk(planned.steps) if isinstance(s, ExchangeStep)]


def numbers(*shape, dtype="float32"):
    values = np.arange(np.prod(shape)) % 13 - 4
    return values.reshape(shape).astype(dtype)


MESH = {"i": 3}
X = numbers(3, 6, 2, 3)
COLLECTIVES = {
    "psum": lambda x: lax.psum(x, "i"),
    "pmax": lambda x: lax.pmax(x, "i"),
    "pmin": lambda x: lax.pmin(x, "i"),
    "all_gather": lambda x: lax.all_gather(x, "i"),
    "all_gather axis": lambda x: lax.all_gather(x, "i", axis=2),
    "all_gather tiled": lambda x: lax.all_gather(x, "i", axis=1, tiled=True),
    "psum_scatter": lambda x: lax.psum_scatter(x, "i", scatter_dimension=2),
    "psum_scatter tiled": lambda x: lax.psum_scatter(x, "i", scatter_dimension=0, tiled=True),
    "all_to_all": lambda x: lax.all_to_all(x, "i", 0, 2, tiled=True),
    "all_to_all same": lambda x: lax.all_to_all(x, "i", 0, 0, tiled=True),
    "all_to_all new": lambda x: lax.all_to_all(x, "i", 2, 0),
    "ppermute": lambda x: lax.ppermute(x, "i", [(0, 1), (1, 2)]),
    "axis_index": lambda x: x + lax.axis_index("i").astype("float32"),
    "fused": lambda x: fnp.sum(lax.all_gather(x * 2, "i", axis=1).T + 1) * lax.psum(x, "i"),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives(name):
    planned = check(COLLECTIVES[name], MESH, X)
    assert sum(isinstance(s, ExchangeStep | LaneStep) for s in walk(planned.steps)) <= 2


DTYPES = ["bool", "int8", "uint32", "int64", "float16", "bfloat16", "float64", "complex64", "int4",
          "float8_e5m2"]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    def fun(x):
        if dtype == "bool":
            return lax.all_gather(x, "i"), lax.pmax(x, "i"), lax.psum(x, "i")
        return lax.psum_scatter(x, "i"), lax.ppermute(x, "i", [(1, 0)]), lax.psum(x, "i")

    check(fun, MESH, numbers(3, 3, 2, dtype=fg.dtypes.canonical(dtype)))


def test_complex_extremes_gather():
    x = numbers(3, 4, dtype="complex64") * np.complex64(1 - 2j)
    assert exchanges(check(lambda x: lax.pmax(x, "i"), MESH, x)) == ["all_gather"]


def test_two_axes():
    mesh = {"a": 2, "b": 3}
    x = numbers(2, 3, 6)

    def fun(x):
        both = lax.psum(x, ("a", "b"))
        return both, lax.psum(x, "b"), lax.all_gather(x, "a"), x + lax.axis_index(("b", "a"))

    planned = check(fun, mesh, x)
    assert {c.axes: c.size for c in planned.comms} == {
        ("a", "b"): 6, ("b",): 3, ("a",): 2,
    }  # fmt: skip


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_exchanges_over_two_axes_are_one(names):
    shift = [(i, (i + 1) % 6) for i in range(5)]

    def fun(x):
        return lax.all_to_all(x, names, 0, 1, tiled=True), lax.ppermute(x, names, shift)

    planned = check(fun, {"a": 2, "b": 3}, numbers(2, 3, 6, 4))
    assert exchanges(planned) == ["all_to_all", "permute"]
    assert [(c.axes, c.size) for c in planned.comms] == [(names, 6)]


def test_axes_of_size_one_exchange_nothing():
    def fun(x):
        y = lax.all_gather(x, "o") + lax.psum(x, "o") + lax.axis_index("o").astype("float32")
        y = lax.all_to_all(y, "o", 0, 1, tiled=True) + lax.pmax(lax.ppermute(x, "o", []), "o")
        return y + lax.psum_scatter(x[None], "o"), lax.psum(x, ("o", "i"))

    planned = check(fun, {"o": 1, "i": 2}, numbers(1, 2, 4))
    assert [c.axes for c in planned.comms] == [("i",)]
    assert exchanges(planned) == ["all_reduce"]


def test_in_scan_while_and_cond():
    def fun(x):
        def step(c, row):
            c = c + lax.psum(row, "i")
            return c, lax.ppermute(c, "i", [(0, 1), (1, 2), (2, 0)])

        c, ys = lax.scan(step, x[0], x)
        n, c = lax.while_loop(
            lambda s: lax.pmax(s[0], "i") < 5, lambda s: (s[0] + 1, lax.pmin(s[1], "i") + 1), (0, c)
        )
        c = lax.cond(lax.psum(n, "i") > 3, lambda c: lax.psum(c, "i"), lambda c: c * 0, c)
        return c, ys

    check(fun, MESH, numbers(3, 4, 5), exact=False)


def test_no_turns():
    def fun(x):
        c, _ = lax.scan(lambda c, row: (c + lax.psum(row, "i"), None), x[:2].sum(0) * 0, x[:0])
        return lax.psum(c + x[0], "i")

    check(fun, MESH, numbers(3, 4, 5))


def test_order_is_the_programs():
    """Exchanges stay in order, whatever depends on them; unused ones are dropped, equal ones
    merged, on all ranks alike."""

    def fun(x, y):
        lax.psum(x * 3, "i")
        a = lax.all_gather(y, "i")
        b = lax.psum(x, "i")
        c = lax.pmax(y, "i") + lax.psum(x, "i")
        return b, c, fnp.sum(a)

    planned = check(fun, MESH, numbers(3, 4), numbers(3, 4) + 1)
    assert exchanges(planned) == ["all_gather", "all_reduce", "all_reduce"]
    assert [s.op for s in walk(planned.steps) if isinstance(s, ExchangeStep)][1:] == ["sum", "max"]


def test_empty_arrays_exchange_nothing():
    assert not exchanges(check(lambda x: lax.psum(x, "i"), MESH, numbers(3, 0, 2)))


def gathered(x, axis):
    return lax.all_gather(x, "i", axis=axis, tiled=True)


def of_no_elements(step):
    """A branch on a gathered array of no elements, decided by y."""
    return lambda x, y: lax.cond(
        y[0, 0] > 0, lambda x: step(x * 2), lambda x: step(x + 1), gathered(x, 1)
    )


EMPTY = {
    "product": lambda x, y: gathered(x, 1) @ gathered(x.T, 0),
    "product of booleans": lambda x, y: (gathered(x, 1) > 0) @ (gathered(x.T, 0) > 0),
    "with a vector": lambda x, y: gathered(x, 1) @ gathered(x.T[:, 0], 0),
    "sum": lambda x, y: fnp.sum(gathered(x, 1), 1),
    "prod": lambda x, y: fnp.prod(gathered(x, 1), 1),
    "reshape": lambda x, y: fnp.sum(gathered(x, 1).reshape(0, 3, 4), 0),
    "pad": lambda x, y: fnp.pad(gathered(x, 1), ((0, 0), (1, 2)), constant_values=3),
    "concatenate": lambda x, y: fnp.concatenate([gathered(x, 1), y], 1),
    "exchange": lambda x, y: lax.all_to_all(x, "i", 0, 1, tiled=True).T.sum(0),
    "cond": of_no_elements(lambda x: x),
    "cond of sums": of_no_elements(lambda x: fnp.sum(x, 1)),
    "cond of products": of_no_elements(lambda x: x @ x.T),
    "scan": lambda x, y: lax.scan(lambda c, r: (c + fnp.sum(r), r * 2), 0.0, gathered(x, 1)),
    "no turns": lambda x, y: lax.scan(lambda c, r: (c + fnp.sum(r), r), 0.0, gathered(x, 1).T),
    "while": lambda x, y: lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, gathered(x, 1))
    ),
    "scatter": lambda x, y: y.at[0, gathered(x, 1).reshape(-1).astype("int32")].add(1.0),
    "sorted": lambda x, y: fnp.sort(gathered(x, 1)) @ gathered(x, 1).T,
}


@pytest.mark.parametrize("name", EMPTY)
def test_what_is_made_of_no_elements(name):
    assert not exchanges(check(EMPTY[name], MESH, numbers(3, 6, 0), numbers(3, 6, 2)))


def test_collectives_in_two_parts():
    def fun(x):
        total = start_p.bind(x, prim=psum_p, axis_name=("i",), rest=())
        rows = start_p.bind(
            x, prim=all_gather_p, axis_name=("i",), rest=(("axis", 1), ("tiled", True))
        )
        return done_p.bind(total), done_p.bind(rows)

    assert exchanges(check(fun, MESH, X)) == ["all_reduce", "all_gather"]


def test_gradients():
    def fun(x):
        return fg.grad(lambda x: fnp.sum(lax.psum_scatter(fnp.sin(x), "i")))(x)

    check(fun, MESH, numbers(3, 3, 2), exact=False)


def compiled(fun, mesh, *lanes):
    with context.scoped(axes=mesh):
        jaxpr = device_program(fun, mesh, *lanes)
        return backend("llvm").compile(jaxpr, (False,) * len(lanes), "f")


def test_analysis_needs_no_communicators():
    def fun(x):
        y, _ = lax.scan(lambda c, _: (lax.psum(c, "i"), None), x, length=3)
        return lax.all_gather(y, "i")

    mesh = {"i": 4096}
    with context.scoped(axes=mesh):
        jaxpr, _ = stage(lambda x: [fun(x)], [aval_of(np.zeros(10, "float32"))])
        executable = backend("llvm").compile(simplify(jaxpr), (False,), "f")
    cost = executable.cost_analysis()
    assert cost["all_reduce count"] == 3
    assert cost["all_reduce bytes"] == 3 * 40
    assert cost["all_gather bytes"] == 4096 * 40
    assert cost["collective bytes"] == 3 * 40 + 4096 * 40
    assert executable.memory_analysis()["output_size_in_bytes"] == 4096 * 40
    assert "all_reduce sum over comm0 float32[10]" in executable.as_text("loops")


def test_unbound_programs_say_so():
    executable = compiled(lambda x: lax.psum(x, "i"), MESH, X)
    with pytest.raises(CompileError, match=r"exchanges data over the axes \('i',\): bind"):
        executable([X[0]])


def test_communicators_of_another_size():
    executable = compiled(lambda x: lax.psum(x, "i"), MESH, X)
    with pytest.raises(ValueError, match="compiled for 3 devices over .* has 2"):
        executable.bind(Ranks(i=2).lookup(0))


def test_a_programs_size_is_of_the_axes_it_is_compiled_under():
    """The same program for two meshes."""
    jaxpr = device_program(lambda x: lax.psum(x, "i"), {"i": 2}, X[:2])
    for n in (2, 3, 1):
        with context.scoped(axes={"i": n}):
            planned = plan(jaxpr, [False], "f", CPU)
        assert [c.size for c in planned.comms] == ([n] if n > 1 else [])


def test_failures_raise_what_the_communicator_says():
    executable = compiled(lambda x: (x + 1, lax.psum(x, "i")), MESH, X)

    def run(rank, lookup):
        def failing(axes):
            comm = lookup(axes)
            if rank == 1:
                comm.all_reduce = lambda x, op: 1 / 0
            return comm

        return executable.bind(failing)([X[rank]])

    with pytest.raises(ZeroDivisionError):
        Ranks(**MESH).run(run)


def test_bound_copies_are_independent():
    executable = compiled(lambda x: lax.psum(x, "i"), {"i": 2}, X[:2])
    first, second = Ranks(i=2), Ranks(i=2)
    for ranks in (first, second, first):
        (total,), _ = ranks.run(lambda r, lookup: executable.bind(lookup)([X[r]]))
        np.testing.assert_array_equal(total, X[0] + X[1])
