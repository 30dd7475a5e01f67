"""Settings: of blocks, of decorated functions, and of the whole process."""

import threading

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import DTypeError


@pytest.fixture
def float32_again():
    yield
    fg.default_dtype("float32")
    fg.default_dtype("int32")


def floats():
    """The dtypes of what takes the default, made in several ways."""
    made = [fnp.zeros(1), fnp.array(1.5), fnp.mean(fnp.arange(3)), fnp.arange(3) / 2]
    return {x.dtype.name for x in made}


@pytest.mark.usefixtures("float32_again")
def test_a_call_sets_the_default_of_the_process():
    compiled = fg.jit(lambda x: x + fnp.zeros(2))
    eager = [compiled(1).dtype.name, *floats()]
    assert set(eager) == {"float32"}
    fg.default_dtype("float64")
    assert floats() == {"float64"}
    assert compiled(1).dtype == np.float64
    found = []
    thread = threading.Thread(target=lambda: found.append(floats()))
    thread.start()
    thread.join()
    assert found == [{"float64"}]
    fg.default_dtype("float32")
    assert floats() == {"float32"}
    assert compiled(1).dtype == np.float32


@pytest.mark.usefixtures("float32_again")
def test_blocks_hide_the_default_of_the_process():
    fg.default_dtype("float64")
    with fg.default_dtype("float32"):
        assert floats() == {"float32"}
    assert floats() == {"float64"}


@pytest.mark.usefixtures("float32_again")
def test_integers():
    fg.default_dtype("int64")
    assert fnp.arange(3).dtype == np.int64
    assert floats() == {"float32"}


def test_blocks_and_decorated_functions_leave_the_process_alone():
    @fg.default_dtype("float64")
    def decorated():
        return floats()

    assert floats() == {"float32"}
    assert decorated() == decorated() == {"float64"}
    with fg.default_dtype("float64"):
        found = []
        thread = threading.Thread(target=lambda: found.append(floats()))
        thread.start()
        thread.join()
        assert found == [{"float32"}]
    assert floats() == {"float32"}
    with pytest.raises(RuntimeError, match="inside"), fg.default_dtype("float64"):
        raise RuntimeError("inside")
    assert floats() == {"float32"}


@pytest.mark.parametrize("dtype", ["bool", "complex64"])
def test_dtypes_that_are_no_default(dtype):
    with pytest.raises(DTypeError, match="default_dtype: need a float or an integer dtype, got"):
        fg.default_dtype(dtype)
    assert floats() == {"float32"}
