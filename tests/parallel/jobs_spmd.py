"""What tests of sharded arrays and partitioned programs run on ranks."""

import sys
from functools import partial
from pathlib import Path

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import random, tree
from funcgrad.errors import CollectiveError, ShardingError
from funcgrad.io.checkpoints import Checkpointer
from funcgrad.parallel import (
    NamedSharding,
    P,
    make_array_from_callback,
    process_count,
    process_index,
    reshard,
    shard_map,
)
from tests.op_checks import function, operands, typical
from tests.op_samples import ROWS
from tests.op_samples_base import assert_close
from tests.parallel.test_partition_ops import choices, seeded

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
VALUES = np.arange(32, dtype=np.float32).reshape(4, 8)
SPECS = [P(), P("x"), P(None, "y"), P("x", "y"), P("y", "x"), P(("x", "y")), P(None, ("y", "x"))]


def mesh_of_all():
    """All ranks on two axes; without ranks, four virtual devices."""
    n = process_count()
    return fg.make_mesh((2, (4 if n == 1 else n) // 2), ("x", "y"))


def held(x, values):
    """Whether this process's parts are those of the whole."""
    values = np.asarray(values)
    return all(
        shard.data.shape == x.sharding.shard_shape(values.shape)
        and np.allclose(np.asarray(shard.data), values[shard.index], rtol=1e-5)
        for shard in x.addressable_shards
    )


def arrays():
    """Arrays are put, cut anew, computed with, and read; what does not hold is returned."""
    mesh = mesh_of_all()
    wrong = []
    for spec in SPECS:
        x = fg.device_put(VALUES, NamedSharding(mesh, spec))
        if not held(x, VALUES):
            wrong.append(("put", spec))
        made = make_array_from_callback((4, 8), x.sharding, lambda index: VALUES[index])
        if not held(made, VALUES):
            wrong.append(("callback", spec))
        for to in SPECS:
            if not held(reshard(x, NamedSharding(mesh, to)), VALUES):
                wrong.append(("reshard", spec, to))
        y = fg.jit(lambda v: fnp.tanh(v) @ v.T)(x)
        whole = np.asarray(reshard(y, NamedSharding(mesh, P())))
        if not np.allclose(whole, np.tanh(VALUES) @ VALUES.T, rtol=1e-5):
            wrong.append(("compute", spec))
        if not held(x * 2 + VALUES, 3 * VALUES):
            wrong.append(("eager", spec))
        total = fg.jit(fg.grad(lambda v: fnp.sum(v**2)))(x)
        if not held(total, 2 * VALUES):
            wrong.append(("grad", spec))
    return wrong


def reading_what_is_elsewhere():
    """The error for values that other processes hold."""
    x = fg.device_put(VALUES, NamedSharding(mesh_of_all(), P("x")))
    try:
        np.asarray(x)
    except ShardingError as error:
        return str(error), x.is_fully_addressable, repr(x)
    return None


def ring():
    """A ring of devices by shard_map: each ends with the sum of all."""
    mesh = mesh_of_all()

    def turn(v):
        n = fg.lax.axis_size("y")
        there = [(i, (i + 1) % n) for i in range(n)]
        total = v
        for _ in range(n - 1):
            v = fg.lax.ppermute(v, "y", there)
            total = total + v
        return fg.lax.psum(total, ("x", "y"))

    f = shard_map(turn, mesh=mesh, in_specs=P("x", "y"), out_specs=P())
    return np.asarray(f(VALUES)).tolist()


def over_several_axes():
    """Exchanges over both axes at once, in either order, and their gradients."""
    mesh = mesh_of_all()
    found = []
    for names in (("x", "y"), ("y", "x")):
        for f, out in (
            (lambda v, n=names: fg.lax.all_to_all(v, n, 1, 0, tiled=True), P(None, names)),
            (lambda v, n=names: fg.lax.ppermute(v, n, [(0, 3), (3, 1), (1, 0)]), P(names)),
        ):
            g = shard_map(f, mesh=mesh, in_specs=P(names), out_specs=out)
            pulled = fg.grad(lambda v, g=g: fnp.sum(g(v) ** 2 * VALUES))
            whole = NamedSharding(mesh, P())
            found += [np.asarray(reshard(h(VALUES), whole)).tolist() for h in (g, pulled)]
    return found


def stencils():
    """Stencils and strides on cut arrays: whether any is gathered, and the values are right."""
    mesh = mesh_of_all()
    x = np.sin(np.arange(128, dtype=np.float32)).reshape(16, 8)
    found = []

    def step(v):
        around = v[2:, 1:-1] + v[:-2, 1:-1] + v[1:-1, 2:] + v[1:-1, :-2]
        return v.at[1:-1, 1:-1].set(around / 4)

    def steps(v):
        return fg.lax.fori_loop(0, 3, lambda i, u: fnp.roll(step(u), 3, 0), v)

    whole = NamedSharding(mesh, P())
    for spec in (P("x"), P("y", "x"), P(("y", "x")), P(None, "x")):
        cut = NamedSharding(mesh, spec)
        v = fg.device_put(x, cut)
        for f in (steps, lambda u: u[::2] * u[1::2], fg.grad(lambda u: fnp.sum(step(u) ** 2))):
            g = fg.jit(f, out_shardings=cut)
            costs = g.lower(v).cost_analysis()
            gathers = any(k.startswith("all_gather") for k in costs)
            out = np.asarray(reshard(g(v), whole))
            found.append((gathers, bool(np.allclose(out, f(x), rtol=1e-5, atol=1e-5))))
    return found


def eager_gradient():
    """The gradient of a shard_map op by op, whose residuals are cut over the ranks."""
    mesh = mesh_of_all()

    def loss(w, x):
        return fg.lax.psum(fnp.sum(fnp.tanh(x @ w)), ("x", "y"))

    f = shard_map(loss, mesh=mesh, in_specs=(P(), P(("x", "y"))), out_specs=P())
    return np.asarray(fg.grad(f)(VALUES.T / 4096, VALUES)).tolist()


def gpt_losses(layout, steps):
    """The losses of the demo's model on a layout over all ranks."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        import gpt
        import layouts
    finally:
        sys.path.remove(str(EXAMPLES))
    cfg = gpt.Config(48, context=16, width=32, heads=4, layers=2)
    optimizer = gpt.make_optimizer(100, 3e-3)
    init = partial(gpt.init_state, cfg=cfg, optimizer=optimizer)
    key = random.key(0)
    found = layouts.LAYOUTS[layout](fg.eval_shape(init, key), process_count())
    state = fg.jit(init, out_shardings=found.state)(key)
    step = gpt.make_step(cfg, optimizer, 16, found)
    codes = fnp.array(np.random.default_rng(0).integers(0, 48, 3000, np.int32))
    losses = []
    for i in range(steps):
        state, loss = step(state, random.fold_in(key, i), codes)
        losses.append(float(loss))
    sizes = [x.addressable_shards[0].data.nbytes for x in tree.leaves(state)]
    return losses, sum(sizes), sum(x.nbytes for x in tree.leaves(state))


def programs_that_differ():
    """The error where each rank's program has another number in it."""
    mesh = mesh_of_all()
    x = fg.device_put(VALUES, NamedSharding(mesh, P("x")))
    try:
        fg.jit(lambda v: fnp.sum(v * process_index()))(x)
    except CollectiveError as error:
        return str(error)
    return None


def ops(start, stride, backend):
    """Rows of op samples, their operands cut over the ranks in some way: which of them differ from
    the unsharded result."""
    mesh = mesh_of_all()
    wrong, count = [], 0
    for row in [r for r in ROWS if r.cases_for("dims")][start::stride]:
        rng, numbers = seeded(str(row))
        case = row.cases_for("dims")[0]
        args = operands(row, case, numbers, typical(row))
        cuts = [rng.choice(choices(mesh, np.shape(x))) for x in args]
        put = [
            fg.device_put(x, NamedSharding(mesh, P(*c))) for x, c in zip(args, cuts, strict=True)
        ]
        fun = function(row, case)
        for got, want in zip(fg.jit(fun, backend=backend)(*put), fun(*args), strict=True):
            values, (shard,) = np.asarray(want), got.addressable_shards
            count += 1
            try:
                assert_close(np.asarray(shard.data), values[shard.index], 256, 256, str(row))
            except AssertionError as error:
                wrong.append((str(row), cuts, str(error)))
    return wrong, count


def saved_state(mesh):
    """A tree cut in several ways."""
    specs = {"a": P(("x", "y")), "b": P(None, ("y", "x")), "c": P(), "d": P("y")}
    values = {
        "a": np.arange(96, dtype=np.float32).reshape(24, 4),
        "b": np.arange(48, dtype=np.int32).reshape(2, 24),
        "c": np.float64(1.5),
        "d": np.arange(24).astype("float16"),
    }
    return values, {k: NamedSharding(mesh, s) for k, s in specs.items()}


def save_state(folder):
    """Save on this job's ranks."""
    values, cut = saved_state(mesh_of_all())
    with Checkpointer(folder) as checkpoints:
        checkpoints.save(3, fg.device_put(values, cut) | {"epoch": 7})
    return sorted(p.name for p in checkpoints.folder.iterdir())


def load_state(folder):
    """Load on this job's ranks: what differs."""
    values, cut = saved_state(mesh_of_all())
    like = tree.map(
        lambda v, s: fg.ShapeDtypeStruct(np.shape(v), np.asarray(v).dtype, sharding=s), values, cut
    )
    with Checkpointer(folder) as checkpoints:
        found = checkpoints.restore(like | {"epoch": 0})
    wrong = [k for k in values if found[k].sharding != cut[k] or not held(found[k], values[k])]
    return wrong, found["epoch"]
