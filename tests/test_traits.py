"""Ops say what others ask of them: nobody asks for names, and an op from elsewhere is like ours."""

import ast
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import dtypes, lax
from funcgrad.core import context
from funcgrad.core.eager import large
from funcgrad.core.eager.calls import pays
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.process import fork
from funcgrad.core.views import Place
from funcgrad.ops import identities
from funcgrad.ops.base import broadcast_p, reduction_dims, shift_axes, sum_p
from funcgrad.ops.elementwise.arithmetic import div, mul
from funcgrad.ops.elementwise.transcendental import cosh
from funcgrad.ops.families import add, unary
from funcgrad.parallel import NamedSharding, P, make_mesh, shard_map
from funcgrad.parallel.partitioner.partition import partition
from funcgrad.transforms.passes.simplify import simplify
from tests.op_checks import by_row
from tests.op_samples import ROWS
from tests.op_samples_base import F32
from tests.test_layout import MODULES, of_each

# ---- nobody asks for names

# Where a name is read for another reason than to be shown: to name what is made, or to find it.
NAMED = {
    "funcgrad.backends.cuda.eager": {"_compiled"},  # for a label
    "funcgrad.backends.cuda.host": {"_title", "host"},  # for labels
    "funcgrad.backends.eager": {"kernel"},
    "funcgrad.backends.kernels.cluster": {"kernel_name"},
    "funcgrad.backends.kernels.special": {"done"},
    "funcgrad.backends.llvm.identity": {"_find_primitives"},  # by it other processes find an op
    "funcgrad.backends.lower.primitives": {"key_of"},  # of the backends' own, in modules not loaded
    "funcgrad.core.display.jaxpr_html": {"_equation"},
    "funcgrad.core.display.jaxpr_text": {"eqn_text"},
    "funcgrad.core.evaluation": {"_evaluate"},  # for a message
    "funcgrad.core.staging": {"formula_of"},
    "funcgrad.export.native.codes": {"_place"},  # for a message
    "funcgrad.export.program.decode": {"_equation"},  # files know ops by their names
    "funcgrad.export.program.vocabulary": {"is_known"},
    "funcgrad.parallel.mapping.varying_programs": {"collectives"},  # for messages
    "funcgrad.parallel.runtimes.spmd": {"evaluate"},
    "funcgrad.transforms.precision.policy": {"names"},  # that users write in rules
    "funcgrad.transforms.weights.uses": {"lost", "op"},  # for a message, and users' rules
}


def is_primitive(node):
    """Whether an expression surely is a primitive, by how they are called throughout."""
    match node:
        case ast.Name(id="prim" | "primitive" | "of"):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name) if name.endswith("_p") or name == "prim":
            return True
        case ast.Attribute(attr="_prim") | ast.Subscript(slice=ast.Constant(value="prim")):
            return True
    return False


