"""From each layout to each other: the values, the steps, the bytes."""

import itertools
import math

import numpy as np
import pytest

from funcgrad.core import context
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import interpret
from funcgrad.core.sharding import AbstractMesh, local_shape
from funcgrad.core.staging import stage
from funcgrad.parallel.partitioner.reshard import (
    Layout,
    apply,
    cost,
    moved,
    steps,
    used_axes,
    whole,
)
from funcgrad.parallel.programs.program import SpmdProgram
from funcgrad.parallel.runtimes.lockstep import lockstep
from tests.parallel.test_partition_ops import choices

MESH = AbstractMesh((2, 3), ("x", "y"))
SHAPE = (12, 6)
AVAL = ShapedArray(SHAPE, "float32")
ALL_CUTS = choices(MESH, SHAPE)


def kinds(have, want):
    return [s.kind for s in steps(have, want)]


def device_program(have, want):
    """The program that brings an array from one layout to another. A value that is partial starts
    as a whole one on all devices, so that its sum is that many times it."""

    def fun(x):
        y = apply(x, Layout(have.cuts), have, MESH.shape)
        z = apply(y, have, want, MESH.shape)
        return [apply(z, want, Layout(want.cuts), MESH.shape)]

    local = AVAL.update(shape=local_shape(MESH.shape, have.cuts, SHAPE))
    with context.scoped(axes=MESH.shape):
        jaxpr, _ = stage(fun, [local])
    return SpmdProgram(jaxpr, MESH, (have.cuts,), (want.cuts,))


def layouts():
    for cuts in ALL_CUTS:
        free = sorted(set(MESH.axis_names) - used_axes(cuts))
        for k in range(len(free) + 1):
            for partial in itertools.combinations(free, k):
                yield Layout(cuts, frozenset(partial))


@pytest.mark.parametrize("have", list(layouts()), ids=lambda h: f"{h.cuts}{sorted(h.partial)}")
def test_every_pair_of_layouts(have):
    x = np.arange(72, dtype="float32").reshape(SHAPE)
    for want in layouts():
        program = device_program(have, want)
        (got,) = interpret(lockstep(program), np, x)
        np.testing.assert_array_equal(got, x, err_msg=f"{have} to {want}: {steps(have, want)}")


X, Y, NONE = ("x",), ("y",), ()
PARTIAL = Layout((NONE, NONE), frozenset("x"))


@pytest.mark.parametrize(
    ("have", "want", "expected"),
    [
        (whole(2), Layout((X, NONE)), ["slice"]),
        (Layout((X, NONE)), whole(2), ["all_gather"]),
        (Layout((X, NONE)), Layout((NONE, X)), ["all_to_all"]),
        (Layout((("x", "y"), NONE)), Layout((X, NONE)), ["all_gather"]),
        (Layout((("x", "y"), NONE)), Layout((X, Y)), ["all_to_all"]),
        (Layout((X, NONE)), Layout((("x", "y"), NONE)), ["slice"]),
        (PARTIAL, whole(2), ["all_reduce"]),
        (PARTIAL, Layout((NONE, X)), ["reduce_scatter"]),
        # What is free comes first, so that less is summed.
        (PARTIAL, Layout((Y, NONE)), ["slice", "all_reduce"]),
        (PARTIAL, Layout((Y, X)), ["slice", "reduce_scatter"]),
        (Layout((Y, NONE), frozenset("x")), Layout((NONE, X)), ["reduce_scatter", "all_gather"]),
        (Layout((NONE, NONE), frozenset("xy")), whole(2), ["all_reduce"]),
        (Layout((NONE, NONE), frozenset("xy")), Layout((("y", "x"), NONE)), ["reduce_scatter"] * 2),
        (whole(2), PARTIAL, ["first"]),
    ],
)
def test_steps(have, want, expected):
    assert kinds(have, want) == expected


def test_costs():
    n = 4.0 * math.prod(SHAPE)
    sizes = MESH.shape
    cut, moved_cut = Layout((X, NONE)), Layout((NONE, X))
    assert cost(AVAL, cut, cut, sizes) == 0
    assert cost(AVAL, whole(2), cut, sizes) == 0
    assert cost(AVAL, cut, whole(2), sizes) == n / 2
    assert cost(AVAL, cut, moved_cut, sizes) == n / 4
    assert cost(AVAL, PARTIAL, whole(2), sizes) == n
    assert cost(AVAL, PARTIAL, moved_cut, sizes) == n / 2
    assert cost(AVAL, Layout((Y, NONE)), whole(2), sizes) == n * 2 / 3
    assert moved("permute", n, 2) == n
    assert moved("slice", n, 2) == 0


def test_one_device_moves_nothing():
    with context.scoped(axes={"x": 1}):
        jaxpr, _ = stage(lambda x: [apply(x, PARTIAL, whole(2), {"x": 1})], [AVAL])
    assert not jaxpr.eqns
