"""The one context variable: which trace is current, which axes are named, which settings hold.

A `Context` is immutable; `scoped` swaps it for the length of a `with` block. Being a context
variable, it is private to each thread and each asyncio task.

A KeyboardInterrupt may come after any call. So who changes the context looks at it before, changes
it within a `try`, and goes back in its `finally`, by `switch`, however far an inner change got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from funcgrad.core import caches
from funcgrad.core.checks import Checks
from funcgrad.core.eager.large import implementation
from funcgrad.core.types import AxisName, Communicators

if TYPE_CHECKING:
    from funcgrad.core.aval import ShapedArray
    from funcgrad.core.primitive import Primitive
    from funcgrad.core.sharding import Device, Mesh
    from funcgrad.core.trace import Trace

_T = TypeVar("_T")

_FIELDS = (
    "trace", "axes", "manual", "float_dtype", "int_dtype", "scopes", "disable_jit", "checks",
    "communicators", "logs", "sequences", "products", "mesh", "precision", "device",
)  # fmt: skip
# What leaves the types of operations' results as they are.
_NO_SETTINGS = frozenset({"trace", "scopes", "disable_jit", "logs"})
MOST_TYPES = 4096


class Context:
    """The current trace, named axes (name → size), default dtypes, name scopes and switches.

    manual: the mesh axes of the shard_maps around, where it is followed what varies over them
    checks: what operations are watched for; None for nothing
    communicators: None, or the function from names of axes to the communicator over them through
        which collectives on plain arrays are done
    logs: what is logged as warnings: "compiles", "misses" of caches
    sequences: how attention of sequences that are cut over devices is done; "auto": as suits it
    products: how products with gathers and scatters are done; "whole": one after the other
    mesh: what specs are of that are given without one; None where none is set
    precision: how exact products are to be that don't say it; None: as is usual
    device: where arrays are made of which nothing says where; None: on the host
    types: the types of operations' results, remembered, as they depend on the settings here, and
        how they are evaluated
    """

    __slots__ = (*_FIELDS, "_static_key", "types")

    trace: Trace
    axes: dict[AxisName, int]
    manual: tuple[str, ...]
    float_dtype: np.dtype
    int_dtype: np.dtype
    scopes: tuple[str, ...]
    disable_jit: bool
    checks: Checks | None
    communicators: Communicators | None
    logs: frozenset[str]
    sequences: str
    products: str
    mesh: Mesh | None
    precision: Enum | None
    device: Device | None
    types: dict[tuple, Any]
    _static_key: tuple | None

    def __init__(
        self, trace: Trace, axes: dict[AxisName, int], manual: tuple[str, ...],
        float_dtype: np.dtype, int_dtype: np.dtype, scopes: tuple[str, ...], disable_jit: bool,
        checks: Checks | None, communicators: Communicators | None, logs: frozenset[str],
        sequences: str, products: str, mesh: Mesh | None, precision: Enum | None,
        device: Device | None,
    ):  # fmt: skip
        self.trace = trace
        self.axes = axes
        self.manual = manual
        self.float_dtype = float_dtype
        self.int_dtype = int_dtype
        self.scopes = scopes
        self.disable_jit = disable_jit
        self.checks = checks
        self.communicators = communicators
        self.logs = logs
        self.sequences = sequences
        self.products = products
        self.mesh = mesh
        self.precision = precision
        self.device = device
        self.types = {}
        self._static_key = None

    def replace(self, **changes: Any) -> Context:
        """A copy with some fields changed."""
        new = Context(*(changes.get(f, getattr(self, f)) for f in _FIELDS))
        if _NO_SETTINGS.issuperset(changes):
            new.types, new._static_key = self.types, self._static_key
        return new

    def with_trace(self, trace: Trace) -> Context:
        """A copy under another trace: the change that every transform makes at every op."""
        new = Context(trace, self.axes, self.manual, self.float_dtype, self.int_dtype, self.scopes,
                      self.disable_jit, self.checks, self.communicators, self.logs,
                      self.sequences, self.products, self.mesh, self.precision,
                      self.device)  # fmt: skip
        new.types, new._static_key = self.types, self._static_key
        return new

    def type_of(self, prim: Primitive, avals: Sequence[ShapedArray], params: dict) -> ShapedArray:
        """The type of the one result of an operation: computed once for types and parameters."""
        return self.evaluation(prim, avals, params)[0]

    def evaluation(
        self, prim: Primitive, avals: Sequence[ShapedArray], params: dict
    ) -> tuple[ShapedArray, Callable]:
        """The type of the one result of an operation, and the function that evaluates it on NumPy
        arrays: an op's `impl`, or what takes its place where results are large."""
        if not avals:  # a constant, which isn't to be kept
            return prim.abstract(**params), prim.impl
        key: list = [prim]
        for a in avals:
            key += a.shape, a.dtype, a.weak_type
        if params:
            key += params.items()
        try:
            known = self.types.get(tuple(key))
        except TypeError:  # a parameter has no hash
            return prim.abstract(*avals, **params), prim.impl
        if known is None:
            known = self.remember(tuple(key), prim, prim.abstract(*avals, **params))
        return known

    def remember(
        self, key: tuple, prim: Primitive, aval: ShapedArray
    ) -> tuple[ShapedArray, Callable]:
        """Keep the type of an operation's result for next time, and how it is evaluated."""
        return self.keep(key, (aval, implementation(prim, aval)))

    def keep(self, key: tuple, known: _T) -> _T:
        """Keep what was found out of types and parameters; keys of a kind begin alike."""
        if len(self.types) >= MOST_TYPES:
            self.types.clear()
        self.types[key] = known
        return known

    def static_key(self) -> tuple:
        """What a traced program depends on beside its arguments."""
        key = self._static_key
        if key is None:
            key = self._static_key = (
                tuple(self.axes.items()), self.manual, self.float_dtype, self.int_dtype,
                self.checks and self.checks.of_programs(), self.sequences, self.products,
                self.mesh, self.precision,
            )  # fmt: skip
        return key


