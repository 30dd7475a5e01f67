"""Functions that have left Python: programs as data, to call, differentiate, save and load.

An `Exported` holds what its file holds, and its programs are made from that, so that it is the same
before it is saved and after it is loaded.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.closed import ClosedJaxpr
from funcgrad.core.display.jaxpr_html import program_html
from funcgrad.core.ir import eval_jaxpr
from funcgrad.core.shapes import ShapeDtypeStruct, SymbolicSize
from funcgrad.core.sharding import NamedSharding
from funcgrad.core.types import Tree
from funcgrad.errors import ArgumentError, ExportError, FormatError
from funcgrad.export.archive import pack, unpack
from funcgrad.export.constants import laid_out
from funcgrad.export.content import Content
from funcgrad.export.program.trees import tree_from_json
from funcgrad.export.rows import at_any, row_symbol
from funcgrad.export.samples import Sample, difference, samples_in
from funcgrad.export.signature import Signature
from funcgrad.export.tensors import tensors_from_bytes, tensors_to_bytes
from funcgrad.export.tracing import content_of, symbolic_content
from funcgrad.transforms.arguments import as_array, avals_of
from funcgrad.transforms.derivatives.linear import vjp
from funcgrad.transforms.jit.jit import Jitted, jit
from funcgrad.transforms.jit.stages import Traced

PLATFORMS = ("cpu", "cuda")
MOST_SIZES = 64  # of which programs are kept


def export(
    fun_jit: Callable, *, platforms: Iterable[str] | None = None, rule_order: int = 2
) -> Callable[..., Exported]:
    """`export(fg.jit(f))(*args)` is f for arguments of these types, as an `Exported`.

    fun_jit: a function that `jit` returned
    platforms: where it shall run, of "cpu" and "cuda"; a program is the same for both
    rule_order: how often the loaded function can be differentiated by the rules of `custom_jvp` and
        `custom_vjp` functions in it. Other operations can be as often as one likes.

    Arguments are arrays or `ShapeDtypeStruct`s; their values don't matter. Sizes may be symbols, as
    `symbolic_shape` makes them: then a program is compiled for each size that is called. Arrays
    that f captured go along. Raises ExportError, with the user's line, for what is Python code:
    callbacks, the prints of `debug`, and checkpoint policies of one's own.

    >>> from funcgrad import export
    >>> f = export.export(fg.jit(lambda x: fnp.sin(x) * 2))(fg.ShapeDtypeStruct((3,), "float32"))
    >>> f
    Exported(<lambda>: (f32[3]) → f32[3])
    >>> f.call(fnp.zeros(3))
    Array([0., 0., 0.], dtype=float32)
    """
    if not isinstance(fun_jit, Jitted):
        raise ArgumentError(
            f"export.export takes a function that jit returned, got {fun_jit!r} of "
            f"{type(fun_jit)}: write export.export(fg.jit(f))"
        )
    wanted = PLATFORMS[:1] if platforms is None else platforms
    given = tuple(wanted) if isinstance(wanted, Iterable) and not isinstance(wanted, str) else ()
    if not given or not all(p in PLATFORMS for p in given):
        raise ArgumentError(
            f"export.export: platforms must be among {PLATFORMS}, got {given or platforms!r}"
        )
    if isinstance(wanted, Set):  # whose order is chance
        given = tuple(p for p in PLATFORMS if p in given)
    if type(rule_order) is not int or rule_order < 0:
        raise ArgumentError(f"export.export: rule_order must be at least 0, got {rule_order!r}")

    def write(traced: Traced) -> Content:
        return content_of(traced, given, rule_order)

    def exported(*args: Any, **kwargs: Any) -> Exported:
        leaves = tree.leaves((args, kwargs))
        if any(isinstance(n, SymbolicSize) for x in leaves for n in getattr(x, "shape", ())):
            return Exported(symbolic_content(fun_jit.trace, args, kwargs, write))
        return Exported(write(fun_jit.trace(*args, **kwargs)))

    return exported


class Exported:
    """A function as a program: what `export.export` makes and `export.load` reads.

    fun_name: what the function was called
    in_avals, out_avals: the types of arguments and results, flat
    in_tree, out_tree: the structures of `(args, kwargs)` and of the result
    in_shardings: how arguments are cut over a mesh; None for those that aren't
    donated: which arguments were to be donated. `call` donates none: `jit` around it can
    platforms: where it was exported for
    samples: the `Sample`s that were saved with it
    """

    def __init__(self, content: Content, samples: Sequence[Sample] = ()):
        self._content = content
        signature = content.signature
        self.fun_name = signature.name
        self.in_tree = tree_from_json(signature.in_tree)
        self.out_tree = tree_from_json(signature.out_tree)
        self.in_avals, self.out_avals = signature.in_avals, signature.out_avals
        self.donated = signature.donated
        self.platforms = signature.platforms
        self.samples = tuple(samples)
        self._sizes: dict[tuple, Exported] = {}
        n = self.in_tree.num_leaves, self.out_tree.num_leaves
        if n != (len(self.in_avals), len(self.out_avals)):
            raise FormatError(f"{self.fun_name}: structures of {n} leaves don't fit its types")

    @functools.cached_property
    def _closed(self) -> ClosedJaxpr:
        return self._content.program()

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The program with the arrays it captured; of symbolic sizes there is one a size
        (`specialize`)."""
        if self._content.is_symbolic:
            symbols = ", ".join(f"{s}=…" for s in sorted(self._content.signature.symbols()))
            raise ArgumentError(
                f"{self.fun_name} was exported with symbolic sizes: specialize({symbols}) has a "
                "program"
            )
        return self._closed

    @property
    def arg_names(self) -> tuple[str, ...]:
        """What the arguments are called in the function, flat: `params['w']`."""
        return self._content.signature.names

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """The arrays that it captured, by their names in its file; equal ones are one.

        >>> from funcgrad import export
        >>> w = fnp.ones(3)
        >>> export.export(fg.jit(lambda x: x * w))(w).weights
        {'w0': array([1., 1., 1.], dtype=float32)}
        """
        return dict(self._content.weights)

    @property
    def constraints(self) -> tuple[str, ...]:
        """What holds for symbolic sizes."""
        return self._content.signature.constraints or ()

    @property
    def is_symbolic(self) -> bool:
        """Whether sizes are symbols."""
        return self._content.is_symbolic

    @property
    def row_size(self) -> str | None:
        """The symbol that counts rows which are computed independently of each other: one compiled
        program does for any number of them, as in the libraries of `aot`. None where there is none,
        or where a program is compiled for each size.

        >>> from funcgrad import export
        >>> x = fg.ShapeDtypeStruct(export.symbolic_shape("b, 3"), "float32")
        >>> export.export(fg.jit(lambda x: nn.softmax(x)))(x).row_size
        'b'
        >>> export.export(fg.jit(lambda x: x - fnp.mean(x, 0)))(x).row_size is None
        True
        """
        return None if isinstance(self._row_size, ExportError) else self._row_size

    @functools.cached_property
    def _row_size(self) -> str | ExportError:
        try:
            return row_symbol(self._content)
        except ExportError as e:
            return e

    def rows(self, count: int) -> Exported:
        """The function for a number of the rows that `row_size` counts, which may be less than its
        constraints ask for. Raises ExportError, which says why, where rows aren't independent.
        """
        if isinstance(self._row_size, ExportError):
            raise self._row_size
        return Exported(at_any(self._content, count))

    def specialize(self, **sizes: int) -> Exported:
        """The function where the symbols have these values.

        >>> from funcgrad import export
        >>> x = fg.ShapeDtypeStruct(export.symbolic_shape("b, 3"), "float32")
        >>> export.export(fg.jit(lambda x: x @ x.T))(x).specialize(b=2)
        Exported(<lambda>: (f32[2,3]) → f32[2,2])
        """
        content = self._content.at(sizes)
        want = content.signature.in_avals
        kept = [s for s in self.samples if all(map(ShapedArray.matches, avals_of(s.args), want))]
        return Exported(content, kept)

    def _of(self, avals: Sequence[ShapedArray]) -> Exported:
        """The function for arguments of these types, one a size."""
        if not self._content.is_symbolic:
            self._check_types(avals)
            return self
        sizes = self._content.signature.sizes_of(avals)
        key = tuple(sorted(sizes.items()))
        found = self._sizes.get(key)
        if found is None:
            while len(self._sizes) >= MOST_SIZES:
                self._sizes.pop(next(iter(self._sizes)))
            found = self._sizes[key] = self.specialize(**sizes)
        return found

    @property
    def in_shardings(self) -> tuple[NamedSharding | None, ...]:
        """How arguments are cut over a mesh."""
        return self._content.in_shardings()

    @property
    def nr_devices(self) -> int:
        """The number of devices of its largest mesh; 1 for a program that knows of none."""
        return self._content.nr_devices()

    # ---- calls

    def call(self, *args: Any, **kwargs: Any) -> Tree:
        """The function of arguments of the types it was exported for.

        It is compiled at the first call, and transformed as other functions are: by `grad`, `jvp`,
        `vmap`, `jit`. Matrices that it captured are copied to the order in which products of few
        rows read them fastest. Raises ArgumentError, which names the argument, for another type.

        >>> from funcgrad import export
        >>> f = export.export(fg.jit(lambda x: x**3))(1.0)
        >>> float(fg.grad(fg.grad(f.call))(2.0))
        12.0
        """
        if self._is_plain and not kwargs and all(type(x) is Array for x in args):
            return self._of_arrays(*args)
        leaves = self._leaves(args, kwargs)
        of = self._of(avals_of(leaves))
        here = all(type(x) is Array for x in leaves) and self.nr_devices == 1
        return self.out_tree.unflatten((of._laid_out if here else of._compiled)(*leaves))

    def _leaves(self, args: tuple, kwargs: dict) -> list:
        """The arguments' leaves, of what has the structure that is needed."""
        leaves, in_tree = tree.flatten((args, kwargs))
        if in_tree != self.in_tree:
            tree.check_same_structure(
                self.in_tree, in_tree,
                what_a=f"what {self.fun_name} was exported for", what_b="this call",
            )  # fmt: skip
        arrays = [as_array(x) for x in leaves]
        for name, x in zip(self.arg_names, arrays, strict=True):
            if not hasattr(x, "aval"):
                raise ArgumentError(
                    f"{self.fun_name}: argument {name} must be an array or a number, got {x!r} of "
                    f"{type(x)}"
                )
        return arrays

    @functools.cached_property
    def _is_plain(self) -> bool:
        """Whether one program does for all calls."""
        return not self.is_symbolic and self.nr_devices == 1

    @functools.cached_property
    def _of_arrays(self) -> Callable[..., Tree]:
        """`call` of arrays of the host, whose types `jit` compares faster than we do: what is
        wrong with others is said as they are traced."""

        def run(*args: Any) -> Tree:
            leaves = self._leaves(args, {})
            self._check_types(avals_of(leaves))
            return self.out_tree.unflatten(self._laid_out(*leaves))

        run.__name__ = self.fun_name
        return jit(run)

    @functools.cached_property
    def _compiled(self) -> Callable[..., list]:
        return self._jitted(self.jaxpr)

    @functools.cached_property
    def _laid_out(self) -> Callable[..., list]:
        """The same for arrays of the host, that aren't traced."""
        closed = laid_out(self.jaxpr)
        return self._compiled if closed is self.jaxpr else self._jitted(closed)

    def _jitted(self, closed: ClosedJaxpr) -> Callable[..., list]:
        def run(*leaves: Any) -> list:
            return eval_jaxpr(closed.jaxpr, *closed.consts, *leaves)

        run.__name__ = self.fun_name
        return jit(run)

    def _check_types(self, got: Sequence[ShapedArray]) -> None:
        names = self._content.signature.names
        for name, g, want in zip(names, got, self.in_avals, strict=True):
            if not g.matches(want):
                raise ArgumentError(
                    f"{self.fun_name} was exported for argument {name} of type {want}, got {g}"
                )

    def has_vjp(self) -> bool:
        """Whether there is a `vjp`: always, as the program can be differentiated."""
        return True

    def vjp(self) -> Exported:
        """The exported function of the arguments and the result's cotangents, all flat, to the
        arguments' cotangents: a tuple, with None for arguments that have no derivative. Results
        that have none take no cotangent.

        >>> from funcgrad import export
        >>> f = export.export(fg.jit(lambda x, y: x * y))(1.0, 1.0)
        >>> [float(ct) for ct in f.vjp().call(2.0, 3.0, 1.0)]
        [3.0, 2.0]
        """
        n = len(self.in_avals)
        varies = [dtypes.is_inexact(a.dtype) for a in self.in_avals]
        out_varies = [dtypes.is_inexact(a.dtype) for a in self.out_avals]

        def pulled_back(*flat: Any) -> tuple:
            def fun(*varying: Any) -> list:
                rest = iter(varying)
                full = [next(rest) if v else x for x, v in zip(flat[:n], varies, strict=True)]
                args, kwargs = self.in_tree.unflatten(full)
                outs = tree.leaves(self.call(*args, **kwargs))
                return [o for o, v in zip(outs, out_varies, strict=True) if v]

            chosen = [x for x, v in zip(flat[:n], varies, strict=True) if v]
            found = iter(vjp(fun, *chosen)[1](list(flat[n:])))
            return tuple(next(found) if v else None for v in varies)

        pulled_back.__name__ = f"vjp_{self.fun_name}"
        cts = [a for a, v in zip(self.out_avals, out_varies, strict=True) if v]
        structs = [ShapeDtypeStruct(a.shape, a.dtype) for a in (*self.in_avals, *cts)]
        return export(jit(pulled_back), platforms=self.platforms)(*structs)

    # ---- files

    def serialize(self, samples: Sequence[tuple] = ()) -> bytes:
        """The function as the bytes of a file, which `export.deserialize` reads.

        samples: tuples of positional arguments; the function is called with each, and arguments and
            results go along, to check it by where it is loaded (`check_samples`)

        The same program gives the same bytes.
        """
        taken = [*self.samples, *map(self._sample, samples)]
        arrays = {
            f"{i}/{part}/{j}": x
            for i, sample in enumerate(taken)
            for part, values in zip(("in", "out"), sample, strict=True)
            for j, x in enumerate(values)
        }
        entries = {
            "program.json": self._content.to_bytes([self._sample_sizes(s) for s in taken]),
            "weights.safetensors": tensors_to_bytes(self._content.weights),
        }
        if taken:
            entries["samples.safetensors"] = tensors_to_bytes(arrays)
        return pack(entries)

    def save(self, path: str | os.PathLike[str], samples: Sequence[tuple] = ()) -> None:
        """Write the function to a file, which `export.load` reads; `samples` as of `serialize`.

        >>> import tempfile
        >>> from funcgrad import export
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export.export(fg.jit(fnp.sin))(1.0).save(f"{folder}/sin.fg", samples=[(0.5,)])
        ...     export.load(f"{folder}/sin.fg").check_samples()
        0.0
        """
        blob = self.serialize(samples)
        unfinished = f"{os.fspath(path)}.unfinished"
        with open(unfinished, "wb") as file:
            file.write(blob)
        os.replace(unfinished, path)

    def _sample(self, args: tuple) -> Sample:
        if not isinstance(args, tuple):
            raise ArgumentError(f"a sample is a tuple of arguments, got {type(args)}")
        out = tree.leaves(self.call(*args))
        return Sample(tuple(map(_plain, tree.leaves((args, {})))), tuple(map(_plain, out)))

    def _sample_sizes(self, sample: Sample) -> dict[str, int]:
        """What the symbols are in a sample."""
        if not self._content.is_symbolic:
            return {}
        return self._content.signature.sizes_of(avals_of(sample.args))

    def check_samples(self) -> float:
        """The largest difference of a result from what it was when it was saved, over all samples,
        relative to the largest magnitude in that result: 0 where all bits are the same. Processors
        and versions of NumPy differ in the last bits of functions."""
        worst = 0.0
        for sample in self.samples:
            args, kwargs = self.in_tree.unflatten(sample.args)
            outs = tree.leaves(self.call(*args, **kwargs))
            for got, want in zip(map(_plain, outs), sample.results, strict=True):
                worst = max(worst, difference(got, want))
        return worst

    # ---- looking inside

    def as_text(self) -> str:
        """The program as it prints."""
        return repr(self.jaxpr)

    def __repr__(self) -> str:
        ins, outs = ", ".join(map(str, self.in_avals)), ", ".join(map(str, self.out_avals))
        return f"Exported({self.fun_name}: ({ins}) → {outs})"

    def _repr_html_(self) -> str:
        facts = {"weights": f"{sum(w.nbytes for w in self._content.weights.values()):,} bytes"}
        if self._content.is_symbolic:
            return program_html(repr(self), facts, [])
        closed = self.jaxpr
        return program_html(repr(self), facts, [("jaxpr", closed.jaxpr, len(closed.consts))])


