"""Rows of ops that hold programs, call Python, or reach across named axes."""

import numpy as np

from funcgrad.core.closed import constant_p
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import sum_p
from funcgrad.ops.collective import exchanges as ce
from funcgrad.ops.collective import reductions as co
from funcgrad.ops.collective import varying as cv
from funcgrad.ops.elementwise import arithmetic as a
from funcgrad.ops.elementwise import compare as c
from funcgrad.ops.elementwise import convert as v
from funcgrad.ops.elementwise import transcendental as t
from funcgrad.ops.families import add
from funcgrad.ops.sort import sort
from funcgrad.transforms import callbacks
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.control import cond, custom_call, jit_primitive, scan, while_loop
from funcgrad.transforms.control.custom_vmap import custom_vmap, custom_vmap_call_p
from funcgrad.transforms.derivatives import pullback
from funcgrad.transforms.derivatives.checkpoint import checkpoint, checkpoint_p
from funcgrad.transforms.derivatives.custom import custom_jvp, custom_vjp
from funcgrad.transforms.derivatives.linear import jvp
from funcgrad.transforms.jit.jit import jit
from tests.op_samples_base import BOOL, F32, F64, FLOATS, I32, Arg, Domain, Row, case

WIDE = (F32, F64)
BF16 = FLOATS[-4]
COUNT = Arg((), Domain(0, 4), I32)


def program(prim, call, oracle, *cases, accepted=WIDE, **rest):
    rest.setdefault("ulps", 32)
    rest.setdefault("atol", 8)
    return Row(prim=prim, call=call, oracle=oracle, dtypes=accepted, jit_ulps=64, jit_atol=16,
               cases=cases, **rest)  # fmt: skip


# ---- control flow


def branch(pred, x, y):
    """One branch reads both operands, the other one of them."""
    return cond.cond(pred, lambda x, y: a.mul(t.sin(x), y), lambda x, y: add(x, x), x, y)


def choice(index, x):
    return cond.switch(index, [t.sin, lambda x: a.mul(x, x), lambda x: t.exp(a.neg(x))], x)


def recurrent(carry, xs):
    """A carry of two parts, one of them an integer, and stacked results."""

    def body(state, x):
        count, h = state
        h = t.tanh(add(a.mul(h, x), v.convert_element_type(count, h.dtype)))
        return (add(count, 1), h), (a.mul(h, x), count)

    (count, h), (ys, counts) = scan.scan(body, (0, carry), xs)
    return [count, h, ys, counts]


def recurrent_oracle(carry, xs):
    h, ys = carry, []
    for i, x in enumerate(xs):
        h = np.tanh(h * x + i)
        ys.append(h * x)
    ys = np.array(ys) if ys else np.zeros((0, *carry.shape))
    return [np.int32(len(xs)), h, ys, np.arange(len(xs))]


def backwards(w, xs):
    """Reversed, with a captured value and no carry that depends on all."""
    total, ys = scan.scan(
        lambda h, x: (add(h, a.mul(x, w)), a.sub(h, x)), a.mul(w, 0), xs, reverse=True, unroll=2
    )
    return [total, ys]


def backwards_oracle(w, xs):
    h, ys = np.zeros_like(w), []
    for x in xs[::-1]:
        ys.append(h - x)
        h = h + x * w
    return [h, np.array(ys[::-1])]


def counted(n, x):
    """As many turns as an operand says."""
    return while_loop.fori_loop(0, n, lambda i, y: t.sin(add(y, x)), x) if isinstance(
        n, int
    ) else while_loop.while_loop(
        lambda s: c.lt(s[0], n), lambda s: (add(s[0], 1), t.sin(add(s[1], x))), (0, x)
    )[1]  # fmt: skip


def counted_oracle(n, x):
    y = x
    for _ in range(int(n)):
        y = np.sin(y + x)
    return y


def halved(x):
    """Ends where the sum is small: batched, each lane at its own time."""
    total = lambda y: sum_p.bind(a.abs(y), axes=(0,))
    return while_loop.while_loop(lambda y: c.gt(total(y), 1), lambda y: a.mul(y, 0.5), x)


