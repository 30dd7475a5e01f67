"""Views: axes of a weight through transposes and reshapes, against NumPy's on the elements."""

import numpy as np
import pytest

from funcgrad.transforms.weights.view import Part, View


def random_view(rng, shape):
    """A view of a weight, and the same done to an array."""
    view, array = View.whole(shape), np.arange(np.prod(shape)).reshape(shape)
    for _ in range(4):
        if rng.random() < 0.5:
            order = rng.permutation(array.ndim)
            view, array = view.transposed(order), array.transpose(order)
        else:
            factors = []
            for n in array.shape:
                d = rng.choice([d for d in range(1, n + 1) if n % d == 0])
                factors += [int(d), int(n // d)]
            sizes = [factors[0]]
            for n in factors[1:]:
                if rng.random() < 0.5:
                    sizes[-1] *= n
                else:
                    sizes.append(n)
            found = view.reshaped(sizes)
            if found is not None:
                view, array = found, array.reshape(sizes)
    return view, array


@pytest.mark.parametrize("seed", range(20))
def test_arranged_elements_are_those_that_numpy_gives(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 4, 6, 12], rng.integers(1, 4)))
    view, array = random_view(rng, shape)
    assert view.sizes == array.shape
    elements = np.arange(np.prod(shape)).reshape(shape)
    np.testing.assert_array_equal(view.arrange(elements), array)


@pytest.mark.parametrize("seed", range(10))
def test_what_an_axis_has_lies_where_the_operation_has_it(seed):
    rng = np.random.default_rng(seed)
    view, _ = random_view(rng, (4, 6))
    scale = np.arange(6.0).reshape(1, 6)
    whole = view.arrange(np.broadcast_to(scale, (4, 6)))
    np.testing.assert_array_equal(np.broadcast_to(view.arrange(scale), view.sizes), whole)


def test_a_reshape_that_mixes_axes_is_none():
    assert View.whole((4, 6)).reshaped((6, 4)) is None
    assert View.whole((4, 6)).transposed((1, 0)).reshaped((3, 8)).sizes == (3, 8)


def test_rows_of_a_stack():
    view = View.whole((5, 4, 6)).transposed((0, 2, 1)).row()
    assert view == View.whole((4, 6)).transposed((1, 0))
    assert View.whole((5, 4)).transposed((1, 0)).row() is None
    assert View.whole((1, 4)).row() == View.whole((4,))


def test_axis_of():
    view = View.whole((4, 6)).reshaped((2, 2, 6))
    assert [view.axis_of(d) for d in range(3)] == [None, None, 1]
    assert view.dims[0] == (Part(0, 2, 2),)
