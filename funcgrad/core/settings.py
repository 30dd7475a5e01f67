"""What users set for the length of a block: default dtypes, a look for NaN, no `jit`, names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from funcgrad import dtypes
from funcgrad.core.checks import Checks
from funcgrad.core.context import ROOT, current, scoped, set_root, under
from funcgrad.core.places.transfers import LEVELS, Transfers
from funcgrad.core.sharding import AbstractMesh, Mesh
from funcgrad.core.types import DTypeLike, Tree
from funcgrad.errors import DTypeError

_F = TypeVar("_F", bound=Callable)


class Setting:
    """Changes of the context: in a `with` block, in a function that this decorates, or, called
    alone, from then on in the whole process."""

    def __init__(self, **change: object):
        self._change = change
        self._before: dict | None = {name: getattr(ROOT, name) for name in change}
        self._scopes: list[AbstractContextManager[None]] = []
        set_root(**change)

    def _only_scoped(self) -> None:
        if self._before is not None:
            set_root(**self._before)
            self._before = None

    def __call__(self, func: _F) -> _F:
        self._only_scoped()

        @wraps(func)
        def under_it(*args: Any, **kwargs: Any) -> Tree:
            with scoped(**self._change):
                return func(*args, **kwargs)

        return under_it  # type: ignore[return-value]

    def __enter__(self) -> None:
        self._only_scoped()
        scope = scoped(**self._change)
        scope.__enter__()
        self._scopes.append(scope)

    def __exit__(self, *error: Any) -> bool | None:
        return self._scopes.pop().__exit__(*error)


class default_dtype(Setting):
    """What Python scalars and creation functions take as their dtype: in a `with` block, in a
    function that this decorates, or, called alone, from then on in the whole process.

    A float dtype sets the default of floats (and complex numbers accordingly), an integer dtype
    that of integers. Explicit dtypes are honoured always, whatever the default. A block that sets
    one hides the process's until it ends.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> with fg.default_dtype("float64"):
    ...     print(fnp.zeros(2).dtype)
    float64
    >>> _ = fg.default_dtype("float64")
    >>> fnp.zeros(2).dtype
    dtype('float64')
    >>> _ = fg.default_dtype("float32")
    """

    def __init__(self, dtype: DTypeLike):
        found = dtypes.canonical(dtype)
        if dtypes.is_float(found):
            super().__init__(float_dtype=found)
        elif dtypes.is_integer(found):
            super().__init__(int_dtype=found)
        else:
            raise DTypeError(f"default_dtype: need a float or an integer dtype, got {found}")


class set_mesh(Setting):
    """The mesh that specs are of which are given without one: in a `with` block, in a function that
    this decorates, or, called alone, from then on in the whole process. None: no mesh.

    `device_put(x, P(...))`, `with_sharding_constraint`, `reshard` and `jit(in_shardings=P(...))`
    read it, and `shard_map` without mesh=.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> with fg.set_mesh(fg.make_mesh((2,), "data")):
    ...     fg.device_put(fnp.arange(4), fg.P("data"))
    ShardedArray([0, 1, 2, 3], dtype=int32, P('data') on Mesh('data': 2))
    """

    def __init__(self, mesh: Mesh | None):
        if mesh is not None and not isinstance(mesh, Mesh):
            raise TypeError(f"set_mesh: mesh must be a Mesh or None, got {mesh!r} of {type(mesh)}")
        super().__init__(mesh=mesh)


def get_mesh() -> Mesh:
    """The mesh of the context, which `set_mesh` sets; one without axes where there is none.

    >>> with fg.set_mesh(fg.make_mesh((2,), "data")):
    ...     fg.sharding.get_mesh()
    Mesh('data': 2)
    """
    return current().mesh or AbstractMesh((), ())


def get_abstract_mesh() -> AbstractMesh:
    """The axes of the context's mesh and their sizes, without devices.

    >>> with fg.set_mesh(fg.make_mesh((2,), "data")):
    ...     fg.sharding.get_abstract_mesh()
    AbstractMesh('data': 2)
    """
    mesh = get_mesh()
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, mesh.axis_types)


@contextmanager
def debug_nans(enabled: bool = True) -> Iterator[None]:
    """Within the block, an operation that makes a NaN raises, naming the operation and the line.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> with fg.debug_nans():
    ...     fnp.log(-1.0)
    Traceback (most recent call last):
    ...
    funcgrad.errors.NonFiniteError: log produced NaN ...
    """
    with _checking(nans=enabled):
        yield


def _checking(**changes: object) -> AbstractContextManager[None]:
    """A block in which operations are watched for more, or less."""
    checks = (current().checks or Checks())._replace(**changes)  # type: ignore[arg-type]
    return scoped(checks=None if checks == Checks() else checks)


@contextmanager
def debug_infs(enabled: bool = True) -> Iterator[None]:
    """Within the block, an operation that makes an infinity of finite operands raises, naming the
    operation and the line.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> with fg.debug_infs():
    ...     fnp.log(0.0)
    Traceback (most recent call last):
    ...
    funcgrad.errors.NonFiniteError: log produced inf from operands (f32[]) without inf ...
    """
    with _checking(infs=enabled):
        yield


def _choice(setting: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{setting}: need one of {', '.join(map(repr, known))}, got {value!r}")
    return value


@contextmanager
def numpy_rank_promotion(new_val: str) -> Iterator[None]:
    """Within the block, functions of `funcgrad.numpy` broadcast arrays of different ranks
    silently ("allow"), with a warning ("warn"), or not at all ("raise": ShapeError). Scalars
    always broadcast.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> with fg.numpy_rank_promotion("raise"):
    ...     fnp.ones((2, 3)) + fnp.ones(3)
    Traceback (most recent call last):
    ...
    funcgrad.errors.ShapeError: add: shapes (2, 3) and (3,) have different ranks, which ...
    """
    with _checking(ranks=_choice("numpy_rank_promotion", new_val, ("allow", "warn", "raise"))):
        yield


@contextmanager
def numpy_dtype_promotion(new_val: str) -> Iterator[None]:
    """Within the block, functions of `funcgrad.numpy` promote arrays of different dtypes
    ("standard"), or raise TypePromotionError ("strict"). Python's numbers take an array's dtype if
    it has their kind.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> with fg.numpy_dtype_promotion("strict"):
    ...     fnp.ones(3) + fnp.arange(3)
    Traceback (most recent call last):
    ...
    funcgrad.errors.TypePromotionError: add: float32 and int32 don't promote where ...
    """
    with _checking(dtypes=_choice("numpy_dtype_promotion", new_val, ("standard", "strict"))):
        yield


def _logging(what: str, enabled: bool) -> AbstractContextManager[None]:
    logs = current().logs
    return scoped(logs=logs | {what} if enabled else logs - {what})


@contextmanager
def log_compiles(value: bool = True) -> Iterator[None]:
    """Within the block, each compilation is a warning of the logger "funcgrad", with the types of
    arguments and results and the seconds it took; else it is logged for debugging.

    >>> import funcgrad as fg
    >>> with fg.log_compiles():
    ...     pass
    """
    with _logging("compiles", value):
        yield


@contextmanager
def explain_cache_misses(value: bool = True) -> Iterator[None]:
    """Within the block, each further program that `jit` traces of a function is a warning of the
    logger "funcgrad", which says what differs from the call before.

    >>> import funcgrad as fg
    >>> with fg.explain_cache_misses():
    ...     pass
    """
    with _logging("misses", value):
        yield


@contextmanager
def disable_jit(disable: bool = True) -> Iterator[None]:
    """Within the block, `jit` and control flow run op by op in Python, so values can be seen.

    >>> import funcgrad as fg
    >>> with fg.disable_jit():
    ...     fg.jit(lambda x: print(x) or x)(1.0)
    1.0
    Array(1., dtype=float32, weak_type=True)
    """
    with scoped(disable_jit=disable):
        yield


@contextmanager
def named_scope(name: str) -> Iterator[None]:
    """Within the block, traced operations carry `name` in printed programs and profiles.

    >>> import funcgrad as fg
    >>> with fg.named_scope("attention"):
    ...     pass
    """
    with scoped(scopes=(*current().scopes, name)):
        yield


@contextmanager
def ensure_compile_time_eval() -> Iterator[None]:
    """Within the block operations on known values are evaluated at once, also while a function is
    traced. Those on traced values raise, as there is nothing to evaluate.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> @fg.jit
    ... def f(x):
    ...     with fg.ensure_compile_time_eval():
    ...         n = int(fnp.sum(fnp.arange(4)))  # a number, not a traced value
    ...     return x * n
    >>> f(1)
    Array(6, dtype=int32, weak_type=True)
    """
    with under(current().with_trace(ROOT.trace)):
        yield


def named_call(fun: _F, *, name: str | None = None) -> _F:
    """A function whose operations carry its name, or another, as `named_scope` gives it.

    >>> import funcgrad as fg
    >>> fg.named_call(lambda x: x + 1, name="next")(1)
    2
    """
    if not callable(fun):
        raise TypeError(f"named_call: need a function, got {fun!r}")
    scope = name or str(getattr(fun, "__name__", type(fun).__name__))

    @wraps(fun)
    def named(*args: Any, **kwargs: Any) -> Tree:
        with named_scope(scope):
            return fun(*args, **kwargs)

    return named  # type: ignore[return-value]


@contextmanager
def check_tracer_leaks(enabled: bool = True) -> Iterator[None]:
    """Nothing: traced values that outlive their trace are always found, when they are used.

    >>> import funcgrad as fg
    >>> with fg.check_tracer_leaks():
    ...     pass
    """
    yield


@contextmanager
def _guarding(what: str, level: str, *directions: str) -> Iterator[None]:
    _choice(what, level, LEVELS)
    held = (current().checks or Checks()).transfers or Transfers()
    changed = Transfers(**(held._asdict() | dict.fromkeys(directions, level)))
    with _checking(transfers=None if changed == Transfers() else changed):
        yield


@contextmanager
def transfer_guard(guard_level: str) -> Iterator[None]:
    """Within the block, values that go from NumPy into arrays, out of arrays or from one device to
    another are let through ("allow"), logged as warnings of the logger "funcgrad" ("log"), or
    raise TransferError ("disallow"), unless they were asked for: by `device_put`, `device_get`,
    `reshard`. Those, too, are logged by "log_explicit", and raise by "disallow_explicit".

    A CPU's arrays, whose memory is NumPy's, count as a device's: so a loop that would copy on a GPU
    is found on any machine. Python's numbers are no transfers, other than JAX's, nor is `repr`.

    >>> import funcgrad as fg, funcgrad.numpy as fnp, numpy as np
    >>> x = fnp.ones(3)
    >>> with fg.transfer_guard("disallow"):
    ...     y = x + fg.device_put(np.ones(3, "float32"))
    ...     x + np.ones(3, "float32")
    Traceback (most recent call last):
    ...
    funcgrad.errors.TransferError: transfer_guard: f32[3] goes into an array (host to device)...
    """
    directions = ("host_to_device", "device_to_host", "device_to_device")
    with _guarding("transfer_guard", guard_level, *directions):
        yield


@contextmanager
def transfer_guard_host_to_device(guard_level: str) -> Iterator[None]:
    """As `transfer_guard`, of NumPy's arrays that become operands.

    >>> with fg.transfer_guard_host_to_device("disallow"):
    ...     np.asarray(fnp.ones(2))
    array([1., 1.], dtype=float32)
    """
    with _guarding("transfer_guard_host_to_device", guard_level, "host_to_device"):
        yield


@contextmanager
def transfer_guard_device_to_host(guard_level: str) -> Iterator[None]:
    """As `transfer_guard`, of arrays that Python or NumPy reads: `float(x)`, `np.asarray(x)`.

    >>> with fg.transfer_guard_device_to_host("disallow"):
    ...     float(fnp.ones(()))
    Traceback (most recent call last):
    ...
    funcgrad.errors.TransferError: transfer_guard: f32[] is read by Python or NumPy (device to...
    """
    with _guarding("transfer_guard_device_to_host", guard_level, "device_to_host"):
        yield


@contextmanager
def transfer_guard_device_to_device(guard_level: str) -> Iterator[None]:
    """As `transfer_guard`, of arrays that go to another device, or are cut over several.

    >>> with fg.transfer_guard_device_to_device("disallow"):
    ...     fnp.ones(2) + 1
    Array([2., 2.], dtype=float32)
    """
    with _guarding("transfer_guard_device_to_device", guard_level, "device_to_device"):
        yield


@contextmanager
def enable_x64(enabled: bool = True) -> Iterator[None]:
    """Within the block Python's numbers and creation functions take 64 bits by default, or 32.

    Explicit dtypes are honoured without it.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> with fg.enable_x64():
    ...     print(fnp.zeros(1).dtype, fnp.arange(2).dtype)
    float64 int64
    """
    bits = 64 if enabled else 32
    with scoped(float_dtype=np.dtype(f"float{bits}"), int_dtype=np.dtype(f"int{bits}")):
        yield
