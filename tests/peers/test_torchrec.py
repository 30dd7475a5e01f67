"""Lookups and row-wise Adagrad beside TorchRec's and FBGEMM's, from the same rows and ids."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import recsys, tree

torch = pytest.importorskip("torch")
pytest.importorskip("fbgemm_gpu", reason="needs fbgemm-gpu-cpu", exc_type=ImportError)
torchrec = pytest.importorskip("torchrec", exc_type=ImportError)

SIZES, SHARED, DIM, BATCH = {"ad": 50, "page": 20}, {"seen": "ad"}, 8, 16
KEYS = {"ad": 50, "seen": 50, "page": 20}  # those of a table side by side, as FBGEMM wants them


def batch(rng, weighted=False):
    """Bags of all features, some of them empty, with ids that repeat."""
    lists = {k: [rng.integers(0, n, rng.integers(0, 6)).tolist() for _ in range(BATCH)]
             for k, n in KEYS.items()}  # fmt: skip
    weights = {k: [rng.normal(size=len(bag)).tolist() for bag in bags] for k, bags in lists.items()}
    return recsys.KeyedJaggedTensor.from_lists(lists, weights if weighted else None)


def tables_of(rng):
    return {k: rng.normal(size=(n, DIM)).astype("float32") for k, n in SIZES.items()}


def as_theirs(features):
    values, lengths = map(np.array, features.packed())
    return torchrec.KeyedJaggedTensor.from_lengths_sync(
        keys=list(features.keys), values=torch.from_numpy(values).long(),
        lengths=torch.from_numpy(lengths).int(),
    )  # fmt: skip


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_bags_and_their_derivatives(rng, pooling):
    whole, features = tables_of(rng), batch(rng)
    factor = rng.normal(size=(BATCH, DIM)).astype("float32")
    configs = [
        torchrec.EmbeddingBagConfig(
            name=k, embedding_dim=DIM, num_embeddings=n,
            feature_names=[f for f in KEYS if SHARED.get(f, f) == k],
            pooling=getattr(torchrec.PoolingType, pooling.upper()),
        )
        for k, n in SIZES.items()
    ]  # fmt: skip
    theirs = torchrec.EmbeddingBagCollection(tables=configs)
    leaves = {k: theirs.embedding_bags[k].weight for k in SIZES}
    with torch.no_grad():
        for k, w in leaves.items():
            w.copy_(torch.from_numpy(whole[k]))
    want = theirs(as_theirs(features)).to_dict()
    sum((x * torch.from_numpy(factor)).sum() for x in want.values()).backward()

    def loss(tables, features):
        bags = recsys.embedding_bag(tables, features, pooling, table_of=SHARED)
        return sum(fnp.sum(x * factor) for x in bags.values()), bags

    f = fg.jit(recsys.value_and_sparse_grad(loss, has_aux=True))
    (_, bags), grads = f(whole, features)
    for k in KEYS:
        np.testing.assert_allclose(bags[k], want[k].detach(), rtol=1e-5, atol=1e-5)
    for k, w in leaves.items():
        np.testing.assert_allclose(grads[k].to_dense(), w.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_row_wise_adagrad(rng, weighted):
    """Rows and sums after five steps of FBGEMM's kernel, which updates as it goes backwards."""
    training = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    common = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_common")
    configs = pytest.importorskip("fbgemm_gpu.split_embedding_configs")
    whole, place = tables_of(rng), common.EmbeddingLocation.HOST
    theirs = training.SplitTableBatchedEmbeddingBagsCodegen(
        [(n, DIM, place, training.ComputeDevice.CPU) for n in SIZES.values()],
        feature_table_map=[list(SIZES).index(SHARED.get(k, k)) for k in KEYS],
        optimizer=configs.EmbOptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=0.1, eps=1e-6,
        pooling_mode=common.PoolingMode.SUM,
    )  # fmt: skip
    for w, x in zip(theirs.split_embedding_weights(), whole.values(), strict=True):
        w.data.copy_(torch.from_numpy(x))
    opt, tables = recsys.rowwise_adagrad(0.1, eps=1e-6), tree.map(fnp.asarray, whole)
    state = opt.init(tables)

    @fg.jit
    def step(tables, state, features):
        def loss(tables, features):
            bags = recsys.embedding_bag(tables, features, table_of=SHARED)
            return fnp.sum(fnp.tanh(fnp.concatenate([bags[k] for k in KEYS], axis=1)))

        _, grads = recsys.value_and_sparse_grad(loss)(tables, features)
        updates, state = opt.update(grads, state, tables)
        return recsys.apply_updates(tables, updates), state

    for _ in range(5):
        features = batch(rng, weighted)
        tables, state = step(tables, state, features)
        values, lengths = map(np.array, features.packed())
        offsets = torch.from_numpy(np.append(0, np.cumsum(lengths))).long()
        loads = None
        if weighted:
            parts = [np.asarray(x.weights)[: int(x.count)] for x in features.features().values()]
            loads = torch.from_numpy(np.concatenate(parts).astype("float32"))
        torch.tanh(theirs(torch.from_numpy(values).long(), offsets, loads)).sum().backward()
    rows = theirs.split_embedding_weights()
    sums = [s[0] for s in theirs.split_optimizer_states()]
    for k, w, s in zip(SIZES, rows, sums, strict=True):
        np.testing.assert_allclose(tables[k], w.detach(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state.slots["sum"][k], s.reshape(-1), rtol=1e-4, atol=1e-6)
