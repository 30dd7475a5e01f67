"""Models that generate: one function a step, for several sequences in slots of one cache.

`step(cache, tokens, positions)` takes each slot's last token (int32, (slots,)) and its place in its
sequence, writes what later steps need into the cache, and gives logits (slots, vocabulary) and the
new cache. A slot's row depends on nothing of the others, so that sequences come and go between
steps (Yu et al. 2022, Orca), with the results they have alone.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from funcgrad import dtypes, lax, random, tree
from funcgrad import numpy as fnp
from funcgrad.core.array import Array
from funcgrad.core.ir import eval_jaxpr
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.core.types import Tree
from funcgrad.errors import ArgumentError, FormatError
from funcgrad.export.exported import export, load
from funcgrad.export.symbolic import symbolic_shape
from funcgrad.serve.limits import check_count, check_name
from funcgrad.serve.protocol import RequestError
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.jit.jit import jit
from funcgrad.transforms.jit.make_jaxpr import eval_shape, make_jaxpr

MANIFEST, STEP, PREFILL = "generation.json", "step.fg", "prefill.fg"
LEAST_SHARED = 1 << 12  # bytes of an array from which on step and prefill share it in their files
LEAST = 16  # tokens of a prompt, up to powers of two, for which there is a program


class Options(NamedTuple):
    """What a request asks for: at most so many tokens; how they are drawn, where temperature 0
    takes the likeliest and top_k 0 all; and the seed, which with the prompt decides the result."""

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0


class Generator:
    """A function that generates tokens, in slots.

    step: see above. It must look at no place of the cache behind a position: there lies what was
    there before; and what it carries otherwise it must begin anew at position 0
    prefill: prefill(cache, slot, tokens, length) takes a whole prompt, int32 (n,) of which `length`
    count, and gives the logits (vocabulary,) of its last token, and the cache with what steps from
    there on need; without it a prompt goes through the step, a token at a time
    cache: a tree of arrays or types, all zero in the beginning; slots: sequences at a time;
    context: tokens of a sequence at most, prompt and result; vocabulary: each token's text, for
    requests in words; end: the token that ends a sequence

    Raises ArgumentError where step doesn't take or give what it must.

    >>> from funcgrad.serve import Generator
    >>> def next_letter(cache, tokens, positions):
    ...     return nn.one_hot((tokens + 1) % 3, 3), cache
    >>> abc = Generator("abc", next_letter, {}, slots=2, context=8, vocabulary="abc")
    >>> abc.tokens_of("ab"), abc.text_of([2, 0])
    ([0, 1], 'ca')
    """

    def __init__(
        self, name: str, step: Callable, cache: Tree, *, slots: int, context: int,
        vocabulary: Sequence[str] | None = None, end: int | None = None, version: str = "1",
        prefill: Callable | None = None,
    ):  # fmt: skip
        self.name, self.version, self.slots, self.context, self.end = (
            name, version, slots, context, end
        )  # fmt: skip
        words = () if vocabulary is None else vocabulary
        if not isinstance(words, Sequence) or not all(isinstance(w, str) for w in words):
            raise ArgumentError(f"Generator: {name}: vocabulary must be texts, got {vocabulary!r}")
        if end is not None and (type(end) is not int or end < 0):
            raise ArgumentError(f"Generator: {name}: end must be a token's number, got {end!r}")
        self.vocabulary = None if vocabulary is None else list(vocabulary)
        if not all(hasattr(x, "shape") and hasattr(x, "dtype") for x in tree.leaves(cache)):
            raise ArgumentError(f"Generator: {name}: cache is a tree of arrays, got {cache!r}")
        self.cache = tree.map(lambda x: ShapeDtypeStruct(x.shape, x.dtype), cache)
        check_name("Generator", name, version)
        check_count(f"Generator: {name}", "slots", slots)
        check_count(f"Generator: {name}", "context", context)
        self.size = _check_step(name, step, self.cache, slots)
        for what, n in (("vocabulary", len(self.vocabulary or ()) or self.size),
                        ("end", (end or 0) + 1)):  # fmt: skip
            if n > self.size or (what == "vocabulary" and n != self.size):
                raise ArgumentError(f"Generator: {name}: {what} doesn't fit {self.size} logits")
        longest = sorted(filter(None, self.vocabulary or ()), key=len, reverse=True)
        self._words = re.compile("|".join(map(re.escape, longest)), re.DOTALL)
        self._codes = {w: i for i, w in enumerate(self.vocabulary or ())}

        def advance(cache: Tree, tokens: Array, positions: Array, *how: Array) -> tuple:
            logits, cache = step(cache, tokens, positions)
            return sample(logits, positions, *how), cache

        def begin(cache: Tree, slot: Array, tokens: Array, length: Array, *how: Array) -> tuple:
            assert prefill is not None
            logits, cache = prefill(cache, slot, tokens, length)
            last = fnp.reshape(fnp.subtract(length, 1), (1,))
            return sample(logits[None], last, *how)[0], cache

        self._advance = jit(advance, donate_argnums=0)
        self._begin = None if prefill is None else jit(begin, donate_argnums=0)
        if prefill is not None:
            _check_prefill(name, prefill, self.cache, min(LEAST, context), self.size)

    @property
    def takes_prompts(self) -> bool:
        """Whether a prompt takes one call."""
        return self._begin is not None

    def described(self, versions: Sequence[str]) -> dict[str, Any]:
        """As the protocol says it."""
        return {
            "name": self.name, "versions": list(versions), "platform": "funcgrad_generation",
            "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1]}],
            "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [1]}],
            "parameters": {"slots": self.slots, "context": self.context},
        }  # fmt: skip

    def tokens_of(self, text: str) -> list[int]:
        """A text's tokens: at each place the longest that fits."""
        if self.vocabulary is None:
            raise RequestError(f"{self.name} has no vocabulary: give tokens, not text_input")
        found, at = [], 0
        while at < len(text):
            match = self._words.match(text, at)
            if match is None or match.end() == at:
                raise RequestError(f"{self.name} has no token for {text[at]!r}, at {at}")
            found.append(self._codes[match.group()])
            at = match.end()
        return found

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of tokens, which is empty without a vocabulary."""
        return "" if self.vocabulary is None else "".join(self.vocabulary[t] for t in tokens)

    def empty(self) -> Tree:
        """A cache of nothing."""
        return tree.map(lambda s: fnp.zeros(s.shape, s.dtype), self.cache)

    def advance(self, cache: Tree, *state: np.ndarray) -> tuple[np.ndarray, Tree]:
        """Each slot's next token, and the new cache; the old one's memory is given away.

        state: by slot, tokens, positions, seeds, temperatures, top_ks
        """
        tokens, cache = self._advance(cache, *state)
        return np.asarray(tokens), cache

    def begin(self, cache: Tree, slot: int, prompt: Sequence[int], options: Options) -> tuple:
        """The token behind a prompt, and the cache, as `advance` gives them."""
        assert self._begin is not None
        n = len(prompt)
        tokens = np.zeros(min(max(LEAST, 1 << (n - 1).bit_length()), self.context), "i4")
        tokens[:n] = prompt
        given = (options.seed, options.temperature, options.top_k)
        how = [np.array([v], d) for v, d in zip(given, ("u4", "f4", "i4"), strict=True)]
        token, cache = self._begin(cache, np.int32(slot), tokens, np.int32(n), *how)
        return int(token), cache

    def warm_up(self, sizes: Sequence[int] = ()) -> None:
        """Compile the step, which has one size, and for prompts as many as have sizes."""
        n, names = self.slots, ("i4", "i4", "u4", "f4", "i4")
        _, cache = self.advance(self.empty(), *(np.zeros(n, name) for name in names))
        size = LEAST
        while self.takes_prompts and size < 2 * self.context:
            _, cache = self.begin(cache, 0, [0] * min(size, self.context), Options())
            size *= 2


def _check_step(name: str, step: Callable, cache: Tree, slots: int) -> int:
    """The number of logits."""
    row = ShapeDtypeStruct((slots,), "int32")
    outs: Any = eval_shape(step, cache, row, row)
    if not isinstance(outs, tuple) or len(outs) != 2:
        raise ArgumentError(f"Generator: {name}: step must give (logits, cache), gave {outs}")
    logits, new = outs
    shape: tuple[int, ...] = getattr(logits, "shape", ())
    if len(shape) != 2 or shape[0] != slots or not dtypes.is_inexact(logits.dtype):
        raise ArgumentError(
            f"Generator: {name}: step must give floating logits of shape ({slots}, vocabulary), "
            f"gave {logits}"
        )
    if not _alike(new, cache):
        raise ArgumentError(f"Generator: {name}: step must give a cache like its own, gave {new}")
    return shape[1]


def _check_prefill(name: str, prefill: Callable, cache: Tree, n: int, size: int) -> None:
    one = ShapeDtypeStruct((), "int32")
    outs: Any = eval_shape(prefill, cache, one, ShapeDtypeStruct((n,), "int32"), one)
    if not isinstance(outs, tuple) or len(outs) != 2:
        raise ArgumentError(f"Generator: {name}: prefill must give (logits, cache), gave {outs}")
    logits, new = outs
    if getattr(logits, "shape", None) != (size,) or not dtypes.is_inexact(logits.dtype):
        raise ArgumentError(
            f"Generator: {name}: prefill must give floating logits of shape ({size},), "
            f"gave {logits}"
        )
    if not _alike(new, cache):
        raise ArgumentError(
            f"Generator: {name}: prefill must give a cache like its own, gave {new}"
        )


def _alike(new: Tree, cache: Tree) -> bool:
    """Whether trees have arrays of the same types at the same places."""
    return tree.structure(new) == tree.structure(cache) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype)
        for a, b in zip(tree.leaves(new), tree.leaves(cache), strict=True)
    )


def sample(logits: Any, positions: Any, seeds: Any, temperatures: Any, top_ks: Any) -> Any:
    """A token for each row of logits, drawn with the key of its seed and its position.

    Temperature 0 takes the likeliest; top_k > 0 draws among so many of the likeliest.

    >>> from funcgrad.serve.generation import sample
    >>> zeros = np.zeros(2, "int32")
    >>> sample(fnp.array([[0.0, 1], [2, 1]]), zeros, zeros, np.zeros(2), zeros)
    Array([1, 0], dtype=int32)
    """

    def row(logits: Any, position: Any, seed: Any, temperature: Any, k: Any) -> Any:
        logits = logits.astype(fnp.float32)
        key = random.fold_in(random.key(seed), position)
        size = logits.shape[0]
        least = fnp.sort(logits)[fnp.where(k > 0, fnp.maximum(size - k, 0), 0)]
        chosen = fnp.where(logits >= least, logits, -fnp.inf)
        drawn = random.categorical(key, chosen / fnp.where(temperature > 0, temperature, 1.0))
        return lax.select(
            temperature > 0, drawn.astype("int32"), fnp.argmax(logits).astype("int32")
        )

    return vmap(row)(logits, positions, seeds, temperatures, top_ks)


# ---- files


def save_generator(
    folder: str | os.PathLike,
    step: Callable,
    cache: Tree,
    *,
    slots: int,
    context: int,
    vocabulary: Sequence[str] | None = None,
    end: int | None = None,
    prefill: Callable | None = None,
) -> None:
    """Write a folder that `python -m funcgrad.serve` serves; arguments are those of `Generator`.

    >>> import tempfile
    >>> from funcgrad.serve import load_model, save_generator
    >>> def same(cache, tokens, positions):
    ...     return nn.one_hot(tokens, 5), cache
    >>> folder = tempfile.mkdtemp()
    >>> save_generator(folder, same, {}, slots=4, context=8)
    >>> load_model(folder, "same").slots
    4
    """
    folder = Path(folder)
    made = Generator(
        folder.name, step, cache, slots=slots, context=context, vocabulary=vocabulary, end=end,
        prefill=prefill,
    )  # fmt: skip
    row = ShapeDtypeStruct((slots,), "int32")
    folder.mkdir(parents=True, exist_ok=True)
    exported = export(jit(step))(made.cache, row, row)
    exported.save(folder / STEP)
    told = {"slots": slots, "context": context, "vocabulary": made.vocabulary, "end": end,
            "prefill": prefill is not None}  # fmt: skip
    if prefill is not None:
        one = ShapeDtypeStruct((), "int32")
        tokens = ShapeDtypeStruct(symbolic_shape("n", constraints=[f"n <= {context}"]), "int32")
        large = {k: w for k, w in exported.weights.items() if w.nbytes >= LEAST_SHARED}
        told["shared"] = list(large)
        shared = list(large.values())
        given = [ShapeDtypeStruct(w.shape, w.dtype) for w in shared]
        reads = jit(_reading(prefill, shared))
        export(reads)(given, made.cache, one, tokens, one).save(folder / PREFILL)
    (folder / MANIFEST).write_text(json.dumps(told))


def _reading(prefill: Callable, shared: Sequence[np.ndarray]) -> Callable:
    """The function that takes arrays like these, which it captured, as its first argument."""
    places = {(w.dtype.name, w.shape, w.tobytes()): i for i, w in enumerate(shared)}

    def reads(given: Sequence[Array], *args: Any) -> Any:
        closed, out = make_jaxpr(prefill, return_shape=True)(*args)
        consts = []
        for c in closed.consts:
            x = np.asarray(c)
            place = places.get((x.dtype.name, x.shape, x.tobytes()))
            consts.append(c if place is None else given[place])
        return tree.unflatten(
            tree.structure(out), eval_jaxpr(closed.jaxpr, *consts, *tree.leaves(args))
        )

    return reads


def load_generator(folder: Path, name: str, version: str) -> Generator:
    """What `save_generator` wrote. Raises FormatError where that can't be served."""
    exported = load(folder / STEP)
    try:
        told = json.loads((folder / MANIFEST).read_bytes())
        words, end = told["vocabulary"], told["end"]
        fits = words is None or (isinstance(words, list) and all(type(w) is str for w in words))
        if not fits or not (end is None or (type(end) is int and end >= 0)):
            raise ValueError("of a vocabulary or end that is none")
        args, _ = exported.in_tree.unflatten(exported.in_avals)
        prefill = None
        if told.get("prefill"):
            prefill = load(folder / PREFILL).call
            if "shared" in told:  # weights that are the step's
                arrays = exported.weights
                prefill = partial(prefill, [fnp.asarray(arrays[k]) for k in told["shared"]])
        return Generator(
            name, exported.call, args[0], slots=told["slots"], context=told["context"],
            vocabulary=words, end=end, version=version, prefill=prefill,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, ArgumentError) as e:
        raise FormatError(f"{folder} holds no generator: {e}") from None