def halved_oracle(x):
    while np.abs(x).sum() > 1:
        x = x * 0.5
    return x


def idle(x):
    """A loop of no turns around a step that Python runs, before another such step."""
    y, _ = scan.scan(lambda y, _: (sort(y, 1), None), x, None, length=0)
    return sort(y, 0)


CONTROL = [
    program(scan.scan_p, idle, lambda x: np.sort(x, axis=0), case((3, 4)), name="scan of no turns"),
    program(cond.cond_p, branch, lambda p, x, y: np.where(p, np.sin(x) * y, x + x),
            case(Arg((), dtype=BOOL), (3,), (3,)), accepted=(*WIDE, BF16)),
    program(cond.cond_p, choice,
            lambda i, x: [np.sin(x), x * x, np.exp(-x)][int(np.clip(i, 0, 2))],
            case(Arg((), Domain(-1, 4), I32), (2, 2)), name="switch"),
    program(scan.scan_p, recurrent, recurrent_oracle, case((3,), (4, 3)), case((), (5,)),
            case((2,), (0, 2), tests="eager jit"), result=lambda d, p: [I32, d, d, I32]),
    program(scan.scan_p, backwards, backwards_oracle, case((2,), (5, 2)), case((2,), (4, 2)),
            name="scan reversed"),
    program(while_loop.while_p, counted, counted_oracle,
            case(COUNT, (3,), tests="eager jit vmap dims"), case(COUNT, (), tests="eager jit")),
    program(while_loop.while_p, halved, halved_oracle, case((4,), tests="eager jit vmap dims"),
            name="while over lanes"),
]  # fmt: skip

# ---- calls of programs


@custom_jvp
def soft(x, y):
    return a.mul(t.sin(x), y)


@soft.defjvp
def soft_jvp(primals, tangents):
    (x, y), (g, h) = primals, tangents
    return soft(x, y), add(a.mul(a.mul(t.cos(x), y), g), a.mul(t.sin(x), h))


@custom_vjp
def hard(x, y):
    return a.mul(t.sin(x), y)


hard.defvjp(
    lambda x, y: (hard(x, y), (x, y)),
    lambda kept, g: (a.mul(a.mul(t.cos(kept[0]), kept[1]), g), a.mul(t.sin(kept[0]), g)),
)


@custom_vmap
def apart(x, y):
    return a.mul(t.sin(x), y)


@apart.def_vmap
def apart_vmap(size, in_batched, x, y):
    """What the function does, on whole batches."""
    return a.mul(t.sin(x), y) if all(in_batched) else vmap(
        lambda x, y: a.mul(t.sin(x), y), [0 if b else None for b in in_batched], axis_size=size
    )(x, y), True


TABLE = np.arange(3.0)
tabled = custom_jvp(t.sin)
tabled.defjvp(lambda p, g: (t.sin(*p), a.mul(g[0], v.convert_element_type(TABLE, g[0].dtype))))


def by_table(x):
    """The derivative of a loop whose body has a rule that captures an array."""
    loop = lambda x: scan.scan(lambda c, _: (c, tabled(c)), x, None, length=2)[1]
    return jvp(loop, (x,), (x,))[1]


PRODUCT = (case((3,), (3,)), case((2, 2), (2, 2), tests="eager vmap jit dims"))


def product(x, y):
    return np.sin(x) * y


def pushed(x, y, g):
    return jvp(lambda x: hard(x, y), (x,), (g,))[1]


CALLS = [
    program(jit_primitive.jit_p, jit(lambda x, y: a.mul(t.sin(x), y)), product, *PRODUCT,
            accepted=(*WIDE, BF16)),
    program(checkpoint_p, checkpoint(lambda x, y: a.mul(t.sin(x), y)), product, *PRODUCT),
    program(custom_call.custom_jvp_call_p, soft, product, *PRODUCT),
    program(custom_vmap_call_p, apart, product, *PRODUCT),
    program(custom_call.custom_vjp_call_p, hard, product, *PRODUCT, order=1),
    program(constant_p, by_table, lambda x: np.stack([x * TABLE] * 2), case((3,)), order=1),
    program(custom_call.custom_vjp_tangent_p, pushed, lambda x, y, g: np.cos(x) * y * g,
            case((3,), (3,), (3,), tests="eager vmap jit dims")),
]  # fmt: skip


