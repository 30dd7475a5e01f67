"""Keys: the state of random number generation, passed explicitly and never used twice.

A `Key` is a pytree over an array of uint32 pairs, so it maps, scans and compiles like an array.
Plain arrays of such pairs are keys as well; what is made from them is an array again.
Bits are those of `jax.random` (threefry2x32, partitionable; rbg and unsafe_rbg as on CPUs).
"""

from __future__ import annotations

import contextlib
import functools
import html
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.context import keys_unwatched
from funcgrad.core.display.array_html import bits_html
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.lax.bits import philox_bits, philox_words
from funcgrad.ops.arguments import shape_of
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.elementwise.compare import (
    bitwise_or,
    bitwise_xor,
    eq,
    ne,
    shift_left,
    shift_right_logical,
)
from funcgrad.ops.elementwise.convert import convert_element_type
from funcgrad.ops.indexing.indexing import index
from funcgrad.ops.indexing.windows_at import index_in_dim
from funcgrad.ops.random import threefry2x32_p
from funcgrad.ops.reduce import reduce_and, reduce_or
from funcgrad.ops.shape import broadcast_in_dim, broadcasted_iota, expand_dims, reshape
from funcgrad.ops.slicing import concatenate
from funcgrad.random.arrays import KeyArray
from funcgrad.transforms.key_reuse import copied, used, watching
from funcgrad.transforms.recorded import recorded

_THREEFRY, _RBG, _UNSAFE = "threefry2x32", "rbg", "unsafe_rbg"
_TAGS = {_THREEFRY: "fry", _RBG: "rbg", _UNSAFE: "urbg"}
_STATIC = (int, np.integer, slice, type(Ellipsis), type(None))  # what a part of an index may be
_COUNTS = {_THREEFRY: 2, _RBG: 4, _UNSAFE: 4}  # of a key's words


@dataclass(frozen=True)
class KeyType:
    """The dtype of keys: says which generator they are for.

    >>> random.key(0).dtype
    key<fry>
    """

    name: str

    def __repr__(self) -> str:
        return f"key<{_TAGS[self.name]}>"

    @property
    def type(self) -> type:
        """What `dtypes.issubdtype` goes by."""
        return dtypes.prng_key

    @property
    def itemsize(self) -> int:
        """The bytes of a key."""
        return 4 * _COUNTS[self.name]


def key_dtype(impl_spec: Any = None) -> KeyType:
    """The dtype of keys of a generator: "threefry2x32" (the default), "rbg" or "unsafe_rbg".

    >>> from funcgrad import random
    >>> random.key_dtype("rbg")
    key<rbg>
    """
    return KeyType(_impl("random.key_dtype", impl_spec))


def _impl(what: str, impl: Any, dtype: Any = None) -> str:
    """The name of a generator, given by name, by a key's dtype, or not at all."""
    if impl is not None and dtype is not None:
        raise ValueError(f"{what}: Cannot specify both `impl` and `dtype`: they say the same")
    found = dtype if impl is None else impl
    if found is None:
        return _THREEFRY
    name = found.name if isinstance(found, KeyType) else found
    if not isinstance(name, str) or name not in _TAGS:
        raise ValueError(f"{what}: impl must be one of {', '.join(_TAGS)}, got {found!r}")
    return name


