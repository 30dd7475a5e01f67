"""Keys as arrays: what is done to their shape and place, on the words that they are made of."""

from __future__ import annotations

from typing import Any

from funcgrad.core.trace import aval_of
from funcgrad.errors import ShapeError
from funcgrad.numpy._keys import Keys
from funcgrad.numpy.manipulation.updates import IndexUpdateHelper
from funcgrad.ops.indexing.indexing import index
from funcgrad.ops.shape import reshape, transpose

# What a key has, or does, as the array of its words.
_FACTS = ("device", "sharding", "is_fully_addressable", "nbytes")
_METHODS = ("devices", "is_deleted")


class KeyArray(Keys):
    """The methods of arrays that keys have; `data` holds their words, on a last axis."""

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the keys, without the axis of their words."""
        return aval_of(self.data).shape[:-1]

    def __getitem__(self, idx: Any) -> Any:
        if not self.shape:
            raise ShapeError(f"a single random key can't be indexed, got {idx!r}; split it first")
        return self._with(index(self.data, _of_words(idx)))

    @property
    def at(self) -> KeyUpdates:
        """Keys with some replaced: `keys.at[idx].set(key)`; `keys.at[idx].get()` as `keys[idx]`.

        >>> keys = random.split(random.key(0), 3)
        >>> bool(keys.at[1].set(keys[0])[1] == keys[0])
        True
        """
        return KeyUpdates(self)

    @property
    def T(self) -> Any:
        """The keys with their axes in reverse order."""
        n = len(self.shape)
        return self._with(transpose(self.data, (*reversed(range(n)), n)))

    def ravel(self) -> Any:
        """The keys on one axis.

        >>> random.split(random.key(0), (2, 3)).ravel().shape
        (6,)
        """
        return self._with(reshape(self.data, (-1, self.data.shape[-1])))

    flatten = ravel

    def copy(self) -> Any:
        """Keys whose memory is their own."""
        return self._with(self.data.copy())

    def block_until_ready(self) -> Any:
        """The keys, once they are computed."""
        self.data.block_until_ready()
        return self

    def delete(self) -> None:
        """Free the memory: the keys are no longer to be used."""
        self.data.delete()


def _fact(name: str) -> property:
    return property(lambda self: getattr(self.data, name), doc=f"`{name}` of the keys' words.")


def _method(name: str) -> Any:
    def method(self: KeyArray) -> Any:
        return getattr(self.data, name)()

    method.__doc__ = f"`{name}` of the keys' words."
    return method


for _name in _FACTS:
    setattr(KeyArray, _name, _fact(_name))
for _name in _METHODS:
    setattr(KeyArray, _name, _method(_name))


class KeyUpdates:
    """`keys.at`: index it to replace keys, or to look at some."""

    __slots__ = ("_at", "_keys")

    def __init__(self, keys: Any, at: Any = None):
        self._keys = keys
        self._at = at

    def __getitem__(self, idx: Any) -> KeyUpdates:
        return KeyUpdates(self._keys, IndexUpdateHelper(self._keys.data)[_of_words(idx)])

    def get(self, **options: Any) -> Any:
        """The keys at the index, as `x.at[idx].get` takes them."""
        return self._keys._with(self._at.get(**options))

    def set(self, keys: Any, **options: Any) -> Any:
        """The array of keys with others at the index; TypeError for what are no such keys."""
        if not isinstance(keys, type(self._keys)) or keys.dtype != self._keys.dtype:
            raise TypeError(f"keys.at[...].set: need keys of {self._keys.dtype}, got {keys!r}")
        return self._keys._with(self._at.set(keys.data, **options))


def _of_words(idx: Any) -> tuple:
    """An index of keys as one of their words."""
    idx = idx if isinstance(idx, tuple) else (idx,)
    if not any(i is Ellipsis for i in idx):
        idx = (*idx, Ellipsis)
    return (*idx, slice(None))
