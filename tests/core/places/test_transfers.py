"""Guards of the borders between NumPy, arrays and devices."""

import logging

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, random
from funcgrad.errors import TransferError
from tests.away import THERE, register

GIVEN = np.arange(3, dtype="float32")
HELD = fnp.ones(3)
DOUBLE = fg.jit(lambda x: x * 2)
IN = {
    "operator": lambda: HELD + GIVEN,
    "function": lambda: fnp.add(HELD, GIVEN),
    "op": lambda: lax.sin(GIVEN),
    "asarray": lambda: fnp.asarray(GIVEN),
    "jit": lambda: DOUBLE(GIVEN),
    "grad": lambda: fg.grad(lambda x: fnp.sum(x * x))(GIVEN),
    "vmap": lambda: fg.vmap(lambda x: x * x)({"x": GIVEN}["x"]),
}
OUT = {
    "asarray": lambda: np.asarray(HELD),
    "float": lambda: float(HELD[0]),
    "bool": lambda: bool(HELD[0] > 0),
    "str": lambda: str(HELD),
    "item": lambda: HELD[0].item(),
    "tolist": lambda: HELD.tolist(),
}
FREE = {
    "numbers": lambda: (HELD + 1, DOUBLE(HELD), DOUBLE(2.0)),
    "creation": lambda: fnp.linspace(0, 1, 3) + fnp.zeros(3) + fnp.arange(3),
    "own constants": lambda: fnp.median(fnp.percentile(HELD, 30.0) + fnp.sort(HELD)),
    "random": lambda: random.normal(random.key(0), (3,)),
    "repr": lambda: repr(HELD),
    "constants of programs": lambda: fg.jit(lambda x: x + GIVEN)(HELD),
    "explicit": lambda: fg.device_get(fg.device_put(GIVEN) + HELD),
}


@pytest.mark.parametrize("how", IN)
def test_numpy_in(how):
    with fg.transfer_guard("disallow"), pytest.raises(TransferError, match="goes into an array"):
        IN[how]()
    with fg.transfer_guard_device_to_host("disallow"):
        IN[how]()


@pytest.mark.parametrize("how", OUT)
def test_values_out(how):
    with fg.transfer_guard("disallow"), pytest.raises(TransferError, match="is read by"):
        OUT[how]()
    with fg.transfer_guard_host_to_device("disallow"):
        OUT[how]()


@pytest.mark.parametrize("how", FREE)
def test_what_crosses_no_border_or_is_asked_for(how):
    with fg.transfer_guard("disallow"):
        FREE[how]()


def test_explicit_ones_may_be_forbidden():
    with fg.transfer_guard("disallow_explicit"):
        with pytest.raises(TransferError, match="f32.3. goes into an array.*at .*test_transfers"):
            fg.device_put(GIVEN)
        with pytest.raises(TransferError, match="is read"):
            fg.device_get(HELD)


def test_logs(caplog):
    with caplog.at_level(logging.WARNING, "funcgrad"), fg.transfer_guard("log"):
        HELD + GIVEN
        fg.device_put(GIVEN)
    (record,) = caplog.records
    assert "transfer of f32[3] goes into an array (host to device)" in record.getMessage()
    with caplog.at_level(logging.WARNING, "funcgrad"), fg.transfer_guard("log_explicit"):
        fg.device_put(GIVEN)
    assert len(caplog.records) == 2


def test_blocks_nest_and_programs_are_kept():
    count = []
    f = fg.jit(lambda x: count.append(1) or x + 1)
    f(HELD)
    with fg.transfer_guard("disallow"), fg.transfer_guard_host_to_device("allow"):
        f(GIVEN)
        with pytest.raises(TransferError):
            float(HELD[0])
        with fg.transfer_guard("allow"):
            float(HELD[0])
    assert len(count) == 1
    with (
        pytest.raises(ValueError, match="transfer_guard: need one of 'allow'"),
        fg.transfer_guard("never"),
    ):
        pass


def test_meshes():
    cut = fg.NamedSharding(fg.make_mesh((2,), "x"), fg.P("x"))
    f = fg.jit(lambda x: x * 2, in_shardings=cut)
    x = fnp.ones(4)
    with fg.transfer_guard_device_to_device("disallow"):
        f(fg.device_put(x, cut))
        with pytest.raises(TransferError, match="goes to another device"):
            f(x)


def test_devices(monkeypatch):
    register(monkeypatch)
    there = fg.device_put(HELD, THERE)
    with fg.transfer_guard("disallow"):
        assert (there + there).device == THERE
        assert fg.device_put(there, fg.devices()[0]).device.platform == "cpu"
        with pytest.raises(TransferError, match="goes to another device"):
            there + HELD
        with pytest.raises(TransferError, match="goes to another device"):
            fg.jit(lambda x, y: x + y)(there, HELD)
