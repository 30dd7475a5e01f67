"""Shifts of cut axes: numpy's roll, and the rows that are sent."""

import numpy as np
import pytest

from funcgrad.core.sharding import AbstractMesh
from funcgrad.parallel.partitioner.shift import centered, shift_p
from tests.parallel.partitioned import checked, counts, partitioned, run

X = np.arange(48).reshape(16, 3)
MESHES = [
    (AbstractMesh((4,), "x"), ("x",)),
    (AbstractMesh((2, 2), ("x", "y")), ("y", "x")),
    (AbstractMesh((2, 2), ("x", "y")), ("y",)),
    (AbstractMesh((1, 4), ("x", "y")), ("x", "y")),
    (AbstractMesh((16,), "x"), ("x",)),
    (AbstractMesh((2,), "x"), ()),
]


@pytest.mark.parametrize(("mesh", "cut"), MESHES, ids=str)
def test_every_offset(mesh, cut):
    parts = mesh.extent(cut)
    for offset in range(-17, 18):
        program, _, args = partitioned(
            lambda x, k=offset: [shift_p.bind(x, axis=0, offset=k)], [X], mesh, [(cut, ())]
        )
        (got,) = run(checked(program), args)
        np.testing.assert_array_equal(got, np.roll(X, -offset, 0))
        ahead, rows = divmod(centered(offset, 16), 16 // parts)
        sends = [ahead % parts != 0, bool(rows) and (ahead + 1) % parts != 0]
        assert counts(program).get("ppermute", 0) == sum(sends)


def test_the_other_axis_is_of_no_matter():
    mesh = AbstractMesh((4,), "x")
    program, *_ = partitioned(
        lambda x: [shift_p.bind(x, axis=1, offset=1)], [X], mesh, [(("x",), ())]
    )
    assert counts(checked(program)) == {}
    np.testing.assert_array_equal(run(program, [X])[0], np.roll(X, -1, 1))
