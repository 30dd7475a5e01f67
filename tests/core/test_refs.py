"""What a Ref is: reading, writing, and what it refuses."""

import copy

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import OutOfBoundsError, RefError, ShapeError


def test_facts():
    ref = fg.new_ref(fnp.ones((2, 3)))
    assert (ref.shape, ref.dtype, ref.ndim, ref.size, len(ref)) == ((2, 3), np.float32, 2, 6, 2)
    assert repr(fg.typeof(ref)) == "Ref{f32[2,3]}"
    assert fg.typeof(ref) == fg.typeof(fg.new_ref(fnp.zeros((2, 3))))
    assert fg.typeof(ref) != fg.typeof(fg.new_ref(1.0))
    assert not fg.new_ref(1.0)[...].weak_type
    assert isinstance(ref, fg.Ref)
    assert not isinstance(ref, fg.Array)
    assert copy.copy(ref) is copy.deepcopy(ref) is ref
    assert ref == ref
    assert ref != fg.new_ref(fnp.ones((2, 3)))
    assert fg.tree.leaves({"a": ref}) == [ref]


def test_what_was_read_stays():
    ref = fg.new_ref(fnp.arange(3))
    before = ref[...]
    ref[1] = 7
    ref[np.array([0, 2])] += 1
    assert before.tolist() == [0, 1, 2]
    assert ref[...].tolist() == [1, 7, 3]
    assert repr(ref) == "Ref([1, 7, 3], dtype=int32)"


def test_numbers_take_the_dtype_and_shape():
    ref = fg.new_ref(fnp.zeros(2, "bfloat16"))
    ref[...] = 1
    ref[0] = 2.5
    assert (ref[...].dtype, ref[...].tolist()) == (fg.dtypes.bfloat16, [2.5, 1.0])


@pytest.mark.parametrize(
    ("value", "words"),
    [(1.5, r"i32\[2\] can't be written with f32\[\]"), (fnp.ones(2), r"f32\[2\]"),
     (np.ones(2, "int64"), r"i64\[2\]: its dtype stays"), (fg.new_ref(1), "write its value")],
)  # fmt: skip
def test_other_dtypes_are_refused(value, words):
    ref = fg.new_ref(fnp.zeros(2, "int32"))
    with pytest.raises(RefError, match=words):
        ref[...] = value
    with pytest.raises(RefError, match=words):
        ref.addupdate(value)
    assert ref[...].tolist() == [0, 0]


def test_other_shapes_and_places_are_refused():
    ref = fg.new_ref(fnp.zeros(2))
    with pytest.raises(ShapeError, match="does not broadcast"):
        ref[...] = fnp.ones(3)
    with pytest.raises(OutOfBoundsError, match="index 5"):
        ref[5] = 1.0
    with pytest.raises(OutOfBoundsError, match="index 5"):
        ref[5]


def test_a_ref_is_no_array():
    ref = fg.new_ref(fnp.ones(2))
    for use in (fnp.sin, lambda r: r + 1, bool, iter, np.asarray, lambda r: len(fg.new_ref(1.0))):
        with pytest.raises(TypeError):
            use(ref)


def test_frozen_and_freed():
    ref, other = fg.new_ref(1.0), fg.new_ref(2.0)
    assert float(fg.freeze(ref)) == 1.0
    assert fg.free_ref(other) is None
    for gone, words in ((ref, "was frozen"), (other, "was freed")):
        with pytest.raises(RefError, match=words):
            gone[...]
        with pytest.raises(RefError, match=words):
            gone[...] = 1.0
        with pytest.raises(RefError, match=words):
            fg.jit(lambda r: r[...])(gone)
    assert repr(ref) == "Ref{f32[]}"
