"""Arrays elsewhere than in NumPy's memory, operations on them, and programs."""

import copy
import pickle

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.core.array import Array
from funcgrad.core.buffers import Memory, memory_of, register_memory
from funcgrad.core.eager import functions
from funcgrad.core.places.device_array import DeviceArray
from funcgrad.core.sharding import Device, SingleDeviceSharding
from funcgrad.errors import DonatedBufferError, ShardingError
from funcgrad.io.checkpoints import checkpoint
from tests.away import FARTHER, HERE, MEMORY, RAN, THERE, AwayMemory, register, stays
from tests.ops.elsewhere import READ, Away


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    register(monkeypatch)


@pytest.fixture
def x():
    return fg.device_put(np.float32([[1, 2, 3], [4, 5, 6]]), THERE)


# ---- arrays


def test_facts_need_no_copy(x):
    assert (x.shape, x.dtype, x.ndim, x.size) == ((2, 3), np.float32, 2, 6)
    assert (x.nbytes, x.itemsize, len(x), x.weak_type) == (24, 4, 2, False)
    assert x.device == THERE
    assert x.devices() == {THERE}
    assert THERE.platform == "away"
    assert x.sharding == SingleDeviceSharding(THERE)
    assert x.is_fully_addressable
    (shard,) = x.addressable_shards
    assert (shard.device, shard.data) == (THERE, x)
    assert isinstance(x, Array)
    before = MEMORY.waited
    assert fg.block_until_ready(x) is x
    assert MEMORY.waited == before + 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    stays(x, *x)


def test_what_is_on_the_host_says_so():
    x = fnp.ones(2)
    assert x.device == HERE
    assert x.devices() == {HERE}
    assert x.buffer is x.value
    assert memory_of(x.buffer) is None
    assert HERE.platform == "cpu"


def test_reading_values_copies_them(x):
    want = np.float32([[1, 2, 3], [4, 5, 6]])
    reads = [
        lambda: np.array_equal(np.asarray(x), want),
        lambda: np.asarray(x, np.int8).dtype == np.int8,
        lambda: x.tolist() == want.tolist(),
        lambda: x[1, 2].item() == 6.0,
        lambda: repr(x) == repr(fnp.array(want)),
        lambda: str(x) == str(want),
        lambda: x.tobytes() == want.tobytes(),
        lambda: float(x[0, 1]) == 2.0,
        lambda: int(x[0, 1]) == 2,
        lambda: bool(x[0, 1]),
        lambda: f"{x[0, 1]:.1f}" == "2.0",
        lambda: "Array" in x._repr_html_() or "<" in x._repr_html_(),
        lambda: np.array_equal(fg.device_get({"x": x})["x"], want),
        lambda: np.array_equal(pickle.loads(pickle.dumps(x)), want),
    ]
    for i, read in enumerate(reads):
        READ.clear()
        assert read(), i
        assert READ, i
    with pytest.raises(ValueError, match="none of NumPy's without a copy"):
        np.asarray(x, copy=False)


def test_copies_stay(x):
    for y in (copy.copy(x), copy.deepcopy(x), fnp.array(x), fnp.asarray(x), fg.device_put(x)):
        stays(y)
    assert copy.deepcopy(x).buffer._x is not x.buffer._x
    assert fnp.asarray(x) is x
    assert fnp.asarray(x.buffer).buffer is x.buffer


def test_device_put(x):
    READ.clear()
    farther = fg.device_put({"a": x, "b": 2.0}, FARTHER)
    assert farther["a"].device == farther["b"].device == FARTHER
    assert fg.device_put(x, SingleDeviceSharding(THERE)) is x
    back = fg.device_put(farther["a"], HERE)
    assert type(back) is Array
    assert back.tolist() == x.tolist()
    READ.clear()
    with pytest.raises(ShardingError, match="'virtual', 'rank',.* 'away'"):
        fg.device_put(x, Device(0, kind="nowhere"))
    assert stays(fg.device_put(x.buffer)).buffer is x.buffer
    assert fg.device_put("text", THERE) == "text"
    with pytest.raises(ValueError, match="device_put: a device is 'cpu', .* got 'away'"):
        fg.device_put(x, "away")


def test_deleted(x):
    y = x + 1
    x.delete()
    assert x.is_deleted()
    assert x.shape == (2, 3)
    assert "deleted" in repr(x)
    for use in (lambda: x + 1, lambda: np.asarray(x), lambda: fg.jit(fnp.sin)(x), lambda: x.buffer):
        with pytest.raises(DonatedBufferError, match=r"this array f32\[2,3\] is gone"):
            use()
    stays(y)


def test_a_memory_is_registered_once():
    with pytest.raises(ValueError, match="a memory of 'away' devices"):
        register_memory(AwayMemory())


# ---- operations


def test_operations_stay(x):
    operations = [
        lambda: x + 1, lambda: 2.0 * x, lambda: x @ x.T, lambda: np.float32(2) - x,
        lambda: np.ones(3, np.float32) + x, lambda: fnp.ones(3) + x, lambda: x[0], lambda: x[:, 1:],
        lambda: x[fnp.array([1, 0])], lambda: x.at[0, 1].set(9.0), lambda: x.sum(0), lambda: -x,
        lambda: fnp.where(x > 2, x, 0.0), lambda: fnp.sort(x), lambda: x.astype("int8"),
        lambda: fnp.concatenate([x, x]), lambda: fnp.tril(x), lambda: fg.nn.softmax(x),
        lambda: fg.lax.top_k(x, 2)[1], lambda: fnp.mean(x), lambda: fnp.argmax(x, 1),
    ]  # fmt: skip
    for again in range(2):
        for i, run in enumerate(operations):
            assert stays(run()) is not None, (again, i)
        # Then with native calls, which know nothing of such arrays.
        assert functions.activate() in (True, False)


