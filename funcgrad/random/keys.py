"""Keys: the state of random number generation, passed explicitly and never used twice.

A `Key` is a pytree over an array of uint32 pairs, so it maps, scans and compiles like an array.
Plain arrays of such pairs are keys as well; what is made from them is an array again.
What the words are, and bits of them, is in `generators`.
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
from funcgrad.ops.arguments import shape_of
from funcgrad.ops.elementwise.compare import eq, ne
from funcgrad.ops.elementwise.convert import convert_element_type
from funcgrad.ops.indexing.windows_at import index_in_dim
from funcgrad.ops.reduce import reduce_and, reduce_or
from funcgrad.ops.shape import broadcast_in_dim, reshape
from funcgrad.random.arrays import KeyArray
from funcgrad.random.generators import DEFAULT, GENERATORS, OF_WORDS, Generator, seed_words
from funcgrad.transforms.key_reuse import copied, used, watching
from funcgrad.transforms.recorded import recorded

_STATIC = (int, np.integer, slice, type(Ellipsis), type(None))  # what a part of an index may be


@dataclass(frozen=True)
class KeyType:
    """The dtype of keys: `impl` is the name of the generator that they are for.

    >>> random.key(0).dtype
    key<fry>
    """

    impl: str

    def __repr__(self) -> str:
        return f"key<{GENERATORS[self.impl].tag}>"

    @property
    def name(self) -> str:
        """The dtype's name, as it is printed."""
        return repr(self)

    @property
    def type(self) -> type:
        """What `dtypes.issubdtype` goes by."""
        return dtypes.prng_key

    @property
    def itemsize(self) -> int:
        """The bytes of a key."""
        return 4 * GENERATORS[self.impl].words


def key_dtype(impl_spec: Any = None) -> KeyType:
    """The dtype of keys of a generator: "threefry2x32" (the default), "threefry4x32", "rbg",
    "unsafe_rbg", "philox2x32" or "philox4x32".

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
        return DEFAULT
    name = found.impl if isinstance(found, KeyType) else found
    if not isinstance(name, str) or name not in GENERATORS:
        raise ValueError(f"{what}: impl must be one of {', '.join(GENERATORS)}, got {found!r}")
    return name


class Key(KeyArray):
    """A random key, or an array of them. Made by `key` and `split`.

    `shape` is that of the keys; `data` the uint32 words, two a key (of other generators one to
    four); `==` compares keys one by one.

    >>> from funcgrad import random
    >>> random.split(random.key(0), 3).shape
    (3,)
    """

    __slots__ = ("data", "impl")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, data: Any, impl: str = DEFAULT):
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
        return self._with(reshape(self.data, (*sizes, GENERATORS[self.impl].words)))

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
        impl = "" if self.impl == DEFAULT else f", impl={self.impl!r}"
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
    return broadcast_in_dim(keys.data, (*shape, GENERATORS[keys.impl].words), places)


def _type_of(x: Any) -> ShapedArray | None:
    """The type of an array or a number, None of anything else."""
    try:
        return aval_of(x)
    except TypeError:
        return None


def check_key(what: str, key: Any) -> Any:
    """A single key, as its words where they alone say which generator it is for; raises for what
    is none: neither a `Key`, nor two or four uint32.
    """
    data = key.data if isinstance(key, Key) else key
    aval = _type_of(data)
    if aval is None:
        raise TypeError(f"{what}: need a random key (random.key(seed)), got {key!r}")
    count = aval.shape[-1] if aval.shape else 0
    if isinstance(key, Key):
        # vmap over the axis of words, such as in_axes=1, leaves keys that lack some.
        words, named = GENERATORS[key.impl].words, key.impl != OF_WORDS.get(count)
        fits, needed = count == words, f"of {words} uint32 words, as {key.impl!r} has"
    else:
        fits, named, needed = count in OF_WORDS, False, "(random.key(seed), or two uint32 words)"
    if aval.dtype != np.uint32 or not fits:
        raise DTypeError(f"{what}: need a random key {needed}, got {aval}")
    if aval.ndim != 1:
        raise ShapeError(
            f"{what}: need a single key, got an array of keys of shape {aval.shape[:-1]}; "
            "use vmap for one draw a key"
        )
    return key if named else data


def _generator(key: Any) -> tuple[Generator, Any]:
    """The generator of a key that was checked, and its words."""
    if isinstance(key, Key):
        return GENERATORS[key.impl], key.data
    return GENERATORS[OF_WORDS[aval_of(key).shape[-1]]], key


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
    impl: the generator, "threefry2x32" (the default), "threefry4x32", "philox2x32", "philox4x32",
        "rbg" or "unsafe_rbg", which draw by Philox; or dtype: that of such keys.

    >>> from funcgrad import random
    >>> random.key(42)
    Key(Array([ 0, 42], dtype=uint32))
    """
    name = _impl("random.key", impl, dtype)
    if not isinstance(seed, int):
        _integer_scalar("random.key", "the PRNG key seed", seed)
    return Key(GENERATORS[name].seed(seed_words(seed)), name)


