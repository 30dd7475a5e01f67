"""What users set for the length of a block: default dtypes, a look for NaN, no `jit`, names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from funcgrad import dtypes
from funcgrad.core.context import current, scoped
from funcgrad.core.types import DTypeLike
from funcgrad.errors import DTypeError


@contextmanager
def default_dtype(dtype: DTypeLike) -> Iterator[None]:
    """Within the block, Python scalars and creation functions take `dtype` by default.

    A float dtype sets the default of floats (and complex numbers accordingly), an integer dtype
    that of integers. Explicit dtypes are honoured always, whatever the default.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> with fg.default_dtype("float64"):
    ...     print(fnp.zeros(2).dtype)
    float64
    """
    dtype = dtypes.canonical(dtype)
    if dtypes.is_float(dtype):
        change = {"float_dtype": dtype}
    elif dtypes.is_integer(dtype):
        change = {"int_dtype": dtype}
    else:
        raise DTypeError(f"default_dtype: need a float or an integer dtype, got {dtype}")
    with scoped(**change):
        yield


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
    with scoped(debug_nans=enabled):
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