def _plain(x: Any) -> np.ndarray:
    return np.asarray(as_array(x))


def deserialize(blob: bytes | bytearray | memoryview) -> Exported:
    """The function that `Exported.serialize` wrote.

    Raises FormatError for bytes that are damaged, no such file, or of a newer format.

    >>> from funcgrad import export
    >>> blob = export.export(fg.jit(fnp.cos))(0.0).serialize()
    >>> export.deserialize(blob).call(0.0)
    Array(1., dtype=float32, weak_type=True)
    """
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise ArgumentError(f"export.deserialize takes bytes, got {type(blob)}")
    entries = unpack(bytes(blob))
    try:
        return _exported(entries)
    except FormatError:
        raise
    except Exception as e:  # what was read may be anything, and so may what fails on it
        raise FormatError(f"the program can't be read: {type(e).__name__}: {e}") from None


def _exported(entries: Mapping[str, bytes]) -> Exported:
    found = json.loads(entries["program.json"], parse_constant=_no_number)
    signature = Signature.parse(found["signature"])
    types = Content.weight_types(found)
    weights = tensors_from_bytes(entries["weights.safetensors"], types)
    content = Content(signature, found["tables"], weights)
    content.check()
    return Exported(content, samples_in(entries, content, found["samples"]))


def _no_number(text: str) -> float:
    raise FormatError(f"{text} is no number of JSON")


def load(path: str | os.PathLike[str]) -> Exported:
    """The function that `Exported.save` wrote.

    Nothing in a file is run to load it. Raises FormatError, which names the file, for one that is
    damaged, something else, or of a newer format.

    >>> import tempfile
    >>> from funcgrad import export
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export.export(fg.jit(lambda x: x + 1))(1.0).save(f"{folder}/f.fg")
    ...     export.load(f"{folder}/f.fg")
    Exported(<lambda>: (f32[]) → f32[])
    """
    with open(path, "rb") as file:
        blob = file.read()
    try:
        return deserialize(blob)
    except FormatError as e:
        raise FormatError(f"{os.fspath(path)}: {e}") from None
