"""Planned programs with their kernels compiled: run by a simulator, or on a GPU.

A program's steps are walked in Python: a kernel is a launch, a product or a host step a library's,
loops and branches are ours. `Simulated` has NumPy's memory and library, and runs launches on the
CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from funcgrad.backends.cuda.kernels.gemms import with_kernels
from funcgrad.backends.cuda.libraries.products import EIGHTS, Operand, Product, products
from funcgrad.backends.cuda.machine import CUDA
from funcgrad.backends.cuda.modules import Launch, kernels
from funcgrad.backends.cuda.nvptx import ptx
from funcgrad.backends.cuda.simulate import Simulator
from funcgrad.backends.plain import Planned
from funcgrad.backends.plain.interpret import Machine, run
from funcgrad.backends.plan import plan
from funcgrad.backends.program import GemmStep, HostStep, KernelStep, Program
from funcgrad.backends.rewrites.narrow import BYTE
from funcgrad.core.ir import Jaxpr
from funcgrad.transforms.passes.simplify import simplify


class Simulated(Machine):
    """Runs a program's steps on this processor, its kernels as a GPU would run them."""

    def __init__(
        self, simulator: Simulator, program: Program, ins: list[np.ndarray], outs: list[np.ndarray]
    ):
        super().__init__(program, ins, outs)
        self.simulator = simulator
        self.launches: dict[int, Launch] = {
            id(launch.kernel): launch for launch in simulator.kernels.launches
        }

    def kernel(self, s: KernelStep) -> None:
        launch = self.launches.get(id(s.kernel))
        if launch is None:  # which has no points
            return
        arrays = [
            self.memory(ref, b.size * b.dtype.itemsize)
            for ref, b in zip(s.args, s.kernel.params, strict=True)
        ]
        self.simulator.launch(launch, [a.ctypes.data for a in arrays])

    def gemm(self, s: GemmStep) -> None:
        for call in products(s) or ():
            self.product(call)

    def product(self, p: Product) -> None:
        """A product, of nothing but what cuBLASLt would get."""

        def matrices(x: Operand, rows: int, columns: int) -> np.ndarray:
            shape = (columns, rows) if x.turned else (rows, columns)
            # NumPy's strided views know no floats of 8 bits.
            kind = BYTE if x.dtype in EIGHTS else x.dtype
            found = self.strided(x.ref, kind, (p.count, *shape), (x.batch, 1, x.leading))
            found = found.view(x.dtype)
            return found.swapaxes(1, 2) if x.turned else found

        first = matrices(p.first, p.m, p.k).astype(p.compute)
        second = matrices(p.second, p.k, p.n).astype(p.compute)
        sums = first @ second
        for scale in p.tail.scales:
            sums *= self.strided(scale, p.compute, (1,), (1,))
        if p.tail.bias is not None:
            bias = self.strided(p.tail.bias, p.result.dtype, (p.m, 1), (1, 1))
            sums += bias.astype(p.compute)
        if p.tail.activation == "relu":
            sums = np.maximum(sums, 0)
        elif p.tail.activation == "gelu":
            inner = np.sqrt(2 / np.pi) * (sums + 0.044715 * sums**3)
            sums = 0.5 * sums * (1 + np.tanh(inner))
        matrices(p.result, p.m, p.n)[...] = sums


class SimulatedProgram(Planned):
    """A program whose kernels are a GPU's, run on this processor.

    is_call: which products and convolutions a library computes; the others are kernels
    """

    texts: tuple[str, ...] = ("loops", "llvm", "ptx")

    def __init__(
        self,
        program: Program,
        communicators: Callable[[tuple], Any] | None = None,
        seed: int | None = 0,
        is_call: Callable[[GemmStep | HostStep], bool] = lambda s: (
            isinstance(s, GemmStep) and bool(products(s))
        ),
    ):
        super().__init__(with_kernels(program, is_call), communicators)
        self.kernels = kernels(self.program)
        self.seed = seed
        self._simulator: Simulator | None = None

    @property
    def simulator(self) -> Simulator:
        """What runs the kernels, compiled when it is first wanted."""
        if self._simulator is None:
            self._simulator = Simulator(self.kernels, self.seed)
        return self._simulator

    def __call__(self, values: Sequence[Any], began: list | None = None) -> list[np.ndarray]:
        if began is not None:
            began.append(self)
        machine = partial(Simulated, self.simulator)
        with np.errstate(all="ignore"):
            return run(self.program, values, self.communicators, machine)

    def bind(self, communicators: Callable[[tuple], Any]) -> SimulatedProgram:
        return SimulatedProgram(self.program, communicators, self.seed)

    def as_text(self, stage: str) -> str:
        """The planned program ("loops"), its kernels ("llvm"), and these as a GPU's ("ptx")."""
        if stage == "llvm":
            return self.kernels.text
        return ptx(self.kernels.device_text) if stage == "ptx" else super().as_text(stage)


class SimulatedBackend:
    """Compiles programs for a GPU and runs them on this processor."""

    name = "cuda-simulated"

    def compile(self, jaxpr: Jaxpr, donated: Sequence[bool], name: str) -> SimulatedProgram:
        """The program, planned for a GPU, its kernels written."""
        return SimulatedProgram(plan(simplify(jaxpr), donated, name, CUDA))

    def caller(self, entries: Sequence[Any]) -> Callable[[tuple, dict], Any]:
        """There are no fast calls."""
        return lambda args, kwargs: NotImplemented


BACKEND = SimulatedBackend()
