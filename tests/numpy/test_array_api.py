"""What a namespace says of itself, and where functions put what they make."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.core.places.sharded import ShardedArray

INFO = fnp.__array_namespace_info__()


def test_arrays_and_tracers_say_which_namespace_is_theirs():
    seen = []
    fg.vmap(lambda x: seen.append(x.__array_namespace__()) or x)(fnp.ones(2))
    assert seen == [fnp]
    assert fnp.ones(2).__array_namespace__(api_version="2023.12") is fnp
    with pytest.raises(ValueError, match=r"__array_namespace__: api_version '2030.12' is not one"):
        fnp.ones(2).__array_namespace__(api_version="2030.12")


def test_namespace_says_what_it_can():
    assert INFO.default_device() in INFO.devices()
    assert set(INFO.dtypes(kind=("bool", "complex floating"))) == {
        "bool",
        "complex64",
        "complex128",
    }
    assert INFO.default_dtypes()["integral"] == fnp.asarray(1).dtype
    with fg.default_dtype("float64"):
        found = INFO.default_dtypes()
        assert (found["real floating"], found["complex floating"]) == (np.float64, np.complex128)


MADE = {
    "array": lambda d: fnp.array([1.0, 2.0], device=d),
    "asarray": lambda d: fnp.asarray([1.0, 2.0], device=d),
    "astype": lambda d: fnp.astype(fnp.ones(2), "float16", device=d),
    "arange": lambda d: fnp.arange(2, device=d),
    "linspace": lambda d: fnp.linspace(0, 1, 2, device=d),
    "zeros": lambda d: fnp.zeros(2, device=d),
    "ones": lambda d: fnp.ones(2, device=d),
    "empty": lambda d: fnp.empty(2, device=d),
    "full": lambda d: fnp.full(2, 3.0, device=d),
    "zeros_like": lambda d: fnp.zeros_like(fnp.ones(2), device=d),
    "ones_like": lambda d: fnp.ones_like(fnp.ones(2), device=d),
    "empty_like": lambda d: fnp.empty_like(fnp.ones(2), device=d),
    "full_like": lambda d: fnp.full_like(fnp.ones(2), 3, device=d),
    "eye": lambda d: fnp.eye(2, device=d),
    "from_dlpack": lambda d: fnp.from_dlpack(np.ones(2), device=d),
    "fftfreq": lambda d: fnp.fft.fftfreq(2, device=d),
    "rfftfreq": lambda d: fnp.fft.rfftfreq(2, device=d),
    "to_device": lambda d: fnp.ones(2).to_device(d) if d is not None else fnp.ones(2),
}


@pytest.mark.parametrize("name", MADE)
def test_results_go_where_they_are_asked_to(name):
    make, plain = MADE[name], MADE[name](None)
    assert type(make(fg.devices()[0])) is fg.Array
    cut = fg.NamedSharding(fg.make_mesh((2,), "data"), fg.P("data"))
    if plain.shape[0] % 2:
        return
    found = make(cut)
    assert type(found) is ShardedArray
    assert found.sharding == cut
    np.testing.assert_array_equal(np.asarray(found), np.asarray(plain))
    assert fg.jit(lambda: make(cut))().dtype == plain.dtype
    assert type(make("cpu")) is fg.Array
    with pytest.raises(ValueError, match="device_put: .*'away'"):
        make("away")


def test_streams_are_refused():
    with pytest.raises(ValueError, match="to_device: stream must be None, got 1"):
        fnp.ones(2).to_device(fg.devices()[0], stream=1)


def test_can_cast_takes_types():
    assert fnp.can_cast(np.bool_, np.bool_)
    assert not fnp.can_cast(np.float64, np.int8)
