"""Jagged arrays against lists of lists, under transformations, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.recsys import JaggedTensor

LISTS = st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=6)


def dense_of(lists, most, fill=0):
    out = np.full((len(lists), most), fill)
    for i, x in enumerate(lists):
        out[i, : len(x[:most])] = x[:most]
    return out


@given(lists=LISTS, spare=st.integers(0, 3), most=st.integers(0, 6), start=st.integers(0, 6))
def test_jagged_is_its_lists(lists, spare, most, start):
    flat = [i for x in lists for i in x]
    jt = JaggedTensor.from_lists(lists, capacity=len(flat) + spare)
    assert jt.to_lists() == lists
    assert (jt.batch, jt.capacity, int(jt.count)) == (len(lists), len(flat) + spare, len(flat))
    assert (
        jt.segments().tolist() == [b for b, x in enumerate(lists) for _ in x] + [len(lists)] * spare
    )
    np.testing.assert_array_equal(jt.to_dense(most, -1), dense_of(lists, most, -1))
    assert jt[start:].to_lists() == lists[start:]
    assert jt[:start].to_lists() == lists[:start]
    again = JaggedTensor.from_offsets(jt.values, jt.offsets)
    assert again.to_lists() == lists
    if lists:
        sizes = [min(len(x), most) for x in lists]
        back = JaggedTensor.from_dense(dense_of(lists, most), np.array(sizes, "int32"))
        assert back.to_lists() == [x[:most] for x in lists]


def test_compiled_as_evaluated():
    jt = JaggedTensor.from_lists([[3, 1], [], [2]], [[0.5, 1.0], [], [2.0]], capacity=5)
    parts = lambda x: (x.segments(), x.offsets, x.to_dense(2), x[1:], x.count)
    for got, want in zip(tree.leaves(fg.jit(parts)(jt)), tree.leaves(parts(jt)), strict=True):
        np.testing.assert_array_equal(got, want)


def test_mapped_over_several():
    many = [JaggedTensor.from_lists(x, capacity=4) for x in ([[1], [2, 3]], [[], [4]])]
    stacked = tree.map(lambda *x: fnp.stack(x), *many)
    dense = fg.vmap(lambda jt: jt.to_dense(2))(stacked)
    np.testing.assert_array_equal(dense, [[[1, 0], [2, 3]], [[0, 0], [4, 0]]])


def test_gradients_of_values_and_weights():
    jt = JaggedTensor([1.0, 2.0, 3.0, 9.0], [2, 1], [1.0, 1.0, 2.0, 9.0])

    def f(jt):
        sums = fg.ops.segment_sum(jt.values * jt.weights, jt.segments(), jt.batch)
        return fnp.sum(sums**2)

    grads = fg.grad(lambda v, w: f(JaggedTensor(v, jt.lengths, w)), (0, 1))(jt.values, jt.weights)
    np.testing.assert_allclose(grads[0], [6, 6, 24, 0])
    np.testing.assert_allclose(grads[1], [6, 12, 36, 0])


def test_put_on_a_device():
    jt = fg.device_put(JaggedTensor.from_lists([[1], [2]]), fg.devices()[0])
    assert jt.to_lists() == [[1], [2]]
    assert tree.keystr(tree.leaves_with_path(jt)[0][0]) == ".values"


def test_sequences_of_vectors():
    jt = JaggedTensor(np.arange(6.0).reshape(3, 2), [1, 2])
    np.testing.assert_array_equal(jt.to_dense(2), [[[0, 1], [0, 0]], [[2, 3], [4, 5]]])
    back = JaggedTensor.from_dense(jt.to_dense(2), [1, 2])
    np.testing.assert_array_equal(back.values[:3], jt.values)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: JaggedTensor([1, 2], [1, -1]), ArgumentError, "length of bag 1 is -1"),
        (lambda: JaggedTensor([1, 2], [1, 2]), ArgumentError, "bag 1 ends behind 3 values"),
        (lambda: JaggedTensor([1], [1.0]), DTypeError, "lengths must be integers"),
        (lambda: JaggedTensor([1], [[1]]), ShapeError, "lengths \\(batch,\\)"),
        (lambda: JaggedTensor([1], [1], [1.0, 2.0]), ShapeError, "one number for each of 1"),
        (lambda: JaggedTensor.from_offsets([1], [1, 1]), ArgumentError, "begin with 0, got 1"),
        (lambda: JaggedTensor.from_offsets([1], [0, 2, 1]), ArgumentError, "2 at 1 is followed"),
        (lambda: JaggedTensor.from_offsets([1], 0), ArgumentError, "offsets must be"),
        (lambda: JaggedTensor.from_offsets([1], [0, 2]), ArgumentError, "ends behind 2"),
        (lambda: JaggedTensor.from_lists([[1], [2]], capacity=1), ArgumentError, "capacity is 1"),
        (lambda: JaggedTensor.from_lists([[1], 2]), ArgumentError, "bag 1 must be a list"),
        (lambda: JaggedTensor.from_lists([[1], [1 << 40]]), ArgumentError, "1099511627776 at 1"),
        (lambda: JaggedTensor.from_lists([[1.5]]), DTypeError, "need integers"),
        (lambda: JaggedTensor.from_lists([[1]], [[1.0, 2.0]]), ArgumentError, "bag 0 differs"),
        (lambda: JaggedTensor.from_dense([[1]], [2]), ArgumentError, "bag 0 has 2 values"),
        (lambda: JaggedTensor.from_dense([1], [2]), ShapeError, "need x"),
        (lambda: JaggedTensor([1], [1])[0], ArgumentError, "a slice of the batch"),
        (lambda: JaggedTensor([1], [1])[::2], ArgumentError, "a slice of the batch"),
        (
            lambda: fg.jit(lambda x: x.to_dense())(JaggedTensor([1], [1])),
            ArgumentError,
            "to_dense\\(most\\)",
        ),
    ],
)
def test_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()
