"""A memory from outside of the package, its buffers the stand-in for CuPy's arrays, two devices of
it, and a backend that runs programs there."""

import numpy as np

from funcgrad.backends.numpy_eval import Interpreted, NumpyBackend
from funcgrad.core import backend, buffers, context
from funcgrad.core.buffers import Memory, register_memory
from funcgrad.core.ir import interpret
from funcgrad.core.places.device_array import DeviceArray
from funcgrad.core.sharding import Device
from funcgrad.transforms.passes.simplify import simplify
from tests.ops import elsewhere
from tests.ops.elsewhere import READ, Away

HERE, THERE, FARTHER = Device(0), Device(0, kind="away"), Device(1, kind="away")


class AwayMemory(Memory):
    kind, buffer, backends = "away", Away, ("away",)
    waited = 0

    def device(self, buffer):
        return Device(buffer.place, kind="away")

    def put(self, value, device):
        with self.current(device):
            return Away(np.array(value.get() if type(value) is Away else value))

    def current(self, device):
        return elsewhere.at(device.id)

    def wait(self, buffer):
        self.waited += 1


class AwayProgram(Interpreted):
    """A program that is run where its operands are."""

    def __call__(self, values, began=None):
        began = [] if began is None else began
        began.append(self)
        places = {v.place for v in values if type(v) is Away} or {0}
        RAN.append(tuple(type(v) for v in values))
        with elsewhere.at(*places), context.scoped(communicators=self.communicators):
            values = [v if type(v) is Away else Away(np.array(v)) for v in values]
            return interpret(self.jaxpr, elsewhere.namespace, *values)

    def bind(self, communicators):
        return AwayProgram(self.jaxpr, communicators)


RAN: list = []


class AwayBackend(NumpyBackend):
    name = "away"

    def compile(self, jaxpr, donated, name):
        return AwayProgram(simplify(jaxpr))


MEMORY = AwayMemory()


def register(monkeypatch):
    """Let there be the memory and the backend during a test."""
    for module, name in ((buffers, "_by_type"), (buffers, "_by_kind"), (backend, "_BACKENDS")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    register_memory(MEMORY)
    backend.register_backend("away", AwayBackend)
    READ.clear()
    RAN.clear()


def stays(*arrays, device=THERE):
    """Arrays are on the device, and nothing was copied from it."""
    assert not READ
    for a in arrays:
        assert type(a) is DeviceArray
        assert type(a.buffer) is Away
        assert a.device == device
    return arrays[0]
