"""Where arrays are made, and which there are."""

import gc

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import random
from tests.away import HERE, THERE, register


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    register(monkeypatch)


def made():
    key = random.key(0)
    return {
        "array": fnp.array([1.0, 2.0]), "numpy": fnp.asarray(np.ones(2)), "zeros": fnp.zeros(2),
        "arange": fnp.arange(3), "linspace": fnp.linspace(0, 1, 3), "key": key.data,
        "normal": random.normal(key), "jit": fg.jit(lambda x: x + 1)(1.0),
    }  # fmt: skip


def test_a_block():
    with fg.default_device(THERE):
        assert {name: x.device for name, x in made().items()} == dict.fromkeys(made(), THERE)
        assert fnp.asarray(fnp.ones(2, device=HERE)).device == HERE
    assert {x.device for x in made().values()} == {HERE}


def test_arrays_stay_where_they_are():
    x = fnp.ones(3)
    f = fg.jit(lambda x: x * 2)
    f(x)
    with fg.default_device(THERE):
        assert (x + 1).device == f(x).device == HERE
        assert f(2.0).device == THERE
        with fg.default_device("cpu"):
            assert fnp.zeros(2).device == HERE


def test_calls_set_the_process_and_decorators_a_function():
    try:
        fg.default_device(THERE)
        assert fnp.zeros(2).device == THERE
    finally:
        fg.default_device(None)
    assert fnp.zeros(2).device == HERE
    assert fg.default_device(fnp.ones(1).sharding)(lambda: fnp.zeros(1))().device == HERE


def test_bad_devices():
    with pytest.raises(TypeError, match="default_device: device must be a Device, its name"):
        fg.default_device(3)
    with pytest.raises(ValueError, match="default_device: a device is 'cpu'"):
        fg.default_device("tpu")


def test_live_arrays():
    x, y = fnp.ones(3), fg.device_put(fnp.ones(2), THERE)
    f = fg.jit(lambda x: x + 1)
    z = [f(x) for _ in range(40)][-1]  # also what native code makes
    found = {id(a) for a in fg.live_arrays()}
    assert {id(x), id(y), id(z)} <= found
    assert id(y) in {id(a) for a in fg.live_arrays("away")}
    assert id(y) not in {id(a) for a in fg.live_arrays("cpu")}
    x.delete()
    gone = id(z)
    del z
    gc.collect()
    assert not {id(x), gone} & {id(a) for a in fg.live_arrays()}
    with pytest.raises(TypeError, match="live_arrays: platform must be a text"):
        fg.live_arrays(1)
