"""The libraries: how each takes its inputs, runs a case, and hands back its results."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.case import Case, leaves, mapped

LABELS = {
    "funcgrad": "funcgrad",
    "jax": "JAX",
    "torch": "PyTorch",
    "compile": "torch.compile",
    "numpy": "NumPy",
}
OURS = "funcgrad"
TRANSFORMS = (
    "jit",
    "grad",
    "value_and_grad",
    "vmap",
    "jvp",
    "vjp",
    "jacfwd",
    "jacrev",
    "hessian",
    "checkpoint",
)


def missing(library: str) -> str | None:
    """Why a library can't be measured here, or None."""
    package = "torch" if library == "compile" else library
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed (pip install {package})"
    compiler = os.environ.get("CXX", "g++")
    if library == "compile" and not (shutil.which(compiler) or shutil.which("clang++")):
        return f"torch.compile needs a C++ compiler, and there is no {compiler}"
    return None


def open_library(library: str, threads: int) -> Any:
    """The library, imported; after this, the process is its own."""
    if library in ("torch", "compile"):
        return Torch(library, threads)
    return NumPy() if library == "numpy" else Functional(library)


def to_numpy(value: Any) -> np.ndarray:
    """A library's array as NumPy's; what NumPy has no word for, as float32."""
    if hasattr(value, "detach"):
        value = value.detach()
        value = value.float() if "bfloat16" in str(value.dtype) else value
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array


class Namespace:
    """What a case's text is written with: `np`, `lax`, `nn`, `random`, `sparse`, `tree`, the
    transforms."""

    def __init__(self, **parts: Any):
        self.__dict__.update(parts)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the namespace of {self.np.__name__} has no {name!r}")


class Functional:
    """funcgrad or JAX: the same text, the same transforms."""

    def __init__(self, library: str):
        self._module = importlib.import_module(library)
        parts = {
            name: importlib.import_module(f"{library}.{name}")
            for name in ("numpy", "lax", "nn", "random")
        }
        of_jax = "jax.experimental" if library == "jax" else library
        parts["sparse"] = importlib.import_module(f"{of_jax}.sparse")
        transforms = {name: getattr(self._module, name) for name in TRANSFORMS}
        transforms["autocast"] = getattr(self._module, "autocast", self._narrow)
        self.namespace = Namespace(
            np=parts.pop("numpy"), tree=self._module.tree, **parts, **transforms
        )
        self._is_jax = library == "jax"

    def _narrow(self, f: Callable) -> Callable:
        """What stands for autocast where there is none: parameters are cast, all follows them."""

        def narrow(params: Any, *inputs: Any) -> Any:
            return f(mapped(lambda x: x.astype("bfloat16"), params), *inputs)

        return narrow

    def inputs(self, case: Case, values: tuple) -> tuple:
        """The inputs as the library's arrays."""
        if self._is_jax:
            self._module.config.update("jax_enable_x64", case.x64)
        return mapped(self.namespace.np.array, values)

    def call(self, case: Case, inputs: tuple) -> Callable[[], Any]:
        """A function that does the work once."""
        work = partial(case.work, self.namespace)
        if case.jit:
            work = self._module.jit(work, donate_argnums=(0,) if case.state else ())
        if case.state:
            return _stepping(work, *inputs)
        return lambda: work(*inputs)

    def timed(self, case: Case, call: Callable[[], Any]) -> Callable[[], Any]:
        """The function, returning when its results are there: JAX returns earlier."""
        if not self._is_jax:
            return call
        if not case.jit:
            ready = self._module.block_until_ready
            return lambda: ready(call())
        # The results of one program are there all at once, and waiting for each has its cost.
        return lambda: _first(call()).block_until_ready()


class NumPy:
    """NumPy: the text itself where that is possible, or one of its own."""

    def inputs(self, case: Case, values: tuple) -> tuple:
        """The inputs as they are."""
        return values

    def call(self, case: Case, inputs: tuple) -> Callable[[], Any]:
        """A function that does the work once."""
        text: Any = case.numpy
        work = partial(case.work, Namespace(np=np)) if text is True else text
        if case.state:
            return _stepping(work, *inputs)
        return lambda: work(*inputs)

    def timed(self, case: Case, call: Callable[[], Any]) -> Callable[[], Any]:
        """The function itself."""
        return call


class Torch:
    """PyTorch, op by op or compiled."""

    def __init__(self, library: str, threads: int):
        self._torch = importlib.import_module("torch")
        self._torch.set_num_threads(threads)
        # Texts that need derivatives ask for them.
        self._torch.set_grad_enabled(False)
        self._compiles = library == "compile"

    def inputs(self, case: Case, values: tuple) -> tuple:
        """The inputs as tensors."""
        return mapped(lambda value: self._tensor(np.asarray(value), case.torch_long), values)

    def _tensor(self, array: np.ndarray, long: bool) -> Any:
        t = self._torch
        if array.dtype == ml_dtypes.bfloat16:
            return t.from_numpy(array.view(np.int16).copy()).view(t.bfloat16)
        tensor = t.from_numpy(array.copy())
        return tensor.long() if long and tensor.dtype == t.int32 else tensor

    def call(self, case: Case, inputs: tuple) -> Callable[[], Any]:
        """A function that does the work once."""
        if self._compiles:
            self._torch._dynamo.reset()  # a few recompilations of one text are the most it allows
        compiled = partial(self._torch.compile, dynamic=False) if self._compiles else _itself
        if case.torch_make is not None:
            return case.torch_make(self._torch, compiled, *inputs)
        text: Any = case.torch
        work = compiled(partial(text, self._torch))
        return lambda: work(*inputs)

    def timed(self, case: Case, call: Callable[[], Any]) -> Callable[[], Any]:
        """The function itself."""
        return call


def _stepping(work: Callable[..., Any], state: Any, *inputs: Any) -> Callable[[], Any]:
    """Calls that hand the state on, and return the rest."""

    def step() -> Any:
        nonlocal state
        state, result = work(state, *inputs)
        return result

    return step


def _first(value: Any) -> Any:
    while not hasattr(value, "block_until_ready"):
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return value


def _itself(work: Any) -> Any:
    return work


def gradients(loss: Callable[..., Any], *argnums: int) -> Callable[..., Callable[[], Any]]:
    """For `torch_make`: the value of `loss(t, *inputs)` and its gradients in some arguments."""

    def make(t: Any, compiled: Callable, *inputs: Any) -> Callable[[], Any]:
        inputs = tuple(
            mapped(lambda x: x.requires_grad_(), x) if i in argnums else x
            for i, x in enumerate(inputs)
        )
        wanted = leaves([inputs[i] for i in argnums])
        work = compiled(partial(loss, t))

        def run() -> Any:
            with t.enable_grad():
                value = work(*inputs)
                return value.detach(), t.autograd.grad(value, wanted)

        return run

    return make


def training(loss: Callable[..., Any], optimizer: str, **settings: Any) -> Callable[..., Callable]:
    """For `torch_make`: steps of `loss(t, params, *inputs)` by an optimizer of `torch.optim`.

    The first input is a case's state, whose first part is the parameters.
    """

    def make(t: Any, compiled: Callable, state: Any, *inputs: Any) -> Callable[[], Any]:
        params = mapped(lambda x: x.requires_grad_(), state[0])
        rule = getattr(t.optim, optimizer)(leaves(params), **settings)
        work = compiled(partial(loss, t))

        def run() -> Any:
            with t.enable_grad():
                value = work(params, *inputs)
                value.backward()
            rule.step()
            rule.zero_grad()
            return value.detach()

        return run

    return make