def test_operations_are_as_here(x):
    here = fg.device_put(x, HERE)
    for f in (lambda x: fnp.tanh(x) @ x.T + 1, fnp.cumsum, lambda x: x / x.sum(1, keepdims=True)):
        np.testing.assert_array_equal(f(x), f(here))
    assert (x + 1).weak_type is False
    assert (fg.device_put(2.0, THERE) + 1).weak_type


def test_transformations_stay(x):
    def loss(x):
        return fnp.sum(fnp.tanh(x) ** 2)

    here = fg.device_put(x, HERE)
    for transformed in (
        fg.grad(loss), fg.vmap(loss), fg.jacfwd(loss), fg.grad(fg.jit(loss)),
        lambda x: fg.jvp(loss, (x,), (x,))[1], lambda x: fg.lax.map(loss, x),
    ):  # fmt: skip
        READ.clear()
        got = transformed(x)
        assert type(got) is DeviceArray
        assert got.device == THERE
        np.testing.assert_allclose(got, transformed(here), rtol=1e-6)


@pytest.mark.parametrize("f", [lambda x, y: x + y, fg.jit(lambda x, y: x + y)])
def test_two_devices_are_an_error_that_names_both(x, f):
    with pytest.raises(ShardingError, match="different devices, .*id=0.* and .*id=1.*device_put"):
        f(x, fg.device_put(1.0, FARTHER))
    stays(f(x, fg.device_put(1.0, HERE)))


def test_operations_run_where_their_operands_are(x):
    y = fg.device_put(x, FARTHER)
    READ.clear()
    stays(y + 1, fnp.sum(y), y.astype("int32"), fg.jit(fnp.sin)(y), device=FARTHER)


def test_debug_nans(x):
    with fg.debug_nans(True), pytest.raises(FloatingPointError, match="log produced NaN"):
        fnp.log(-x)
    with fg.debug_nans(True), pytest.raises(FloatingPointError, match="log produced NaN"):
        fg.jit(lambda x: fnp.log(-x))(x)


class Bare:
    """A buffer that no functions compute with."""

    shape, dtype, ndim, size, nbytes, itemsize = (2,), np.dtype("float32"), 1, 2, 8, 4

    def get(self):
        return np.ones(2, np.float32)


class BareMemory(Memory):
    kind, buffer = "bare", Bare

    def put(self, value, device):
        return Bare()


def test_without_functions_and_backends():
    register_memory(BareMemory())
    x = fg.device_put(fnp.ones(2), Device(0, kind="bare"))
    assert x.tolist() == [1, 1]
    assert x.device.kind == "bare"
    with pytest.raises(ShardingError, match="add: .*kind='bare'.*__array_namespace__"):
        x + x
    with pytest.raises(ShardingError, match=r"jit\(sin\): backend 'llvm' .*bare.*: no backend"):
        fg.jit(fnp.sin)(x)


# ---- programs


def test_jit_is_of_the_backend_of_the_device(x):
    w = fnp.ones((3, 2))
    f = fg.jit(lambda x, y: {"sum": fnp.tanh(x @ w).sum() + y, "x": x})
    for _ in range(3):
        out = f(x, 1.0)
        stays(out["sum"], out["x"])
    assert len(RAN) == 3
    assert set(RAN[0]) == {np.ndarray, Away}
    here = f(fg.device_put(x, HERE), 1.0)
    assert type(here["sum"]) is Array
    assert len(RAN) == 3
    np.testing.assert_allclose(f(x, 1.0)["sum"], here["sum"], rtol=1e-6)
    assert f.cache_info().currsize == 1


def test_jit_by_name(x):
    assert stays(fg.jit(fnp.sin, backend="away")(x)).shape == (2, 3)
    assert type(fg.jit(fnp.sin, backend="away")(np.ones(2))) is DeviceArray
    with pytest.raises(ShardingError, match=r"jit\(sin\): backend 'plain' .*away.*: 'away' does"):
        fg.jit(fnp.sin, backend="plain")(x)


def test_jit_within_transformations_is_of_the_backend(x):
    f = fg.jit(lambda x: fnp.sum(fnp.tanh(x) ** 2))
    for transformed in (fg.grad(f), fg.vmap(f), lambda x: fg.jvp(f, (x,), (x,))[0]):
        RAN.clear()
        stays(transformed(x))
        assert RAN
    # An inner program without operands, in one that is run op by op.
    ones = fg.jit(lambda: fnp.ones(3))
    stays(fg.jit(lambda x: x + fg.checkpoint(ones)())(x))


def test_checkpoints(x, tmp_path):
    checkpoint.save(tmp_path / "a", {"x": x})
    loaded = checkpoint.load(tmp_path / "a", {"x": np.zeros((2, 3), np.float32)})
    np.testing.assert_array_equal(loaded["x"], x)


def test_compiled_ahead(x):
    here = fg.device_put(x, HERE)
    compiled = fg.jit(fnp.sin).lower(x).compile()
    READ.clear()
    stays(compiled(x), compiled(here))
    with pytest.raises(ShardingError, match="compiled sin is of backend 'llvm', .* lower it"):
        fg.jit(fnp.sin).lower(here).compile()(x)


def test_donated(x):
    f = fg.jit(lambda x: x + 1, donate_argnums=0)
    stays(f(x))
    assert x.is_deleted()
