"""A case: one piece of work, told once for funcgrad and JAX, and once for each other library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MEASURES = ("call", "cold", "cached", "memory", "import")


@dataclass(frozen=True)
class Case:
    """What is measured, and the texts that do it.

    `work(lib, *inputs)` is the text for funcgrad and JAX: `lib` is a `libraries.Namespace`, which
    has `np`, `lax`, `nn`, `random`, `tree` and the transforms. With `numpy=True` it runs on NumPy
    too; a function there takes the inputs alone. `torch(t, *inputs)` is the text for PyTorch,
    compiled as a whole; where that isn't possible (derivatives, optimizers),
    `torch_make(t, compiled, *inputs)` gives a function without arguments and calls `compiled` on
    the parts that can be compiled.

    torch_long: PyTorch gets integers as int64, which its indices must be.
    state: `work` takes and returns a state in front, `(state, result)`, whose memory is donated.
    flops and reads: the operations, and the bytes read, that the work needs at least; they tell,
    with the bytes of the results, how far from the machine's limits a time is. Without `reads`,
    that are the inputs. gathers: the bytes of lines that are read wherever they lie. int8: whether
    the operations are of integers of 8 bits.
    measure: "call" is the time of a call; "cold" and "cached" that of the first call in a new
    process, without and with a filled disk cache; "memory" the peak of a new process; "import" the
    time of the import alone. tolerance: see `compare.difference`;
    compared: the libraries whose results must agree.
    """

    family: str
    name: str
    inputs: Callable[[np.random.Generator], tuple]
    work: Callable[..., Any]
    torch: Callable[..., Any] | None = None
    torch_make: Callable[..., Callable[[], Any]] | None = None
    torch_compiles: bool = True
    torch_long: bool = False
    numpy: Callable[..., Any] | bool = False
    jit: bool = True
    state: bool = False
    x64: bool = False
    flops: float = 0.0
    reads: float | None = None
    gathers: float = 0.0
    int8: bool = False
    tolerance: float = 1e-4
    compared: tuple[str, ...] = ("numpy", "jax", "torch", "compile", "funcgrad")
    measure: str = "call"

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            raise ValueError(f"{self.key}: measure must be one of {MEASURES}, not {self.measure!r}")
        if self.torch is not None and self.torch_make is not None:
            raise ValueError(f"{self.key}: torch and torch_make exclude each other")

    @property
    def key(self) -> str:
        """The case's name in full."""
        return f"{self.family}/{self.name}"

    @property
    def kind(self) -> str:
        """Of what numbers its operations are."""
        return "int8" if self.int8 else "float64" if self.x64 else "float32"

    @property
    def unit(self) -> str:
        """Of what it measures: seconds, or bytes."""
        return "B" if self.measure == "memory" else "s"

    def runs_on(self, library: str) -> bool:
        """Whether there is a text for a library, and the measurement makes sense for it."""
        if self.measure in ("cold", "cached"):
            # torch.compile calls a C++ compiler for each kernel: a minute or more for every case.
            return library in ("jax", "funcgrad")
        if self.measure == "import" and library == "compile":
            return False
        if library == "numpy":
            return bool(self.numpy)
        if library in ("torch", "compile"):
            if self.torch is None and self.torch_make is None:
                return False
            return library == "torch" or (self.jit and self.torch_compiles)
        return True


def normal(*shape: int, dtype: Any = np.float32) -> Callable[[np.random.Generator], np.ndarray]:
    """Draws standard normal numbers of a shape."""
    return lambda rng: rng.standard_normal(shape, np.float32).astype(dtype)


def integers(
    low: int, high: int, *shape: int, dtype: Any = np.int32
) -> Callable[[np.random.Generator], np.ndarray]:
    """Draws integers of [low, high)."""
    return lambda rng: rng.integers(low, high, shape, dtype)


def draw(*parts: Callable[[np.random.Generator], Any]) -> Callable[[np.random.Generator], tuple]:
    """The inputs of a case, one after the other."""
    return lambda rng: tuple(part(rng) for part in parts)


def leaves(value: Any) -> list:
    """The leaves of nested dictionaries (by sorted keys), lists and tuples."""
    if isinstance(value, dict):
        return [x for key in sorted(value) for x in leaves(value[key])]
    if isinstance(value, list | tuple):
        return [x for part in value for x in leaves(part)]
    return [] if value is None else [value]


def mapped(fun: Callable[[Any], Any], value: Any) -> Any:
    """The same structure with a function applied to each leaf."""
    if isinstance(value, dict):
        return {key: mapped(fun, part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(mapped(fun, part) for part in value)
    return fun(value)