def host(function):
    def call(x):
        shape = ShapeDtypeStruct(np.shape(x), x.dtype)
        return function(lambda x: np.sin(x).astype(x.dtype), shape, x)

    return call


def watched(x):
    callbacks.debug_callback(lambda value: None, x)
    return a.mul(x, 2)


def pulled_back(x, ct):
    """The transpose of y ↦ y · sin(x), at ct."""
    avals = [aval_of(x), aval_of(x)]
    jaxpr, _ = stage(lambda x, y: [a.mul(y, t.sin(x))], avals)
    return pullback.pullback_p.bind(x, ct, jaxpr=jaxpr, n_linear=1, likes=(0,))[0]


NO_RULE = {0: "Python code"}
PYTHON = [
    program(pullback.pullback_p, pulled_back, lambda x, ct: ct * np.sin(x), case((3,), (3,)),
            order=0),
    program(callbacks.pure_callback_p, host(callbacks.pure_callback), np.sin,
            case((3,)), case((), tests="eager jit"), no_derivative=NO_RULE, order=0),
    program(callbacks.io_callback_p, host(callbacks.io_callback), np.sin, case((3,)),
            no_derivative=NO_RULE, order=0),
    program(callbacks.debug_callback_p, watched, lambda x: 2 * x, case((3,))),
]  # fmt: skip

# ---- collectives: oracles see all lanes, along the first axis

N = 3


def same(x):
    return np.broadcast_to(x, (N, *x.shape))


def exchanged(x):
    """Part j of lane i becomes part i of lane j."""
    return np.swapaxes(x, 0, 1)


def sent(x):
    return np.stack([x[2], np.zeros_like(x[0]), x[0]])


def collective(prim, call, oracle, shape=(2,), **rest):
    return Row(prim=prim, call=call, oracle=oracle, dtypes=(F32, F64, I32), axis="i", staged=False,
               cases=(case(shape, tests="eager grad jit"),), ulps=32, atol=8, jit_ulps=32,
               jit_atol=16, **rest)  # fmt: skip


NO_EXTREMA = {0: "all_gather"}
COLLECTIVE = [
    collective(co.psum_p, lambda x: co.psum(x, "i"), lambda x: same(x.sum(0))),
    collective(co.pmax_p, lambda x: co.pmax(x, "i"), lambda x: same(x.max(0)), order=0,
               no_derivative=NO_EXTREMA),
    collective(co.pmin_p, lambda x: co.pmin(x, "i"), lambda x: same(x.min(0)), order=0,
               no_derivative=NO_EXTREMA),
    collective(co.axis_index_p,
               lambda x: add(v.convert_element_type(co.axis_index("i"), x.dtype), x),
               lambda x: x + np.arange(N).reshape(N, *[1] * (x.ndim - 1)), ()),
    collective(co.all_gather_p, lambda x: co.all_gather(x, "i"), same),
    collective(co.psum_scatter_p, lambda x: co.psum_scatter(x, "i"), lambda x: x.sum(0), (3, 2)),
    collective(co.psum_scatter_p, lambda x: co.psum_scatter(x, "i", tiled=True),
               lambda x: x.sum(0).reshape(N, 2), (6,), name="psum_scatter tiled"),
    collective(cv.pvary_p, lambda x: cv.pvary(x, "i"), lambda x: x, order=0),
    collective(cv.psum_invariant_p, lambda x: cv.psum_invariant_p.bind(x, axis_name=("i",)),
               lambda x: same(x.sum(0)), order=0),
    collective(cv.assume_invariant_p, lambda x: cv.assume_invariant_p.bind(x, axis_name=("i",)),
               lambda x: same(x[0]), order=0),
    collective(ce.all_to_all_p, lambda x: ce.all_to_all(x, "i", 0, 0), exchanged, (3, 2)),
    collective(ce.ppermute_p, lambda x: ce.ppermute(x, "i", [(0, 2), (2, 0)]), sent),
]  # fmt: skip
PROGRAMS = [*CONTROL, *CALLS, *PYTHON, *COLLECTIVE]
