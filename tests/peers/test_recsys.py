"""Lookups and row-wise Adagrad beside PyTorch's EmbeddingBag, from the same rows and ids."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import recsys

torch = pytest.importorskip("torch")

ROWS, DIM, BATCH = 50, 8, 16


def bags(rng):
    lengths = rng.integers(0, 6, BATCH).astype("int32")
    ids = rng.integers(0, ROWS, lengths.sum()).astype("int32")
    weights = rng.normal(size=len(ids)).astype("float32")
    return recsys.JaggedTensor(ids, lengths, weights), ids, lengths, weights


def torch_bags(table, ids, lengths, weights, mode):
    offsets = torch.from_numpy(np.cumsum(lengths) - lengths).long()
    given = None if weights is None else torch.from_numpy(weights)
    return torch.nn.functional.embedding_bag(
        torch.from_numpy(ids).long(), table, offsets, mode=mode, per_sample_weights=given
    )


@pytest.mark.parametrize(("mode", "weighted"), [("sum", True), ("sum", False), ("mean", False)])
def test_bags_and_their_derivatives(rng, mode, weighted):
    x, ids, lengths, weights = bags(rng)
    if not weighted:
        x, weights = recsys.JaggedTensor(ids, lengths), None
    table = rng.normal(size=(ROWS, DIM)).astype("float32")
    factor = rng.normal(size=(BATCH, DIM)).astype("float32")
    theirs = torch.from_numpy(table).requires_grad_()
    want = torch_bags(theirs, ids, lengths, weights, mode)
    (want * torch.from_numpy(factor)).sum().backward()
    got = fg.jit(lambda t, x: recsys.embedding_bag(t, x, mode))(table, x)
    np.testing.assert_allclose(got, want.detach(), rtol=1e-5, atol=1e-5)
    loss = lambda t, x: fnp.sum(recsys.embedding_bag(t, x, mode) * factor)
    grads = fg.jit(recsys.value_and_sparse_grad(loss))(fnp.asarray(table), x)[1]
    np.testing.assert_allclose(grads.to_dense(), theirs.grad, rtol=1e-4, atol=1e-5)


def test_row_wise_adagrad(rng):
    """Of dense gradients of torch's autograd, by the formula of FBGEMM's kernel."""
    table = rng.normal(size=(ROWS, DIM)).astype("float32")
    ours, opt = fnp.asarray(table), recsys.rowwise_adagrad(0.1, eps=1e-8)
    state, sums = opt.init(ours), np.zeros(ROWS, "float32")
    theirs = torch.from_numpy(table.copy())

    @fg.jit
    def step(table, state, x):
        loss = lambda t, x: fnp.sum(fnp.tanh(recsys.embedding_bag(t, x)))
        _, grads = recsys.value_and_sparse_grad(loss)(table, x)
        updates, state = opt.update(grads, state, table)
        return recsys.apply_updates(table, updates), state

    lengths = np.full(BATCH, 3, "int32")
    for _ in range(5):
        ids = rng.integers(0, ROWS, 3 * BATCH).astype("int32")
        ours, state = step(ours, state, recsys.JaggedTensor(ids, lengths))
        leaf = theirs.clone().requires_grad_()
        torch.tanh(torch_bags(leaf, ids, lengths, None, "sum")).sum().backward()
        g = leaf.grad.numpy()
        sums += (g * g).mean(1)
        theirs -= torch.from_numpy(0.1 * g / (np.sqrt(sums) + 1e-8)[:, None])
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.slots["sum"], sums, rtol=1e-4, atol=1e-6)


def test_lazy_adam(rng):
    """PyTorch's SparseAdam, from the same sparse gradients."""
    table = rng.normal(size=(ROWS, DIM)).astype("float32")
    ours, opt = fnp.asarray(table), recsys.lazy_adam(0.1)
    state = opt.init(ours)
    bag = torch.nn.EmbeddingBag(
        ROWS, DIM, mode="sum", sparse=True, _weight=torch.from_numpy(table.copy())
    )
    theirs = torch.optim.SparseAdam(bag.parameters(), lr=0.1)
    factor = rng.normal(size=(BATCH, DIM)).astype("float32")
    loss = lambda t, x: fnp.sum(recsys.embedding_bag(t, x) * factor)
    for _ in range(5):
        _, ids, lengths, _ = bags(rng)
        _, grads = recsys.value_and_sparse_grad(loss)(ours, recsys.JaggedTensor(ids, lengths))
        updates, state = opt.update(grads, state, ours)
        ours = recsys.apply_updates(ours, updates)
        offsets = torch.from_numpy(np.cumsum(lengths) - lengths).long()
        theirs.zero_grad()
        out = bag(torch.from_numpy(ids).long(), offsets)
        (out * torch.from_numpy(factor)).sum().backward()
        theirs.step()
    np.testing.assert_allclose(ours, bag.weight.detach(), rtol=1e-3, atol=1e-4)
    kept = theirs.state[bag.weight]
    for ours_of, theirs_of in (("mu", "exp_avg"), ("nu", "exp_avg_sq")):
        np.testing.assert_allclose(
            state.slots[ours_of], kept[theirs_of], rtol=1e-4, atol=1e-6, err_msg=ours_of
        )
