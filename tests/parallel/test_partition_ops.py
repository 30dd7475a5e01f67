"""Every op, by its row of samples, cut over meshes: as the unsharded one, values and gradients.

`--all-cuts K/N` runs part K of N of all combinations of the operands' cuts on each mesh; of more
than MOST, it takes some in which every pair of cuts of any two operands occurs.
"""

import functools
import itertools
import math
import random
import zlib

import numpy as np
import pytest

from funcgrad import dtypes
from funcgrad.core.ir import interpret
from funcgrad.core.sharding import AbstractMesh, NamedSharding, PartitionSpec
from funcgrad.core.trace import aval_of
from funcgrad.ops.sharding import sharding_constraint_p
from funcgrad.transforms.batching.vmap import vmap
from tests.op_checks import arrays, batched_rows, by_row, function, operands, typical, varying
from tests.op_samples import ROWS
from tests.op_samples_base import F32, F64, assert_close
from tests.ops.rules import random_like, vjp
from tests.parallel.partitioned import checked, partitioned, run

MESHES = [
    AbstractMesh((2,), ("x",)),
    AbstractMesh((4,), ("x",)),
    AbstractMesh((2, 2), ("x", "y")),
]
BATCH = 4
MANY, MOST = 30, 1000


@functools.cache
def choices(mesh, shape):
    """All ways to cut an array over a mesh."""
    names = mesh.axis_names
    options = [(), *((a,) for a in names), *itertools.permutations(names, 2)]
    found = []
    for cuts in itertools.product(options, repeat=len(shape)):
        used = [a for axes in cuts for a in axes]
        fits = all(n and n % mesh.extent(a) == 0 for n, a in zip(shape, cuts, strict=True) if a)
        if fits and len(set(used)) == len(used):
            found.append(cuts)
    return found


def all_pairs(counts):
    """Combinations of one of each count, in which every pair of any two occurs: the p² lines
    i ↦ a + b·i of a field of p elements, two of which never agree in two places."""
    p = max(*counts, len(counts), 2)
    while any(p % d == 0 for d in range(2, math.isqrt(p) + 1)):
        p += 1
    lines = itertools.product(range(p), repeat=2)
    return {tuple((a + b * i) % p % n for i, n in enumerate(counts)) for a, b in lines}


def piece_of_all(each, rng, k, n):
    """Part k of n of all combinations of choices, or of all pairs of them, in a random order."""
    counts = [len(c) for c in each]
    if math.prod(counts) <= MOST:
        combinations = list(itertools.product(*map(range, counts)))
    else:
        combinations = sorted(all_pairs(counts))
    rng.shuffle(combinations)
    return [[c[i] for c, i in zip(each, picked, strict=True)] for picked in combinations[k::n]]


def sampled(mesh, args, rng, most):
    """Some ways to cut the operands, most of them in some way; some are left open (None). Where
    `most` is a pair (k, n): part k of n of all ways, none of them open."""
    each = [choices(mesh, np.shape(x)) for x in args]
    if isinstance(most, tuple):
        return piece_of_all(each, random.Random(0), *most)
    if np.prod([len(c) for c in each], dtype=float) <= most:
        return list(itertools.product(*each))
    return [
        [None if rng.random() < 0.1 else rng.choice(c[rng.random() < 0.7 :] or c) for c in each]
        for _ in range(most)
    ]


def constrained(fun, mesh, rng):
    """The function with its results cut in some way."""

    def wrapped(*xs):
        outs = []
        for o in fun(*xs):
            cuts = rng.choice(choices(mesh, aval_of(o).shape))
            s = NamedSharding(mesh, PartitionSpec(*cuts))
            outs.append(sharding_constraint_p.bind(o, sharding=s) if rng.random() < 0.5 else o)
        return outs

    return wrapped