# core.array completes the root with the trace that evaluates.
ROOT = Context(
    None, {}, (), np.dtype("float32"), np.dtype("int32"), (), False, None, None,  # type: ignore[arg-type]
    frozenset(), "auto", "whole", None, None, None,
)  # fmt: skip
variable: ContextVar[Context] = ContextVar("funcgrad", default=ROOT)
current = variable.get
switch = variable.set


def set_root(**changes: Any) -> None:
    """Change settings where no block has set them: in all threads. What was remembered of results'
    types goes."""
    for name, value in changes.items():
        setattr(ROOT, name, value)
    ROOT.types, ROOT._static_key = {}, None


@caches.forgotten_by
def _forget() -> None:
    ROOT.types.clear()
    current().types.clear()


@contextmanager
def under(inner: Context) -> Iterator[None]:
    """Run a block under a context."""
    before, token = current(), None
    try:
        token = switch(inner)
        yield
    except GeneratorExit:
        # An interrupt came on the way into the block or out of it, which somebody outside may have
        # left meanwhile.
        before, token = before if current() is inner else current(), None
        raise
    finally:
        if token is None:
            switch(before)
        else:  # an error where the block began in another thread or task: its context stays there
            variable.reset(token)


def scoped(**changes: Any) -> AbstractContextManager[None]:
    """Run a block under a context with some fields changed."""
    return under(current().replace(**changes))


def watches_values() -> bool:
    """Whether results are looked at, for NaN or infinities."""
    checks = current().checks
    return checks is not None and (checks.nans or checks.infs)


def keys_unwatched() -> AbstractContextManager[None]:
    """A block in which nobody is told of random keys that are used, as of these it was told."""
    checks = (current().checks or Checks())._replace(keys=None)
    return scoped(checks=None if checks == Checks() else checks)


@contextmanager
def named_axis(name: AxisName, size: int) -> Iterator[None]:
    """Run a block in which collectives know the axis `name`."""
    with scoped(axes={**current().axes, name: size}):
        yield