def _integer_scalar(what: str, argument: str, x: Any) -> ShapedArray:
    aval = _type_of(x)
    if aval is None or aval.dtype.kind not in "iu" or aval.shape:
        raise DTypeError(f"{what}: {argument} must be an integer scalar, got {aval or repr(x)}")
    return aval


def PRNGKey(seed: Any, *, impl: Any = None) -> Any:
    """The words of `key(seed)`: a key as a plain uint32 array of shape (2,), for older code.
    Words have no name: two are taken for threefry2x32's, four for rbg's, others for none.

    >>> from funcgrad import random
    >>> random.PRNGKey(42)
    Array([ 0, 42], dtype=uint32)
    """
    return key(seed, impl=impl).data


def _like(original: Any, data: Any) -> Any:
    """New words in the form of the key that they are made from."""
    return Key(data, original.impl) if isinstance(original, Key) else data


def key_data(keys: Key) -> Any:
    """The words of keys: a uint32 array with a last axis of size 2 (1 to 4, of other generators).

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
    return OF_WORDS[aval.shape[-1]]


def wrap_key_data(data: Any, *, impl: Any = None, dtype: Any = None) -> Key:
    """Keys of words: the inverse of `key_data`. impl, dtype: as `key` takes them.

    >>> import funcgrad.numpy as fnp
    >>> from funcgrad import random
    >>> random.wrap_key_data(fnp.array([0, 1], "uint32")).shape
    ()
    """
    name = _impl("random.wrap_key_data", impl, dtype)
    aval, count = _type_of(data), GENERATORS[name].words
    if aval is None or aval.dtype != np.uint32 or aval.shape[-1:] != (count,):
        raise DTypeError(
            f"random.wrap_key_data: need uint32 words with a last axis of {count}, got "
            f"{aval or repr(data)}"
        )
    return Key(data, name)


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
    generator, words = _generator(data)
    return _like(key, generator.split(words, shape_of("random.split", num, "num")))


def fold_in(key: Any, data: Any) -> Any:
    """A key that depends on `key` and the integer `data` (a step number, a layer's index).

    >>> from funcgrad import random
    >>> random.fold_in(random.key(0), 1).shape
    ()
    """
    generator, words = _generator(check_key("random.fold_in", key))
    _integer_scalar("random.fold_in", "data", data)
    if isinstance(data, int) and not 0 <= data < 1 << 32:
        raise OverflowError(f"random.fold_in: data must lie in 0 … 2³² - 1, got {data}")
    data = np.uint32(data) if isinstance(data, int) else data
    return _like(key, generator.fold_in(words, convert_element_type(data, np.uint32)))


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
    generator, words = _generator(check_key(what, key))
    if dtype.kind != "u":
        raise DTypeError(
            f"{what}: dtype argument {dtype} must be an unsigned int dtype (an unsigned integer "
            "dtype)"
        )
    return generator.bits(words, shape, dtype)