def check(fun, args, row, rng, most, ulps=256):
    for mesh in MESHES:
        for cuts in sampled(mesh, args, rng, most):
            program, jaxpr, values = partitioned(constrained(fun, mesh, rng), args, mesh, cuts)
            checked(program)
            want = interpret(jaxpr, np, *(np.asarray(v) for v in values))
            for g, w in zip(run(program, values), want, strict=True):
                size = np.abs(np.where(np.isfinite(w), w, 0)).max(initial=1)
                size = float(size) if dtypes.is_inexact(w.dtype) else 1.0
                try:
                    assert_close(g, w, ulps, ulps * size, str(row))
                except AssertionError as error:
                    raise AssertionError(f"{error}\ncut {cuts}\n{jaxpr}\n{program}") from None


def seeded(what):
    number = zlib.crc32(what.encode())
    return random.Random(number), np.random.default_rng(number)


def how_many(request, few):
    piece = request.config.getoption("--all-cuts")
    if piece:
        k, n = map(int, piece.split("/"))
        return k - 1, n
    return MANY if request.config.getoption("--slow") else few


@pytest.mark.sampled(4)
@by_row(ROWS)
def test_values(row, request):
    for k, case in enumerate(row.cases_for("dims")):
        rng, numbers = seeded(f"{row} {k}")
        args = operands(row, case, numbers, typical(row))
        check(function(row, case), args, row, rng, how_many(request, 2))


@pytest.mark.sampled(8)
@by_row(batched_rows())
def test_values_of_batches(row, request):
    """With an axis more, that devices can share."""
    for k, case in enumerate(row.cases_for("vmap")):
        rng, numbers = seeded(f"{row} {k}")
        axes = [rng.randint(0, len(a.shape)) if a.batched else None for a in case.args]
        if all(d is None for d in axes):
            continue
        lanes = [case.make(numbers, typical(row)) for _ in range(BATCH)]
        args = [
            lanes[0][i] if d is None else np.stack([lane[i] for lane in lanes], d)
            for i, d in enumerate(axes)
        ]
        check(vmap(function(row, case), tuple(axes)), args, row, rng, how_many(request, 2))


@pytest.mark.sampled(4)
@by_row([row for row in batched_rows() if row.order and row.cases_for("grad")])
def test_gradients(row, request):
    dtype = next((d for d in (F32, F64) if d in row.dtypes), None)
    for k, case in enumerate(row.cases_for("grad")):
        if dtype is None:
            continue
        rng, numbers = seeded(f"{row} {k}")
        given = case.make(numbers, dtype)
        fun, xs = varying(row, case, given)
        outs = [np.asarray(o) for o in fun(*arrays(xs))] if xs else []
        cts = [random_like(numbers, o) for o in outs if dtypes.is_inexact(o.dtype)]
        if not cts:
            continue

        n = len(xs)

        def pulled(*values, fun=fun, n=n):
            return vjp(fun, list(values[:n]), list(values[n:]))

        check(pulled, [*xs, *cts], row, rng, how_many(request, 2), ulps=4096)


def test_parts_of_all_ways_to_cut_are_all_of_them():
    args = [np.zeros((4, 3)), np.zeros((2, 4))]
    parts = [c for k in range(3) for c in sampled(MESHES[2], args, None, (k, 3))]
    each = [choices(MESHES[2], x.shape) for x in args]
    assert sorted(map(repr, parts)) == sorted(repr(list(c)) for c in itertools.product(*each))


def test_every_pair_occurs():
    counts = [29, 4, 31, 9, 1]
    found = all_pairs(counts)
    assert len(found) <= 31**2
    for i, j in itertools.combinations(range(5), 2):
        assert len({(c[i], c[j]) for c in found}) == counts[i] * counts[j]


def test_choices():
    assert choices(MESHES[0], (4, 3)) == [((), ()), (("x",), ())]
    assert len(choices(MESHES[2], (4, 2))) == 9


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_some_way_to_cut_is_sampled(mesh):
    found = sampled(mesh, [np.zeros((4, 4)), np.zeros(8)], random.Random(0), 5)
    assert len(found) == 5
    assert any(c is not None and any(c) for cuts in found for c in cuts)
