"""Mutable arrays: what a `Ref` is, and how programs see those from outside of them.

A Ref holds a value. A program that is being written has a cell of its own for each Ref from outside
that it touches: the value at its beginning is an input and, if it is written, the last value is an
output. Who calls the program reads the Ref before and writes it after, which may again be in the
cell of a program. So programs stay pure, and no transformation of them knows of Refs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from funcgrad.core import context, source
from funcgrad.core.array import Array, raw
from funcgrad.core.aval import ShapedArray, promote
from funcgrad.core.trace import Tracer, aval_of
from funcgrad.core.types import Value
from funcgrad.errors import RefError

if TYPE_CHECKING:
    from funcgrad.core.trace import Trace

Index = int | slice | EllipsisType | None | Sequence | np.ndarray | Array | Tracer


class Cell:
    """The value of a Ref as a trace has it, and whether it was written there."""

    __slots__ = ("first", "ref", "trace", "value")

    def __init__(self, ref: Ref, trace: Trace, value: Value):
        self.ref = ref
        self.trace = trace
        self.first = self.value = value

    @property
    def written(self) -> bool:
        """Whether there is another value than at first."""
        return self.value is not self.first


def _holders(cell: Cell) -> int:
    """How many hold a cell's value, beside its `first`."""
    return sys.getrefcount(cell.value) - (cell.first is cell.value)


_ALONE = _holders(Cell(None, None, object()))  # type: ignore[arg-type]


