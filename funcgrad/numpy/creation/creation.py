"""Arrays from values, and filled arrays: array, zeros, arange, linspace, eye, … .

Python's numbers get the default dtypes (float32, int32, complex64, or those of
`fg.default_dtype`); numpy's arrays and an explicit `dtype=` are always honoured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import backend
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray, promote, scalar_dtype
from funcgrad.core.buffers import memory_of, memory_of_dlpack
from funcgrad.core.eager.aligned import copied
from funcgrad.core.eager.single import single
from funcgrad.core.places.device_array import DeviceArray
from funcgrad.core.places.transfers import taken_in
from funcgrad.core.trace import Tracer
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.numpy._util import (
    as_array,
    broadcast_shapes,
    broadcast_to,
    check_callable,
    convert,
    default_float,
    dtype_or,
    integer,
    is_scalar,
    made_on,
    need_plain,
    number,
    placed,
    shape_of,
)
from funcgrad.ops import shape as ops_shape
from funcgrad.ops.base import full as full_p
from funcgrad.ops.elementwise import compare
from funcgrad.ops.elementwise import convert as ops_convert
from funcgrad.ops.linalg import matrices
from funcgrad.ops.sharding import cut_as_said

# ---- from values

_MOST_DIMS = 64  # NumPy's

_CPU, _CUDA = 1, 2  # DLPack's numbers of devices


def array(
    object: Any,
    dtype: Any = None,
    copy: bool | None = True,
    order: str = "K",
    ndmin: int = 0,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Any:
    """An array of a number, of nested sequences of numbers and arrays, or of any array.

    Without `dtype`, Python's numbers take the default dtypes and arrays keep theirs; a sequence has
    the common dtype of its elements. `ndmin` prepends axes of size 1. `order` may only be "K", "A"
    or "C". `device`, of this and of all functions here that have it, is a device or a sharding for
    the result, as `fg.device_put` takes it; `out_sharding` is how it is to be cut over a mesh.
    Raises ShapeError where nested sequences are ragged,
    OverflowError where an integer does not fit the dtype, TypeError for what is no number.

    >>> fnp.array([[1, 2], [3, 4]])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    >>> fnp.array([1, 2.5, 3], dtype="float64")
    Array([1. , 2.5, 3. ], dtype=float64)
    """
    _check_order("array", order)
    x = _from_object("array", object, _given(dtype), copy)
    if x.ndim < integer("ndmin", ndmin):
        x = ops_shape.reshape(x, (1,) * (ndmin - x.ndim) + x.shape)
    if out_sharding is not None:
        return cut_as_said(x, out_sharding)
    # Arrays stay where they are, as long as nothing is said.
    return (placed if isinstance(object, Array | Tracer) else made_on)(x, device)


def _check_order(name: str, order: str) -> None:
    if order not in ("K", "A", "C"):
        raise ValueError(
            f"{name}: order must be 'K', 'A' or 'C', as arrays have no other order than C's; got "
            f"{order!r}"
        )


def asarray(
    a: Any,
    dtype: Any = None,
    order: str = "K",
    *,
    copy: bool | None = None,
    device: Any = None,
    out_sharding: Any = None,
) -> Any:
    """`a` as an array: arrays of the right dtype as they are, all else as `array` makes it.

    numpy's arrays are copied, as they may change; with `copy=False` they are shared, and must not.

    >>> fnp.asarray((1.0, 2.0))
    Array([1., 2.], dtype=float32)
    """
    return array(a, dtype, copy, order, device=device, out_sharding=out_sharding)


def _given(dtype: Any) -> np.dtype | None:
    """A `dtype=` argument that may be None."""
    return None if dtype is None else dtype_or(dtype, default_float())


def _from_object(name: str, value: Any, dtype: np.dtype | None, copy: bool | None) -> Any:
    if memory_of(value) is not None:
        value = DeviceArray(value)
    if isinstance(value, Array | Tracer):
        if dtype is None or dtype == value.dtype:
            if copy and isinstance(value, Array):
                value = deepcopy(value)
            return convert(value, value.dtype, value.weak_type and dtype is None)
        return convert(value, dtype)
    if is_scalar(value):
        if dtype is None:
            return number(name, value, scalar_dtype(value), type(value) is not bool, "object")
        return _numbers(name, value, dtype)
    if isinstance(value, list | tuple):
        return _from_sequence(name, value, dtype)
    if isinstance(value, np.ndarray | np.generic):
        return _from_numpy(value, dtype, copy)
    if hasattr(value, "__jax_array__"):
        return _from_object(name, value.__jax_array__(), dtype, copy)
    if hasattr(value, "__array__") or isinstance(value, bytes | bytearray | memoryview):
        if isinstance(value, bytes | bytearray):
            value = np.frombuffer(value, np.uint8)
        return _from_numpy(np.asarray(value), dtype, copy)
    if hasattr(value, "__dlpack__"):
        return _from_numpy(np.from_dlpack(value), dtype, copy)
    try:
        return _from_numpy(np.asarray(memoryview(value)), dtype, copy)
    except TypeError:
        message = f"{name}: can't make an array of {type(value)}: {value!r}; numbers, nested lists "
        raise ArgumentError(f"{message}or tuples of them, and arrays are needed") from None


def _from_numpy(value: Any, dtype: np.dtype | None, copy: bool | None) -> Any:
    if value.dtype == dtypes.float0:
        return value
    need_plain("array", value)
    taken_in(value, ShapedArray(value.shape, value.dtype))
    dtype = dtypes.canonical(value.dtype) if dtype is None else dtype
    if dtypes.is_float(value.dtype) and dtypes.is_integer(dtype):
        # numpy's own cast of NaN and of what is out of range differs between machines.
        return ops_convert.convert_element_type(value, dtype)
    if copy is False and value.dtype == dtype:
        return Array(np.asarray(value))
    return Array(copied(value, dtype))


def _numbers(name: str, values: Any, dtype: np.dtype) -> Array:
    """Python numbers, nested or not, in a dtype."""
    try:
        return Array(np.array(values, dtype))
    except OverflowError as e:
        raise OverflowError(f"{name}: {e}; pass a wider dtype=, such as 'int64'") from e
    except (TypeError, ValueError):
        made = np.array(values)
        return ops_convert.convert_element_type(Array(made), dtype)


def _from_sequence(name: str, values: Any, dtype: np.dtype | None) -> Any:
    leaves: list = []
    shape = _shape_of_nested(name, values, leaves)
    kinds = {type(v) for v in leaves}
    if not leaves:
        return Array(np.zeros(shape, dtype or default_float()))
    if kinds <= {bool, int, float, complex}:
        if dtype is None:
            # One Python number a kind stands for all.
            dtype = promote([_type_of(name, k(0)) for k in kinds])[0]
        return _numbers(name, values, dtype) if not _casts(kinds, dtype) else (
            ops_convert.convert_element_type(np.array(values), dtype))  # fmt: skip
    if dtype is None:
        dtype = promote([_type_of(name, v) for v in leaves])[0]
    if not any(isinstance(v, Tracer) for v in leaves):
        parts = [np.asarray(_from_object(name, v, dtype, None)) for v in leaves]
        return Array(np.stack(parts).reshape(shape))
    parts = [_from_object(name, v, dtype, None) for v in leaves]
    wide = [ops_shape.reshape(p, (1, *p.shape)) for p in parts]
    return ops_shape.reshape(ops_shape.concatenate(wide, 0), shape)


def _casts(kinds: set, dtype: np.dtype) -> bool:
    """Whether numbers must be converted by the rules of arrays: floats to integers, say."""
    return (float in kinds or complex in kinds) and not dtypes.is_inexact(dtype)


def _type_of(name: str, v: Any) -> ShapedArray:
    if isinstance(v, Array | Tracer):
        return v.aval
    if is_scalar(v):
        return ShapedArray((), scalar_dtype(v), type(v) is not bool)
    return ShapedArray((), dtypes.canonical(np.asarray(v).dtype))


def _shape_of_nested(
    name: str, values: Any, leaves: list, dims: int = _MOST_DIMS
) -> tuple[int, ...]:
    """The shape of nested sequences, whose numbers and arrays are appended to `leaves`."""
    if dims < 0:
        raise ShapeError(
            f"{name}: sequences are nested deeper than {_MOST_DIMS}, which is as many "
            "dimensions as an array has at most"
        )
    if not isinstance(values, list | tuple):
        if not is_scalar(values) and not hasattr(values, "shape"):
            values = np.asarray(values) if hasattr(values, "__array__") else values
            if not isinstance(values, np.ndarray):
                message = f"{name}: can't make an array of {type(values)}: {values!r}; numbers "
                raise ArgumentError(f"{message}and arrays are needed")
        leaves.append(values)
        return tuple(getattr(values, "shape", ()))
    if values and {type(v) for v in values} <= {bool, int, float, complex}:
        leaves.extend(values)
        return (len(values),)
    shapes = [_shape_of_nested(name, v, leaves, dims - 1) for v in values]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ShapeError(
                f"{name}: nested sequences must have one shape, but element 0 has {shapes[0]} and "
                f"element {i} has {shape}"
            )
    return (len(values), *(shapes[0] if shapes else ()))


def copy(a: Any, order: str = "K") -> Any:
    """A copy of an array, in memory of its own.

    >>> fnp.copy(fnp.array([1, 2]))
    Array([1, 2], dtype=int32)
    """
    _check_order("copy", order)
    return ops_convert.copy(as_array("copy", a, "a"))


@single
def astype(x: Any, dtype: Any, /, *, copy: bool = False, device: Any = None) -> Any:
    """`x` with its elements converted to `dtype` (None: the default float).

    Floats become integers towards zero, held within the integers' range; complex numbers become
    real by dropping the imaginary part.

    >>> fnp.astype(fnp.array([1.7, -1.7]), "int32")
    Array([ 1, -1], dtype=int32)
    """
    x = as_array("astype", x, "x")
    out = ops_convert.convert_element_type(x, dtype_or(dtype, default_float()))
    return placed(ops_convert.copy(out) if copy and out is x else out, device)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    """An array of another library's array by the DLPack protocol, sharing its memory if it can:
    also a GPU's, where programs run on it (`fg.devices("cuda")`).

    Raises BufferError for what can't be shared: of other dtypes, or not contiguous on a GPU.

    >>> fnp.from_dlpack(np.arange(3.0))
    Array([0., 1., 2.], dtype=float64)
    """
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack: x must have the method __dlpack__, got {x!r}")
    number, _ = x.__dlpack_device__() if hasattr(x, "__dlpack_device__") else (_CPU, 0)
    if number == _CUDA:
        backend.door("devices").devices("cuda")  # from then on arrays can be there
    memory = None if number == _CPU else memory_of_dlpack(number)
    if memory is None:
        return made_on(_from_numpy(np.from_dlpack(x), None, bool(copy)), device)
    found = DeviceArray(memory.shared(x))
    return placed(deepcopy(found) if copy else found, device)


def frombuffer(buffer: Any, dtype: Any = float, count: int = -1, offset: int = 0) -> Any:
    """A vector of the elements that a bytes-like object holds, as `numpy.frombuffer`.

    >>> fnp.frombuffer(b"abc", dtype="uint8")
    Array([97, 98, 99], dtype=uint8)
    """
    kind = dtype_or(dtype, default_float())
    try:
        return _from_numpy(np.frombuffer(buffer, kind, count, offset), None, True)
    except (TypeError, ValueError, OverflowError) as e:
        raise type(e)(f"frombuffer: {e}, for buffer {buffer!r} and dtype {kind}") from None


def fromstring(string: str, dtype: Any = float, count: int = -1, *, sep: str) -> Any:
    """A vector of the numbers that a text lists between separators, as `numpy.fromstring`.

    Raises ValueError where the text holds something else.

    >>> fnp.fromstring("1, 2, 3", dtype=int, sep=",")
    Array([1, 2, 3], dtype=int32)
    """
    kind = dtype_or(dtype, default_float())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # what NumPy could not read
            return _from_numpy(np.fromstring(string, kind, count, sep=sep), None, True)
    except (TypeError, ValueError, OverflowError, DeprecationWarning) as e:
        raise ValueError(f"fromstring: {e}, for string {string!r} and dtype {kind}") from None


def fromfunction(function: Callable, shape: Any, *, dtype: Any = float, **kwargs: Any) -> Any:
    """function(i, j, …) of an array of each axis' indices, which have the given shape and dtype.

    >>> fnp.fromfunction(lambda i, j: i + j, (2, 3), dtype=int)
    Array([[0, 1, 2],
           [1, 2, 3]], dtype=int32)
    """
    check_callable("function", function)
    sizes = shape_of("fromfunction", shape)
    dtype = dtype_or(dtype, default_float())
    grids = [ops_shape.broadcasted_iota(dtype, sizes, axis) for axis in range(len(sizes))]
    return function(*grids, **kwargs)


# ---- filled arrays


def _made_as(x: Any, device: Any, out_sharding: Any) -> Any:
    return made_on(x, device) if out_sharding is None else cut_as_said(x, out_sharding)


def full(
    shape: Any,
    fill_value: Any,
    dtype: Any = None,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Any:
    """An array filled with a value (a scalar, or an array that broadcasts to `shape`).

    Without `dtype` it has that of the value. `out_sharding` is how it is to be cut over a mesh.

    >>> fnp.full((2, 3), 7)
    Array([[7, 7, 7],
           [7, 7, 7]], dtype=int32, weak_type=True)
    """
    sizes = shape_of("full", shape)
    value = _from_object("full", fill_value, _given(dtype), None)
    if value.shape and broadcast_shapes("full", value.shape, sizes) != sizes:
        raise ShapeError(f"full: fill_value of shape {value.shape} does not broadcast to {sizes}")
    return _made_as(broadcast_to(value, sizes), device, out_sharding)


def zeros(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """An array of zeros; of the default float without `dtype`. `out_sharding` is how it is to be
    cut over a mesh.

    >>> fnp.zeros((2, 2))
    Array([[0., 0.],
           [0., 0.]], dtype=float32)
    """
    out = full_p(shape_of("zeros", shape), 0, dtype_or(dtype, default_float()))
    return _made_as(out, device, out_sharding)


def ones(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """An array of ones; of the default float without `dtype`. `out_sharding` is how it is to be
    cut over a mesh.

    >>> fnp.ones(3, dtype=int)
    Array([1, 1, 1], dtype=int32)
    """
    out = full_p(shape_of("ones", shape), 1, dtype_or(dtype, default_float()))
    return _made_as(out, device, out_sharding)


def empty(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """An array to be filled by updates: zeros, as arrays always have a value.

    >>> fnp.empty(2)
    Array([0., 0.], dtype=float32)
    """
    out = full_p(shape_of("empty", shape), 0, dtype_or(dtype, default_float()))
    return _made_as(out, device, out_sharding)


def _like(name: str, a: Any, dtype: Any, shape: Any) -> tuple[tuple[int, ...], np.dtype]:
    """The shape and dtype of an array like `a`, which may be a ShapeDtypeStruct too."""
    if not hasattr(a, "shape") or not hasattr(a, "dtype"):
        a = as_array(name, a, "a")
    own = tuple(a.shape)
    return own if shape is None else shape_of(name, shape), dtype_or(dtype, a.dtype)


def zeros_like(
    a: Any,
    dtype: Any = None,
    shape: Any = None,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Any:
    """Zeros of the shape and dtype of `a`, unless others are given.

    >>> fnp.zeros_like(fnp.array([1, 2]))
    Array([0, 0], dtype=int32)
    """
    filled = full_p(*_filled("zeros_like", a, 0, dtype, shape))
    return _like_said(_weak_like(a, dtype, filled), device, out_sharding)


def ones_like(
    a: Any,
    dtype: Any = None,
    shape: Any = None,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Any:
    """Ones of the shape and dtype of `a`, unless others are given.

    >>> fnp.ones_like(fnp.array([1.5, 2.5]))
    Array([1., 1.], dtype=float32)
    """
    filled = full_p(*_filled("ones_like", a, 1, dtype, shape))
    return _like_said(_weak_like(a, dtype, filled), device, out_sharding)


def empty_like(
    prototype: Any,
    dtype: Any = None,
    shape: Any = None,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Any:
    """Zeros of the shape and dtype of `prototype`, unless others are given; see `empty`.

    >>> fnp.empty_like(fnp.array([1.5, 2.5]))
    Array([0., 0.], dtype=float32)
    """
    filled = full_p(*_filled("empty_like", prototype, 0, dtype, shape))
    return _like_said(_weak_like(prototype, dtype, filled), device, out_sharding)


def _like_said(x: Any, device: Any, out_sharding: Any) -> Any:
    return placed(x, device) if out_sharding is None else cut_as_said(x, out_sharding)


def _weak_like(a: Any, dtype: Any, out: Any) -> Any:
    """A result like `a`, weak if that is and no dtype was asked for."""
    weak = dtype is None and (is_scalar(a) or getattr(a, "weak_type", False))
    return convert(out, out.dtype, True) if weak and out.dtype != dtypes.BOOL else out


def _filled(name: str, a: Any, value: int, dtype: Any, shape: Any) -> tuple:
    sizes, dtype = _like(name, a, dtype, shape)
    return sizes, value, dtype


def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    shape: Any = None,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Any:
    """`fill_value` in the shape and dtype of `a`, unless others are given.

    >>> fnp.full_like(fnp.array([1.5, 2.5]), 3)
    Array([3., 3.], dtype=float32)
    """
    filled = full(*_filled("full_like", a, fill_value, dtype, shape))
    return _like_said(_weak_like(a, dtype, filled), device, out_sharding)


def _diagonal(k: Any, shape: tuple[int, ...]) -> int:
    """The number of a diagonal; however far outside it lies, it is one beside the matrix."""
    return min(max(k if isinstance(k, int) else integer("k", k), -shape[0]), shape[1])


def eye(N: Any, M: Any = None, k: int = 0, dtype: Any = None, *, device: Any = None) -> Any:
    """An N × M (by default N × N) matrix with ones on the k-th diagonal and zeros elsewhere.

    >>> fnp.eye(2)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    >>> fnp.eye(2, 3, k=1, dtype=int)
    Array([[0, 1, 0],
           [0, 0, 1]], dtype=int32)
    """
    shape = shape_of("eye", (N, N if M is None else M))
    mask = compare.eq(*matrices.places(shape, _diagonal(k, shape)))
    return made_on(convert(mask, dtype_or(dtype, default_float())), device)


def identity(n: int, dtype: Any = None) -> Any:
    """The n × n identity matrix.

    >>> fnp.identity(2)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    return eye(n, dtype=dtype)


def tri(N: Any, M: Any = None, k: int = 0, dtype: Any = None) -> Any:
    """An N × M (by default N × N) matrix with ones on and below the k-th diagonal.

    >>> fnp.tri(3, dtype=int)
    Array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]], dtype=int32)
    """
    shape = shape_of("tri", (N, N if M is None else M))
    mask = compare.ge(*matrices.places(shape, _diagonal(k, shape)))
    return convert(mask, dtype_or(dtype, default_float()))