def name_reads(node, function=""):
    """Each read of a primitive's name that isn't part of a text: in which function, the line."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            continue
        inner = child.name if isinstance(child, ast.FunctionDef) else function
        named = isinstance(child, ast.Attribute) and child.attr in ("name", "__name__")
        if named and is_primitive(child.value):
            yield function, child.lineno
        yield from name_reads(child, inner)


@of_each(sorted(m for m in MODULES if not m.startswith("funcgrad.ops")))
def test_nobody_asks_for_names(module):
    found = name_reads(ast.parse(Path(MODULES[module]).read_text(encoding="utf-8")))
    asked = [f"line {n}" for function, n in found if function not in NAMED.get(module, ())]
    assert not asked, (
        f"{module} reads names of ops at {asked}: what it wants to know is to be a trait, in the "
        "docstring of `Primitive`, or a table of ops themselves"
    )


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("if eqn.prim.name in VIEWS: pass", 1),
        ("rule = RULES.get(prim.name)", 1),
        ("name = eqn.prim.name", 1),
        ("if e.params['prim'].name == 'fft': pass", 1),
        ("x = sin_p.name", 1),
        ("raise E(f'{prim.name} has no rule')", 0),
        ("x = mesh.name", 0),
    ],
)
def test_reader_of_names(text, count):
    assert len(list(name_reads(ast.parse(text)))) == count


# ---- ops from elsewhere: what docs/adding_an_op.md says, and nothing more

gd = unary(
    "gd",
    impl=lambda xp, x: 2 * xp.arctan(xp.tanh(x / 2)),
    jvp=lambda g, y, x: div(g, cosh(x)),
    doc="The Gudermannian function.",
)
twice = unary(
    "twice",
    impl=lambda xp, x: x + x,
    jvp=lambda g, y, x: twice(g),
    transpose=lambda ct, x: twice(ct),
    doc="Twice x.",
)


def _linear_jvp(prim):
    def rule(primals, tangents, **params):
        return prim().bind(*primals, **params), prim().bind(*tangents, **params)

    return rule


def _flip_view(x):
    n = x.ndim
    lead = [Place(0, ((1, d),)) for d in range(n - 2)]
    rows, columns = x.shape[-2:]
    return [*lead, Place(rows - 1, ((-1, n - 1),)), Place(columns - 1, ((-1, n - 2),))]


def _flip_dims(x):
    lead = " ".join(f"n{i}" for i in range(x.ndim - 2))
    return f"{lead} a! b! -> {lead} b! a!"


# Matrices mirrored at their other diagonal, whatever axes are before.
flip_p: Primitive = Primitive(
    name="flip_other_diagonal",
    abstract=lambda x: x.update(shape=(*x.shape[:-2], x.shape[-1], x.shape[-2])),
    impl=lambda xp, x: xp.swapaxes(x[..., ::-1, ::-1], -1, -2),
    jvp=_linear_jvp(lambda: flip_p),
    transpose=lambda ct, x: [flip_p.bind(ct)],
    batch=lambda axis, args, dims: (flip_p.bind(fnp.moveaxis(*args, *dims, 0)), 0),
    dims=_flip_dims,
    simplify=identities.undone,
    view=_flip_view,
    linear=True,
)


def _total_batch(axis, args, dims, *, axes):
    axes, out = shift_axes(axes, dims[0])
    return total_p.bind(args[0], axes=axes), out


def _total_transpose(ct, x, *, axes):
    shape = x.aval.shape
    kept = tuple(i for i in range(len(shape)) if i not in axes)
    return [broadcast_p.bind(ct, shape=shape, broadcast_dimensions=kept)]


# A sum that eagerly begins at the other end.
total_p: Primitive = Primitive(
    name="total",
    abstract=lambda x, *, axes: sum_p.abstract(x, axes=axes),
    impl=lambda xp, x, *, axes: xp.sum(xp.flip(x, axes), axis=axes, dtype=x.dtype),
    jvp=_linear_jvp(lambda: total_p),
    transpose=_total_transpose,
    batch=_total_batch,
    dims=lambda x, *, axes: reduction_dims(x, axes),
    simplify=identities.no_axes,
    reduction="sum",
    linear=True,
    passes=2,
)


def _rows_jvp(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    terms = [rows_p.bind(*pair) for pair in ((dx, y), (x, dy)) if not any(map(_is_zero, pair))]
    return rows_p.bind(x, y), terms[0] if len(terms) == 1 else add(*terms)


def _is_zero(x):
    return type(x).__name__ == "Zero"


def _rows_transpose(ct, x, y):
    linear, other = (x, y) if type(x).__name__ == "Linear" else (y, x)
    wide = broadcast_p.bind(
        ct, shape=linear.aval.shape, broadcast_dimensions=tuple(range(linear.aval.ndim - 1))
    )
    found = mul(wide, other)
    return [found, None] if linear is x else [None, found]


def _rows_batch(axis, args, dims):
    wide = [
        fnp.moveaxis(x, d, 0) if d is not None else fnp.broadcast_to(x, (axis.size, *x.shape))
        for x, d in zip(args, dims, strict=True)
    ]
    return rows_p.bind(*wide), 0


def _rows_dims(x, y):
    lead = " ".join(f"n{i}" for i in range(x.ndim - 1))
    return f"{lead} k, {lead} k -> {lead}"


# The product of each row with the same row of another array.
rows_p: Primitive = Primitive(
    name="rows_dot",
    abstract=lambda x, y: x.update(shape=x.shape[:-1]),
    impl=lambda xp, x, y: (x * y).sum(axis=-1, dtype=x.dtype),
    jvp=_rows_jvp,
    transpose=_rows_transpose,
    batch=_rows_batch,
    dims=_rows_dims,
    formula=lambda x, y: sum_p.bind(mul(x, y), axes=(x.ndim - 1,)),
    contraction=True,
    passes=2,
)

OPS = {
    "elementwise": (gd, lambda x: 2 * np.arctan(np.tanh(x / 2))),
    "view": (flip_p.bind, lambda x: np.swapaxes(x[..., ::-1, ::-1], -1, -2)),
    "reduction": (lambda x: total_p.bind(x, axes=(2,)), lambda x: x.sum(2)),
    "contraction": (lambda x: rows_p.bind(x, x + 1), lambda x: (x * (x + 1)).sum(-1)),
}
of_each_op = pytest.mark.parametrize(("op", "meaning"), OPS.values(), ids=OPS)


def numbers(*shape, dtype=np.float32):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def model(op):
    """An op among others, ours before and behind it, as a scalar."""
    return lambda x: fnp.sum(fnp.tanh(op(x * 2) + 1))


def close(got, want):
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=2e-5, atol=2e-5)


@of_each_op
def test_its_meaning_eagerly_and_compiled(op, meaning):
    x = numbers(4, 5, 6)
    close(op(fnp.array(x)), meaning(x))
    close(fg.jit(op)(x), meaning(x))
    close(fg.jit(lambda x: fnp.tanh(op(x * 2) + 1))(x), np.tanh(meaning(x * 2) + 1))


@of_each_op
def test_it_is_fused_with_its_neighbours(op, meaning):
    text = fg.jit(lambda x: fnp.tanh(op(x * 2) + 1)).lower(numbers(4, 5, 6)).as_text("loops")
    assert text.count("\nkernel ") == 1, text
    assert " host " not in text


@of_each_op
def test_equal_equations_are_one(op, meaning):
    closed = fg.make_jaxpr(lambda x: op(x) + op(x))(numbers(4, 5, 6))
    assert len(simplify(closed.jaxpr).eqns) < len(closed.jaxpr.eqns)


def test_what_an_op_says_it_may_be_simplified_to():
    closed = fg.make_jaxpr(lambda x: total_p.bind(flip_p.bind(flip_p.bind(x)), axes=()))(
        numbers(3, 4)
    )
    assert simplify(closed.jaxpr).outs == closed.jaxpr.ins


@of_each_op
@pytest.mark.parametrize("wrapped", [lambda f: f, fg.checkpoint], ids=["plain", "checkpoint"])
def test_derivatives_to_second_order(op, meaning, wrapped):
    """On the tape, under jit, forwards and backwards; against finite differences in float64."""
    x, v = numbers(2, 3, 4, dtype=np.float64), numbers(2, 3, 4, dtype=np.float64)[::-1]
    f, h = wrapped(model(op)), 1e-5
    first = fg.grad(f)
    second = fg.grad(lambda x: fnp.sum(first(x) * v))
    slope = (f(x + h * v) - f(x - h * v)) / (2 * h)
    close(fnp.sum(first(x) * v), slope)
    close(fg.jvp(f, (x,), (v,))[1], slope)
    close(second(x), (first(x + h * v) - first(x - h * v)) / (2 * h))
    for _ in range(3):  # a tape keeps what it found out at the first times
        close(first(x), fg.jit(first)(x))
        close(second(x), fg.jit(second)(x))


@of_each_op
@pytest.mark.parametrize("axis", [0, 1, 3])
def test_vmap(op, meaning, axis):
    x = numbers(3, 3, 5, 3)
    lanes = np.moveaxis(x, axis, 0)
    close(fg.vmap(op, in_axes=axis)(x), np.stack([meaning(lane) for lane in lanes]))
    close(fg.jit(fg.vmap(fg.grad(model(op))))(x), np.stack([fg.grad(model(op))(y) for y in x]))


@of_each_op
@pytest.mark.parametrize("spec", [P("data"), P(None, "data"), P(None, None, "data")], ids=str)
def test_partitioned(op, meaning, spec):
    mesh = make_mesh((2,), "data")
    x = numbers(4, 6, 8)
    cut = fg.device_put(fnp.array(x), NamedSharding(mesh, spec))
    close(fg.jit(op)(cut), meaning(x))
    close(fg.jit(fg.grad(model(op)))(cut), fg.grad(model(op))(x))
    close(op(cut), meaning(x))


@of_each_op
def test_in_shard_map(op, meaning):
    mesh = make_mesh((2,), "data")
    x = numbers(4, 5, 6)
    mapped = shard_map(op, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    close(mapped(x), meaning(x))

    def loss(x):
        parts = shard_map(
            lambda x: lax.psum(model(op)(x), "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
        )
        return parts(x)

    close(fg.jit(fg.grad(loss))(x), fg.grad(model(op))(x))


def test_cut_axes_stay_cut():
    """By the axis mapping alone: nothing is gathered, parts of sums are summed once."""
    mesh = make_mesh((2,), "data")
    cut = NamedSharding(mesh, P("data"))

    def f(x):
        return total_p.bind(twice(rows_p.bind(gd(flip_p.bind(x)), x)), axes=(0, 1))

    x = fg.device_put(fnp.array(numbers(4, 5, 5)), cut)
    text = repr(partition(fg.make_jaxpr(f)(x).jaxpr, mesh, [cut]))
    assert text.count("psum[") == 1
    assert "gather" not in text


def test_parts_of_a_sum_go_through_what_is_linear():
    mesh = make_mesh((2,), "data")
    x = fnp.array(numbers(4, 4, 6))
    jaxpr = fg.make_jaxpr(lambda x: twice(flip_p.bind(total_p.bind(x, axes=(0,)))) + 1)(x).jaxpr
    program = partition(jaxpr, mesh, [NamedSharding(mesh, P("data"))])
    names = [e.prim for e in program.jaxpr.eqns]
    assert names.index(twice) < [str(p) for p in names].index("psum")


# ---- without jit


@pytest.fixture
def small_is_large(monkeypatch):
    monkeypatch.setattr(fork, "beside", lambda work: work())
    for name in ("LARGE", "COMPILED_FROM"):
        monkeypatch.setattr(large, name, 8)
    monkeypatch.setattr(large, "KEPT_AFTER", 200)
    monkeypatch.setattr(large, "COMPILED_AFTER", 400)
    with context.scoped(axes={}):
        yield


def compiled_impls():
    impls = [found[1] for found in context.current().types.values() if type(found) is tuple]
    return [i for i in impls if getattr(i, "_kernel", None) is not None]


def test_a_large_elementwise_op_that_rounds_once_is_compiled(small_is_large):
    x = fnp.array(numbers(50, 3))
    for _ in range(20):
        close(twice(x), 2 * np.asarray(x))
        close(gd(x), OPS["elementwise"][1](np.asarray(x)))
    assert len(compiled_impls()) == 1  # gd doesn't give NumPy's bits


def test_views_take_no_memory(small_is_large):
    x = fnp.array(numbers(50, 3))
    assert np.shares_memory(np.asarray(flip_p.bind(x)), np.asarray(x))


@of_each_op
def test_large_programs_with_it_are_compiled(op, meaning, monkeypatch):
    monkeypatch.setattr(large, "LARGE", 8)
    jaxpr = simplify(fg.make_jaxpr(lambda x: fnp.tanh(op(x) * 2))(numbers(4, 5, 6)).jaxpr)
    assert pays(jaxpr)


@pytest.mark.parametrize("prim", [lax.sinh, lax.cosh, lax.tan, lax.atan2, lax.lgamma, gd])
def test_elementwise_ops_are_alike_without_jit(prim, monkeypatch):
    monkeypatch.setattr(large, "LARGE", 8)
    args = [fnp.ones(64)] * (2 if prim is lax.atan2 else 1)
    assert prim.passes == 1
    assert pays(fg.make_jaxpr(lambda *xs: prim(*xs) + 1)(*args).jaxpr)


def test_policies_know_a_contraction():
    keep = fg.checkpoint_policies
    x = fg.make_jaxpr(lambda x: x)(numbers(3, 4)).jaxpr.in_avals[0]
    assert keep.dots_saveable(rows_p, x, x)
    assert not keep.dots_with_no_batch_dims_saveable(rows_p, x, x)
    assert not keep.dots_saveable(total_p, x, axes=(0,))


# ---- names mean nothing


NAMES = ["sort", "gather", "mul", "while", "scan", "cumsum", "product", "join", "windows", "rows",
         "reshape", "reduce_max", "attention", "pad", "constant", "jit", "psum"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_an_op_with_the_name_of_another_one_keeps_its_meaning(name, dtype):
    none = NoRule("it is not asked for")
    own = Primitive(
        name=name, abstract=lambda x: x, impl=lambda xp, x: x * 2 + 1, jvp=none, transpose=none,
        batch=lambda axis, args, dims: (own.bind(*args), dims[0]), dims=lambda x: "a! b -> a! b",
    )  # fmt: skip
    x = numbers(4, 4).astype(dtype)
    close(own.bind(fnp.array(x)), x * 2 + 1)
    close(fg.jit(lambda x: own.bind(x * 3))(x), x * 6 + 1)
    cut = fg.device_put(fnp.array(x), NamedSharding(make_mesh((2,), "data"), P(None, "data")))
    close(fg.jit(lambda x: own.bind(x * 3))(cut), x * 6 + 1)


# ---- traits of our own ops


LINEAR = [row for row in ROWS if row.prim.linear and F32 in row.dtypes]


@by_row(LINEAR)
def test_what_is_linear_is_so_in_all_operands(row, rng):
    """On whole numbers, so that sums are exact."""
    assert not isinstance(row.prim.transpose, NoRule)
    for case in row.cases:
        xs, ys = ([rng.integers(-3, 4, a.shape).astype(F32) for a in case.args] for _ in range(2))
        both = [x + y for x, y in zip(xs, ys, strict=True)]
        out, one, other = (
            np.asarray(row.prim.impl(np, *operands, **case.params)).astype(np.complex128)
            for operands in (both, xs, ys)
        )
        if dtypes.is_inexact(np.dtype(case.params.get("new_dtype", F32))):
            np.testing.assert_array_equal(out, one + other)


REDUCTIONS = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@by_row([row for row in ROWS if row.prim.reduction])
def test_reductions_combine_as_they_say(row, rng):
    dtype = np.dtype("int32")
    combine = REDUCTIONS[row.prim.reduction]
    x = rng.integers(-4, 5, (3, 4, 5)).astype(dtype)
    for axes in [(0,), (1, 2), (0, 1, 2), ()]:
        out = row.prim.impl(np, x, axes=axes)
        np.testing.assert_array_equal(out, combine.reduce(x, axis=axes) if axes else x)


def test_every_elementwise_op_is_counted_alike():
    found = {row.prim: row.prim.passes for row in ROWS if row.prim.elementwise}
    assert {p.name: n for p, n in found.items() if n != (0 if p.identity else 1)} == {}
