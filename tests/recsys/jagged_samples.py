"""What the tests of recommenders share: random bags, and sums over them by Python loops."""

import numpy as np

from funcgrad import recsys


def bags(rng, batch, ids, most=4, empty=0.3):
    """Lists of ids below `ids`, with repetitions; some are empty."""
    sizes = rng.integers(1, most + 1, batch) * (rng.random(batch) > empty)
    return [rng.integers(0, ids, n).tolist() for n in sizes]


def loads(rng, lists):
    """A weight for each id."""
    return [rng.normal(size=len(x)).astype("float32").tolist() for x in lists]


def features(rng, sizes, batch=6, weighted=False, most=4, spare=3):
    """Random features by name, and the lists they are made of."""
    lists = {k: bags(rng, batch, n, most) for k, n in sizes.items()}
    weights = {k: loads(rng, x) for k, x in lists.items()} if weighted else None
    room = {k: sum(map(len, x)) + spare for k, x in lists.items()}
    return recsys.KeyedJaggedTensor.from_lists(lists, weights, capacity=room), lists, weights


def pooled(table, lists, weights=None, mean=False):
    """Sums (means) of rows, bag by bag."""
    out = np.zeros((len(lists), table.shape[1]), np.float64)
    for b, ids in enumerate(lists):
        for j, i in enumerate(ids):
            out[b] += table[i] * (1.0 if weights is None else weights[b][j])
        if mean and ids:
            out[b] /= len(ids)
    return out