class AbstractRef:
    """What is known of a `Ref` before it is read: the type of its value, `inner_aval`.

    >>> fg.typeof(fg.new_ref(fnp.ones(3)))
    Ref{f32[3]}
    """

    __slots__ = ("inner_aval",)

    def __init__(self, inner_aval: ShapedArray):
        self.inner_aval = inner_aval

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self.inner_aval.shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the value."""
        return self.inner_aval.dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbstractRef) and self.inner_aval == other.inner_aval

    def __hash__(self) -> int:
        return hash((AbstractRef, self.inner_aval))

    def __repr__(self) -> str:
        return f"Ref{{{self.inner_aval}}}"


class Ref:
    """A mutable array: `ref[...]` reads all of it, `ref[i]` a part; `ref[i] = x` writes.

    `new_ref` makes one. Shape and dtype stay. What is read is an array, which later writes don't
    change. A Ref is no array itself: arithmetic is done with what is read.

    >>> ref = fg.new_ref(fnp.zeros(3))
    >>> ref[1] += 2.0
    >>> ref
    Ref([0., 2., 0.], dtype=float32)
    """

    __slots__ = ("__weakref__", "_aval", "_cell", "_gone", "_lent", "_source")

    def __init__(self, value: Value, lent: bool = False):
        self._aval = aval_of(value).strong()
        self._gone = ""
        self._lent = lent  # made of an argument: another Ref is behind it
        self._source = source.here()
        self._cell = Cell(self, context.current().trace, value)

    @property
    def inner_aval(self) -> ShapedArray:
        """The type of the value."""
        return self._aval

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return self._aval.shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the elements."""
        return self._aval.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._aval.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._aval.size

    @property
    def sharding(self) -> object:
        """How the value is cut over devices, None where it isn't."""
        return getattr(self.read(), "sharding", None)

    @property
    def home(self) -> Trace:
        """The trace under which it was made."""
        return self._cell.trace

    def cell(self) -> Cell:
        """The cell that holds the value here: that of the innermost program being written, or the
        Ref's own."""
        if self._gone:
            raise RefError(f"this Ref of {self._aval} {self._gone}: make a new one of its value")
        trace: Trace | None = context.current().trace
        home, program = self._cell.trace, None
        while trace is not home:
            if trace is None:
                raise self._leaked()
            if program is None and trace.cells is not None:
                program = trace
            trace = trace.parent
        return self._cell if program is None else program.cell_of(self)

    def read(self) -> Value:
        """The whole value."""
        return self.cell().value

    def lend(self) -> Value:
        """The whole value, for a program that writes to its memory unless another array has it, as
        one has where somebody else holds the value."""
        cell = self.cell()
        if type(cell.value) is Array and _holders(cell) > _ALONE:
            x = cell.value
            return Array(x.value, x.weak_type, x.aval)
        return cell.value

    def write(self, value: Value) -> None:
        """Set the whole value, which has the Ref's type."""
        cell = self.cell()
        trace = context.current().trace
        while trace is not cell.trace:
            if trace.owns_value(value):
                raise self._varies(trace)
            assert trace.parent is not None
            trace = trace.parent
        cell.value = value
        if cell is self._cell and not self._lent:
            cell.first = None  # nobody asks, and it is memory

    def end(self, why: str) -> Value:
        """The last value; using the Ref from now on raises."""
        cell = self.cell()
        if cell is not self._cell or self._lent:
            raise RefError(
                f"freeze: a Ref of {self._aval} can be frozen only where it was made, not in a "
                "function that it is an argument of or that closes over it; read it, ref[...]"
            )
        self._gone = why
        return cell.value

    def converted(self, value: Value) -> Value:
        """A value to be written, in the Ref's dtype: numbers take it if it is of no lower kind."""
        if isinstance(value, Ref):
            raise RefError("a Ref was to be written into a Ref: write its value, ref[...] = x[...]")
        aval = aval_of(value)
        if promote([aval, self._aval])[0] != self._aval.dtype or (
            not aval.weak_type and aval.dtype != self._aval.dtype
        ):
            raise RefError(
                f"a Ref of {self._aval} can't be written with {aval}: its dtype stays, convert "
                f"the value, .astype({self._aval.dtype.name!r})"
            )
        return held(value, self._aval.dtype)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Value:
        value = self.read()
        return value if _is_whole(index) else value[index]

    def __setitem__(self, index: Index | tuple[Index, ...], value: Value) -> None:
        value = self.converted(value)
        if not _is_whole(index) or aval_of(value).shape != self.shape:
            value = self.read().at[index].set(value)
        self.write(value)

    def addupdate(self, x: Value, idx: Index | tuple[Index, ...] = ()) -> None:
        """Add to the elements at an index; what an index repeats is added as often.

        >>> ref = fg.new_ref(fnp.zeros(2))
        >>> ref.addupdate(1.0, np.array([0, 0]))
        >>> ref
        Ref([2., 0.], dtype=float32)
        """
        self.write(self.read().at[idx].add(self.converted(x)))

    @property
    def at(self) -> _At:
        """Parts of it that are read and written like a Ref: `ref.at[i]`.

        >>> row = fg.new_ref(fnp.zeros((2, 3))).at[1]
        >>> row[0] = 5.0
        >>> row[...]
        Array([5., 0., 0.], dtype=float32)
        """
        return _At(self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a Ref without axes")
        return self.shape[0]

    def __bool__(self) -> bool:
        raise TypeError("a Ref is neither true nor false: read it, ref[...]")

    def __iter__(self) -> NoReturn:
        raise TypeError("a Ref isn't iterated over: read it, ref[...]")

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError(f"a Ref of {self._aval} is no array: read it, ref[...]")

    def __copy__(self) -> Ref:
        return self

    def __deepcopy__(self, memo: dict) -> Ref:
        return self

    def __repr__(self) -> str:
        value = self._cell.value
        if self._gone or not isinstance(value, Array):
            return f"Ref{{{self._aval}}}"
        return "Ref" + repr(value).removeprefix("Array")

    def _varies(self, trace: Trace) -> RefError:
        return RefError(
            f"a value that varies in {trace.what} can't be written to a Ref of {self._aval} that "
            f"was made outside of it{self._made()}: make the Ref an argument of the function that "
            "vmap maps; under grad write lax.stop_gradient(value)"
        )

    def _leaked(self) -> RefError:
        return RefError(
            f"a Ref of {self._aval} is used outside of {self.home.what}, in which it was made"
            f"{self._made()}: return its value, ref[...]"
        )

    def _made(self) -> str:
        return f" (at {self._source}: {self._source.text})" if self._source else ""


class RefView:
    """A part of a mutable array: `view[...]` reads it, `view[...] = x` writes it there."""

    __slots__ = ("_index", "_of")

    def __init__(self, of: Ref | RefView, index: Index | tuple[Index, ...]):
        self._of = of
        self._index = index

    @property
    def at(self) -> _At:
        """Parts of the part."""
        return _At(self)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Value:
        value = self._of[self._index]
        return value if _is_whole(index) else value[index]

    def __setitem__(self, index: Index | tuple[Index, ...], value: Value) -> None:
        if not _is_whole(index):
            value = self._of[self._index].at[index].set(value)
        self._of[self._index] = value

    def __repr__(self) -> str:
        return f"{self._of!r}.at[{self._index!r}]"


class _At:
    """What `ref.at` is, before it is indexed."""

    __slots__ = ("_of",)

    def __init__(self, of: Ref | RefView):
        self._of = of

    def __getitem__(self, index: Index | tuple[Index, ...]) -> RefView:
        return RefView(self._of, index)


def _is_whole(index: object) -> bool:
    return index is Ellipsis or (type(index) is tuple and index in ((), (Ellipsis,)))


def held(value: Value, dtype: np.dtype) -> Value:
    """A value as a Ref holds it: an array or a tracer, of a strong dtype."""
    aval = aval_of(value)
    if not hasattr(value, "aval"):
        return Array(np.array(raw(value), dtype))
    return value.astype(dtype) if aval.weak_type or aval.dtype != dtype else value


def settled(values: Sequence) -> list:
    """What a program captured as values: for Refs what they hold here."""
    return [x.read() if type(x) is Ref else x for x in values]


def check_distinct(what: str, refs: Sequence[Ref], names: Sequence[str]) -> None:
    """Raise where a Ref is given twice: as two arguments, or as one and by closing over it."""
    seen: dict[int, str] = {}
    for ref, name in zip(refs, names, strict=True):
        other = seen.setdefault(id(ref), name)
        if other is not name:
            at = "closed over and given" if "captured" in (name, other) else f"given as {other} and"
            shown = other if name == "captured" else name
            raise RefError(
                f"{what}: a Ref of {ref.inner_aval} is {at} as argument {shown}; a function may "
                "know a Ref by one name only"
            )
