"""Training steps on tables that are cut, beside the same on whole ones; ranks run them, too."""

import functools
from functools import partial

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, recsys, tree
from funcgrad.parallel import P, shard_map

SIZES = {"ad": (10, 4), "page": (5, 4), "user": (17, 6)}
SHARED = {"seen": "ad"}
KEYS = {"ad": 10, "page": 5, "user": 17, "seen": 10}
OPTIMIZERS = {
    "plain": recsys.sgd(0.1), "sgd": recsys.sgd(0.1, 0.01), "adagrad": recsys.adagrad(0.1),
    "rowwise_adagrad": recsys.rowwise_adagrad(0.1), "adam": recsys.adam(0.1),
    "lazy_adam": recsys.lazy_adam(0.1), "lamb": recsys.lamb(0.1),
}  # fmt: skip


def tables_of(seed=0):
    rng = np.random.default_rng(seed)
    return {k: rng.normal(size=s).astype("float32") for k, s in SIZES.items()}


def batches(devices, steps, weighted, seed=1, each=3):
    """For each step a batch, whole and in parts."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        lists, weights = {}, {}
        for k, n in KEYS.items():
            lists[k] = [
                rng.integers(0, n, rng.integers(0, 4)).tolist() for _ in range(each * devices)
            ]
            weights[k] = [rng.normal(size=len(x)).astype("float32").tolist() for x in lists[k]]
        whole = recsys.KeyedJaggedTensor.from_lists(
            lists, weights if weighted else None, capacity=each * devices * 4
        )
        yield whole, recsys.split_batch(whole, devices), fnp.asarray(rng.normal(size=18), "float32")


def loss_of(tables, features, w, pooling, axes=(), bags_of=recsys.embedding_bag):
    if pooling == "both":
        pooling = {"ad": "sum", "seen": "mean", "page": "mean", "user": "sum"}
    bags = bags_of(tables, features, pooling, table_of=SHARED)
    h = fnp.tanh(fnp.concatenate([bags[k] for k in sorted(bags)], axis=1) * w)
    loss = fnp.mean(h**2 + 0.5 * h)
    return (lax.pmean(loss, axes) if axes else loss), bags


def bags_of_blocks(tables, features, pooling, table_of):
    """Those of tables in blocks of columns, each of which is a table of its own."""
    parts = {
        k: [
            recsys.embedding_bag({k: block}, features.permute([k]), pooling)[k]
            for block in tables[table_of.get(k, k)]
        ]
        for k in features.keys
    }
    return {k: fnp.concatenate(x, axis=1) for k, x in parts.items()}


def update(opt, tables, state, grads):
    updates, state = opt.update(grads, state, tables)
    return recsys.apply_updates(tables, updates), state


@functools.cache
def whole_steps(name, pooling, weighted, devices, steps, blocks=()):
    """Tables after some steps, and the bags of the first. blocks: how many each table is cut into;
    of these an optimizer that keeps something a row keeps it for each."""
    opt, blocks = OPTIMIZERS[name], dict(blocks)
    tables = {
        k: [fnp.asarray(x) for x in np.split(x, blocks.get(k, 1), axis=1)]
        for k, x in tables_of().items()
    }
    state, first = opt.init(tables), None

    @fg.jit
    def step(tables, state, features, w):
        loss = partial(loss_of, pooling=pooling, bags_of=bags_of_blocks)
        (_, bags), grads = recsys.value_and_sparse_grad(loss, has_aux=True)(tables, features, w)
        return *update(opt, tables, state, grads), bags

    for features, _, w in batches(devices, steps, weighted):
        tables, state, bags = step(tables, state, features, w)
        first = bags if first is None else first
    return {k: np.concatenate(x, axis=1) for k, x in tables.items()}, first


def make_step(opt, layout, pooling, like):
    """A step in shard_map over the layout's mesh."""
    axes = layout.axes

    def body(tables, state, features, w):
        features = tree.map(lambda x: x[0], features)
        f = recsys.value_and_sparse_grad(partial(loss_of, pooling=pooling, axes=axes), has_aux=True)
        (_, bags), grads = f(tables, features, w)
        return *update(opt, tables, state, grads), bags

    specs = recsys.partition_specs(like)
    return shard_map(
        body, mesh=layout.mesh, in_specs=(*specs, P(axes), P()), out_specs=(*specs, P(axes))
    )


def sharded_steps(opt, layout, pooling, weighted, steps):
    """As `whole_steps`, of cut tables."""
    tables = recsys.shard_tables(tables_of(), layout)
    state = recsys.put(
        opt.init(tree.map(lambda x: fnp.zeros(x.shape, x.dtype), tables)), layout.mesh
    )
    step, first = make_step(opt, layout, pooling, (tables, state)), None
    step = fg.jit(step, donate_argnums=(0, 1))
    for _, features, w in batches(layout.mesh.size, steps, weighted):
        tables, state, bags = step(tables, state, features, w)
        first = bags if first is None else first
    return recsys.gather_tables(tables), first


def compare(shape, names, shardings, opt, pooling, weighted, steps=5):
    """Both ways on one mesh; raises where they differ."""
    mesh = fg.make_mesh(shape, names)
    layout = recsys.layout(SIZES, shardings, mesh)
    got, bags = sharded_steps(OPTIMIZERS[opt], layout, pooling, weighted, steps)
    blocks = ()
    if opt in ("rowwise_adagrad", "lamb"):
        blocks = tuple((k, spec.sharding.columns) for k, spec in layout.tables)
    want, whole = whole_steps(opt, pooling, weighted, mesh.size, steps, blocks)
    everywhere = fg.NamedSharding(mesh, P())
    for k, x in whole.items():
        there = np.asarray(fg.reshard(bags[k], everywhere))
        np.testing.assert_allclose(there, x, rtol=1e-4, atol=1e-5, err_msg=k)
    for k, x in want.items():
        np.testing.assert_allclose(got[k], x, rtol=1e-3, atol=1e-4, err_msg=k)


def replica_steps(shardings, every, steps):
    """Tables on two replicas of two devices after some steps, averaged every few."""
    mesh = fg.make_mesh((2, 2), ("device", "replica"))
    layout = recsys.layout(SIZES, shardings, mesh, replica="replica")
    opt, axes = recsys.sgd(0.1), mesh.axis_names
    tables = recsys.shard_tables(tables_of(), layout)

    def body(tables, step, features, w):
        features = tree.map(lambda x: x[0], features)
        f = recsys.value_and_sparse_grad(partial(loss_of, pooling="sum", axes=axes), has_aux=True)
        _, grads = f(tables, features, w)
        tables, _ = update(opt, tables, recsys.SparseState(step, {}), grads)
        return recsys.average_replicas(tables, step, every)

    specs = recsys.partition_specs(tables)
    mapped = fg.jit(shard_map(
        body, mesh=mesh, in_specs=(specs, P(), P(axes), P()), out_specs=specs
    ))  # fmt: skip
    for i, (_, features, w) in enumerate(batches(4, steps, False)):
        tables = mapped(tables, fnp.asarray(i), features, w)
    return tables