class Key(KeyArray):
    """A random key, or an array of them. Made by `key` and `split`.

    `shape` is that of the keys; `data` the uint32 words, two a key (four with impl "rbg" and
    "unsafe_rbg"); `==` compares keys one by one.

    >>> from funcgrad import random
    >>> random.split(random.key(0), 3).shape
    (3,)
    """

    __slots__ = ("data", "impl")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, data: Any, impl: str = _THREEFRY):
        self.data = data
        self.impl = impl

    @property
    def dtype(self) -> KeyType:
        """Which generator the keys are for."""
        return KeyType(self.impl)

    def __eq__(self, other: object) -> Any:
        return self._compared("==", other, eq, reduce_and)

    def __ne__(self, other: object) -> Any:
        return self._compared("!=", other, ne, reduce_or)

    def _compared(self, sign: str, other: object, compare: Any, reduce: Any) -> Any:
        if not isinstance(other, Key):
            return NotImplemented
        if self.impl != other.impl:
            raise TypeError(f"{sign}: keys of {self.dtype} and {other.dtype} don't compare")
        shape = np.broadcast_shapes(self.shape, other.shape)
        a, b = (_widened(k, shape) for k in (self, other))
        return reduce(compare(a, b), (len(shape),))

    @property
    def ndim(self) -> int:
        """The number of axes of the keys: 0 for a single one."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of keys.

        >>> random.split(random.key(0), (2, 3)).size
        6
        """
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """The bytes of a key."""
        return self.dtype.itemsize

    def reshape(self, *shape: Any) -> Key:
        """The same keys in another shape.

        >>> random.split(random.key(0), 6).reshape(2, -1).shape
        (2, 3)
        """
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        known = math.prod(n for n in sizes if n != -1)
        sizes = tuple(self.size // max(known, 1) if n == -1 else n for n in sizes)
        return Key(reshape(self.data, (*sizes, _COUNTS[self.impl])), self.impl)

    def _with(self, data: Any) -> Key:
        return Key(data, self.impl)

    def __getitem__(self, idx: Any) -> Key:
        if watching() and self.ndim:
            parts = idx if isinstance(idx, tuple) else (idx,)
            if all(isinstance(i, _STATIC) for i in parts):
                with contextlib.suppress(IndexError):  # of which the index itself tells
                    self = _used(f"keys[{', '.join(map(str, parts))}]", self, parts)
        return KeyArray.__getitem__(self, idx)

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of a single random key")
        return self.shape[0]

    def __iter__(self) -> Iterator[Key]:
        if not self.ndim:
            raise TypeError("a single random key can't be unpacked; use random.split(key, n)")
        keys = _used("iteration over keys", self) if watching() else self
        each = (index_in_dim(keys.data, i, 0, keepdims=False) for i in range(len(keys)))
        return (Key(words, keys.impl) for words in each)

    def __repr__(self) -> str:
        impl = "" if self.impl == _THREEFRY else f", impl={self.impl!r}"
        return f"Key({self.data!r}{impl})"

    def _repr_html_(self) -> str:
        if not isinstance(self.data, Array):
            return f"<code>{html.escape(repr(self))}</code>"
        title = f"keys {self.shape}" if self.ndim else repr(self)
        return bits_html(title, self.data.value)


tree.register_pytree_with_keys(
    Key,
    lambda k: (((tree.GetAttrKey("data"), k.data),), k.impl),
    lambda impl, children: Key(children[0], impl),
)


def _widened(keys: Key, shape: tuple[int, ...]) -> Any:
    """The words of keys, broadcast to a shape of keys."""
    places = tuple(range(len(shape) - keys.ndim, len(shape) + 1))
    return broadcast_in_dim(keys.data, (*shape, _COUNTS[keys.impl]), places)


def _type_of(x: Any) -> ShapedArray | None:
    """The type of an array or a number, None of anything else."""
    try:
        return aval_of(x)
    except TypeError:
        return None


def check_key(what: str, key: Any) -> Any:
    """The words of a single key, a `Key` or an array of two uint32; raises for anything else.
    A key of unsafe_rbg stays one: its four words look like those of rbg.
    """
    data = key.data if isinstance(key, Key) else key
    aval = _type_of(data)
    if aval is None:
        raise TypeError(f"{what}: need a random key (random.key(seed)), got {key!r}")
    if aval.dtype != np.uint32 or not aval.shape or aval.shape[-1] not in (2, 4):
        raise DTypeError(
            f"{what}: need a random key (random.key(seed), or two uint32 words), got {aval}"
        )
    if aval.ndim != 1:
        raise ShapeError(
            f"{what}: need a single key, got an array of keys of shape {aval.shape[:-1]}; "
            "use vmap for one draw a key"
        )
    return key if isinstance(key, Key) and key.impl == _UNSAFE else data


def _words(data: Any) -> tuple[Any, Any]:
    """The two words of a single key."""
    return (
        index_in_dim(data, 0, 0, keepdims=False),
        index_in_dim(data, 1, 0, keepdims=False),
    )


def sampler(draw: Callable[..., Any]) -> Callable[..., Any]:
    """A sampler whose key and shape are checked first: errors name the sampler that was called,
    not those that it draws from. `draw` gets the key's words, and the shape as a tuple, or None
    where that is its default.
    """
    what = f"random.{draw.__name__}"
    parameters = inspect.signature(draw).parameters
    place = [*parameters, "shape"].index("shape")
    optional = "shape" in parameters and parameters["shape"].default is None

    @functools.wraps(draw)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not args and "key" in kwargs:
            args = (kwargs.pop("key"),)
        if args:
            args = (check_key(what, args[0]), *args[1:])
        if "shape" in kwargs:
            if not (optional and kwargs["shape"] is None):
                kwargs["shape"] = shape_of(what, kwargs["shape"])
        elif len(args) > place and not (optional and args[place] is None):
            args = (*args[:place], shape_of(what, args[place]), *args[place + 1 :])
        if not args or not watching():
            return draw(*args, **kwargs)
        marked = _used(what, args[0])
        with keys_unwatched():  # what it draws from the key by others is its own affair
            return draw(marked, *args[1:], **kwargs)

    return checked


def _used(what: str, key: Any, chosen: Any = None) -> Any:
    """A key, or keys, marked as used by a function: all of them, or those at an index."""
    data = key.data if isinstance(key, Key) else key
    if chosen is None:
        return _like(key, used(what, data))
    mask = np.zeros(key.shape, bool)
    mask[chosen] = True
    return _like(key, used(what, data, mask))


def key(seed: Any, *, impl: Any = None, dtype: Any = None) -> Key:
    """The key of an integer seed (a Python integer or an integer scalar).

    The last 64 bits of the seed count; Python integers below 2³² and from -2³¹ on count as 32 bits.
    impl: the generator, "threefry2x32" (the default), "rbg" or "unsafe_rbg", both Philox; or dtype:
        that of such keys.

    >>> from funcgrad import random
    >>> random.key(42)
    Key(Array([ 0, 42], dtype=uint32))
    """
    name = _impl("random.key", impl, dtype)
    words = _seed_words(seed)
    return Key(words if name == _THREEFRY else concatenate([words, words], 0), name)


def _seed_words(seed: Any) -> Any:
    """The two words of a seed."""
    if isinstance(seed, int):
        low = seed & 0xFFFFFFFF
        high = 0 if -(1 << 31) <= seed < 1 << 32 else (seed >> 32) & 0xFFFFFFFF
        return _array(np.array([high, low], np.uint32))
    aval = _integer_scalar("random.key", "the PRNG key seed", seed)
    low = convert_element_type(seed, np.uint32)
    high = (
        convert_element_type(shift_right_logical(seed, aval.dtype.type(32)), np.uint32)
        if aval.dtype.itemsize == 8
        else mul(low, np.uint32(0))
    )
    return concatenate([expand_dims(high, (0,)), expand_dims(low, (0,))], 0)


def _integer_scalar(what: str, argument: str, x: Any) -> ShapedArray:
    aval = _type_of(x)
    if aval is None or aval.dtype.kind not in "iu" or aval.shape:
        raise DTypeError(f"{what}: {argument} must be an integer scalar, got {aval or repr(x)}")
    return aval


def PRNGKey(seed: Any, *, impl: Any = None) -> Any:
    """The words of `key(seed)`: a key as a plain uint32 array of shape (2,), for older code.
    Four words (impl="rbg" or "unsafe_rbg") are taken as a key of rbg.

    >>> from funcgrad import random
    >>> random.PRNGKey(42)
    Array([ 0, 42], dtype=uint32)
    """
    return key(seed, impl=impl).data


def _like(original: Any, data: Any) -> Any:
    """New words in the form of the key that they are made from."""
    return Key(data, original.impl) if isinstance(original, Key) else data


def _array(value: np.ndarray) -> Any:
    return convert_element_type(value, value.dtype)


def key_data(keys: Key) -> Any:
    """The words of keys: a uint32 array with a last axis of size 2.

    >>> from funcgrad import random
    >>> random.key_data(random.key(1))
    Array([0, 1], dtype=uint32)
    """
    return keys.data if isinstance(keys, Key) else keys


def key_impl(keys: Any) -> str:
    """The name of the generator that keys are for.

    >>> from funcgrad import random
    >>> random.key_impl(random.key(1, impl="rbg"))
    'rbg'
    """
    if isinstance(keys, Key):
        return keys.impl
    aval = _type_of(keys)
    if aval is None or aval.dtype != np.uint32 or aval.shape[-1:] not in ((2,), (4,)):
        raise TypeError(f"random.key_impl: need random keys, got {aval or repr(keys)}")
    return _THREEFRY if aval.shape[-1] == 2 else _RBG


def wrap_key_data(data: Any, *, impl: Any = None, dtype: Any = None) -> Key:
    """Keys of words: the inverse of `key_data`. impl, dtype: as `key` takes them.

    >>> import funcgrad.numpy as fnp
    >>> from funcgrad import random
    >>> random.wrap_key_data(fnp.array([0, 1], "uint32")).shape
    ()
    """
    name = _impl("random.wrap_key_data", impl, dtype)
    aval = _type_of(data)
    if aval is None or aval.dtype != np.uint32 or aval.shape[-1:] != (_COUNTS[name],):
        raise DTypeError(
            f"random.wrap_key_data: need uint32 words with a last axis of {_COUNTS[name]}, got "
            f"{aval or repr(data)}"
        )
    return Key(data, name)


def _counters(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The row-major number of each element, as high and low words."""
    size = math.prod(shape)
    if size < 1 << 32:
        low = reshape(broadcasted_iota(np.uint32, (size,), 0), shape)
        return np.uint32(0), low
    wide = reshape(broadcasted_iota(np.uint64, (size,), 0), shape)
    high = convert_element_type(shift_right_logical(wide, np.uint64(32)), np.uint32)
    return high, convert_element_type(wide, np.uint32)


def split(key: Any, num: int | Sequence[int] = 2) -> Any:
    """`num` independent keys (an int, or a shape) from one, which must not be used again.

    >>> from funcgrad import random
    >>> k1, k2 = random.split(random.key(0))
    >>> k1
    Key(Array([1797259609, 2579123966], dtype=uint32))
    """
    data = check_key("random.split", key)
    if watching():
        data = _used("random.split", data)
    return _like(key, _split(data, shape_of("random.split", num, "num")))


def _split(words: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(words, Key):
        # Every tenth block: Philox's next keys, in the place of a function that hides them.
        rows = philox_words(words.data, 40 * math.prod(shape))
        return reshape(index(reshape(rows, (-1, 4)), (slice(None, None, 10),)), (*shape, 4))
    if aval_of(words).shape == (2,):
        return _split_pair(words, shape)
    return concatenate([_split_pair(half, shape) for half in _pairs(words)], len(shape))


def _pairs(words: Any) -> tuple[Any, Any]:
    """The two keys of threefry that a key of rbg is made of."""
    return index(words, (slice(0, 2),)), index(words, (slice(2, 4),))


@recorded
def _split_pair(data: Any, shape: tuple[int, ...]) -> Any:
    y0, y1 = threefry2x32_p.bind(*_words(data), *_counters(shape))
    last = (len(shape),)
    return concatenate([expand_dims(y0, last), expand_dims(y1, last)], len(shape))


def fold_in(key: Any, data: Any) -> Any:
    """A key that depends on `key` and the integer `data` (a step number, a layer's index).

    >>> from funcgrad import random
    >>> random.fold_in(random.key(0), 1).shape
    ()
    """
    words = check_key("random.fold_in", key)
    _integer_scalar("random.fold_in", "data", data)
    if isinstance(data, int) and not 0 <= data < 1 << 32:
        raise OverflowError(f"random.fold_in: data must lie in 0 … 2³² - 1, got {data}")
    data = np.uint32(data) if isinstance(data, int) else data
    return _like(key, _fold_in(words, convert_element_type(data, np.uint32)))


def _fold_in(words: Any, data: Any) -> Any:
    if isinstance(words, Key):
        seed = _seed_words(data)
        last = index(philox_words(concatenate([seed, seed], 0), 40), (slice(36, 40),))
        return bitwise_xor(words.data, last)
    if aval_of(words).shape == (2,):
        return _fold_in_pair(words, data)
    return concatenate([_fold_in_pair(half, data) for half in _pairs(words)], 0)


@recorded
def _fold_in_pair(words: Any, data: Any) -> Any:
    y0, y1 = threefry2x32_p.bind(*_words(words), np.uint32(0), data)
    return concatenate([expand_dims(y0, (0,)), expand_dims(y1, (0,))], 0)


def clone(key: Any) -> Any:
    """The same key, to say that using it again is meant.

    >>> from funcgrad import random
    >>> random.clone(random.key(0)).shape
    ()
    """
    if not watching():
        return key
    data = key.data if isinstance(key, Key) else key
    return _like(key, copied(data))


@sampler
@recorded
def bits(key: Any, shape: Any = (), dtype: Any = np.uint32) -> Any:
    """Uniformly random bits as unsigned integers (uint8, uint16, uint32 or uint64).

    >>> from funcgrad import random
    >>> random.bits(random.key(0), (2,))
    Array([4070199207, 4202968722], dtype=uint32)
    """
    return random_words("random.bits", key, shape, dtypes.canonical(dtype))


def random_words(what: str, key: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Random unsigned integers of a dtype, for the samplers."""
    checked = check_key(what, key)
    words = checked.data if isinstance(checked, Key) else checked
    if dtype.kind != "u":
        raise DTypeError(
            f"{what}: dtype argument {dtype} must be an unsigned int dtype (an unsigned integer "
            "dtype)"
        )
    if aval_of(words).shape == (4,):
        return philox_bits(words, shape, dtype)
    y0, y1 = threefry2x32_p.bind(*_words(words), *_counters(shape))
    if dtype.itemsize == 8:
        high = shift_left(convert_element_type(y0, np.uint64), np.uint64(32))
        return bitwise_or(high, convert_element_type(y1, np.uint64))
    word = bitwise_xor(y0, y1)
    return word if dtype.itemsize == 4 else convert_element_type(word, dtype)
