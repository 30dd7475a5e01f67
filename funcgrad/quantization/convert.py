"""`quantize`: a function whose parameters have fewer bits, these parameters, and a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, tree
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.quantization import formats
from funcgrad.quantization.arrays import IntArray, QuantizedArray
from funcgrad.quantization.calibration import Examples, batches, observe
from funcgrad.quantization.configs import Config, Int8Static, configs_of, finite
from funcgrad.quantization.fake import Fake
from funcgrad.quantization.observers import Observer
from funcgrad.quantization.report import Report, Row, sqnr
from funcgrad.transforms.weights.applied import with_weights
from funcgrad.transforms.weights.leaves import matching, named_leaves, with_leaves
from funcgrad.transforms.weights.products import BATCH
from funcgrad.transforms.weights.uses import CONVOLUTION, LOOKUP, PRODUCT, Strict, Use, lost, uses
from funcgrad.transforms.weights.weight import Weight


@dataclass(frozen=True)
class Choice:
    """What is to become of a leaf: by which configuration, the axes that products sum over, how
    many axes are a stack's; `named`: whether a rule has its name; `multiplied`: whether there are
    products or convolutions to observe; `by_rows`: whether there are products and nothing else but
    lookups, so that an algorithm may choose codes; reason: why it is left alone."""

    config: Config
    axes: tuple[int, ...] = (-2,)
    stack: int = 0
    named: bool = False
    multiplied: bool = True
    by_rows: bool = True
    reason: str = ""

    @property
    def static(self) -> bool:
        """Whether its products need a range."""
        return isinstance(self.config, Int8Static) and self.multiplied

    @property
    def algorithm(self) -> Callable | None:
        """What chooses its codes, if not the configuration alone."""
        return self.config.algorithm if self.by_rows else None


def quantize(
    f: Callable, params: Any, config: Any, calibration: Any = None
) -> tuple[Callable, Any, Report]:
    """f(params, *inputs) with parameters of fewer bits: (qf, qparams, report).

    qf(qparams, *inputs) is called as f is; qparams is params with `QuantizedArray`s in place of
    arrays; the report prints. config: `Int8Dynamic`, `Int8Static`, `WeightOnly`, `NF4`, `Float8`,
    `MXFP4` of `fg.quantization`, or a dictionary from rules to such, of which the first that fits
    holds. Rules are regular expressions, searched for in leaves' names; or, with calibration, an
    op's name ("conv_general_dilated"), for all leaves that go there.

    calibration: inputs of some calls, [(x, …), …]. `Int8Static` and algorithms need them. With them
    f's program says over which axes of a leaf products sum (shapes do); without, a matrix's rows
    are its inputs, and axes in front of the last two are a stack of matrices. Without rules, and of
    leaves that go to an op, all that may be quantized is, and the report says why the rest isn't.

    Raises ArgumentError for rules that match nothing, leaves that are quantized already, where no
    leaf can be quantized, and, of those that a rule named itself, leaves that can't be followed or
    weren't seen in calibration; DTypeError and ShapeError for such leaves that are no floats, or
    that groups don't divide.

    >>> f = lambda params, x: x @ params["w"] + params["b"]
    >>> params = {"w": random.normal(random.key(0), (64, 32)), "b": fnp.zeros(32)}
    >>> qf, qparams, report = fg.quantize(f, params, fg.quantization.WeightOnly(bits=4, group=32))
    >>> print(report)
    parameter  shape  bytes  after     SQNR
    b          32       128    128           left alone: it has fewer than two axes
    w          64×32  8,192  1,344  2... dB  IntArray, 5.25 bits
    all               8,320  1,472           5.65 times smaller
    >>> qf(qparams, fnp.ones((1, 64))).shape
    (1, 32)
    """
    calls = None if calibration is None else batches("quantize", calibration)
    choices = choices_of("quantize", f, params, config, calls[0] if calls else None)
    leaves = named_leaves(params)
    examples = _examples(f, params, choices, calls)
    done, rows = {}, []
    for name, w in leaves.items():
        choice = choices.get(name)
        if choice is not None and not choice.reason:
            try:
                done[name] = _quantized(name, w, choice, examples.get(name))
            except (ShapeError, ArgumentError) as error:
                if choice.named:
                    raise type(error)(f"quantize: the parameter {name}: {error}") from None
                choice = choices[name] = replace(choice, reason=str(error))
        rows.append(_row(name, w, done.get(name), choice))
    _need_some("quantize", choices)
    named = [n for n, c in choices.items() if c.named]
    qf = with_weights(f, Strict("quantize", named), what="quantize")
    return qf, with_leaves(params, done), Report(tuple(rows))


def ranges_of(
    what: str, f: Callable, params: Any, config: Any, calibration: Any
) -> tuple[dict[str, Choice], dict[str, tuple]]:
    """What is to become of each leaf; and for static ranges their ends."""
    calls = batches(what, calibration)
    choices = choices_of(what, f, params, config, calls[0])
    leaves = named_leaves(params)
    examples = _examples(f, params, choices, calls)
    found = {
        n: range_of(n, leaves[n].shape, c.stack, c.config.observer, examples.get(n))  # type: ignore[attr-defined]
        for n, c in choices.items()
        if not c.reason and c.static and not isinstance(leaves[n], Fake)
    }
    return choices, found


def choices_of(
    what: str, f: Callable, params: Any, config: Any, inputs: tuple | None
) -> dict[str, Choice]:
    """What is to become of each leaf that some configuration is for."""
    leaves = named_leaves(params)
    found = None if inputs is None else uses(f, params, *inputs)
    ops = {name: {u.op for u in each} for name, each in (found or {}).items()}
    choices: dict[str, Choice] = {}
    for one in configs_of(what, config):
        every = dict.fromkeys(leaves, False)
        names = every if one.rules is None else matching(what, leaves, one.rules, ops)
        for name, named in names.items():
            if name not in choices:
                known = None if found is None else found[name]
                choices[name] = _choice(what, name, leaves[name], one, known, named)
    _need_some(what, choices)
    return choices


def _need_some(what: str, choices: dict[str, Choice]) -> None:
    """Raise where all leaves are left alone."""
    if all(c.reason for c in choices.values()):
        reasons = "; ".join(f"{n}: {c.reason}" for n, c in list(choices.items())[:5])
        raise ArgumentError(f"{what}: none of the parameters can be quantized ({reasons})")


def _choice(
    what: str, name: str, w: Any, config: Config, found: Sequence[Use] | None, named: bool
) -> Choice:
    if isinstance(w, Weight) and not isinstance(w, Fake):
        raise ArgumentError(
            f"{what}: the parameter {name} is quantized already, as {type(w).__name__}; "
            "quantize the parameters that it came from"
        )
    shape, dtype = tuple(getattr(w, "shape", ())), getattr(w, "dtype", np.dtype(float))
    reason = ""
    if not dtypes.is_float(dtype):
        if named:
            raise DTypeError(
                f"{what}: the parameter {name} must be an array of floats, got {dtype}"
            )
        reason = f"it is of {dtype}"
    elif len(shape) < 2:
        reason = "it has fewer than two axes"
        if named:
            raise ShapeError(f"{what}: the parameter {name} has shape {shape}: {reason}")
    elif found is not None:
        other = next((u for u in found if not u.followed), None)
        if other is not None and named:
            lost(what, name, other.kind, other.where)
        if other is not None:
            reason = f"it goes to {other.kind}{other.where}"
        elif not found:
            reason = "the function doesn't use it"
            if named:
                raise ArgumentError(f"{what}: calibration never saw the parameter {name}: {reason}")
    if reason:
        return Choice(config, named=named, reason=reason)
    axes, stack = _axes(shape, found)
    kinds = {PRODUCT} if found is None else {u.kind for u in found}
    multiplied = bool(kinds & {PRODUCT, CONVOLUTION})
    return Choice(
        config, axes, stack, named, multiplied, PRODUCT in kinds and CONVOLUTION not in kinds
    )


def _axes(shape: tuple[int, ...], found: Sequence[Use] | None) -> tuple[tuple[int, ...], int]:
    """The axes that products sum over, and how many axes are a stack's."""
    # A lookup goes along with whatever a product sums over.
    ranked = sorted(found or (), key=lambda u: u.kind == LOOKUP)
    for use in ranked:
        if use.contracted:
            n = len(shape) - len(use.roles)
            batch = 0
            while batch < len(use.roles) and use.roles[batch] in ("", BATCH):
                batch += 1
            return use.contracted, n + (batch if use.kind == PRODUCT else 0)
    return (-2,), len(shape) - 2


def _examples(
    f: Callable, params: Any, choices: Mapping[str, Choice], calls: list | None
) -> dict[str, Examples]:
    """What was multiplied with leaves that need to know."""
    leaves = named_leaves(params)
    needed = {
        n: c.stack
        for n, c in choices.items()
        if not c.reason
        and not isinstance(leaves[n], Weight)
        and (c.static or c.algorithm is not None)
    }
    if not needed:
        return {}
    if calls is None:
        kinds = sorted({_needs(choices[n].config) for n in needed})
        raise ArgumentError(
            f"quantize: {', '.join(kinds)} needs calibration: inputs of some calls, [(x, …), …]"
        )
    if any(not hasattr(x, "__array__") for call in calls for x in tree.leaves(call)):
        raise ArgumentError("quantize: calibration must have arrays here, not only shapes")
    return observe(f, params, needed, calls)


def _needs(config: Config) -> str:
    made = config.algorithm
    return type(config).__name__ if made is None else getattr(made, "__name__", type(made).__name__)


def _quantized(name: str, w: Any, choice: Choice, seen: Examples | None) -> QuantizedArray:
    if isinstance(w, Fake):
        return w.encode()
    if not finite(fnp.asarray(w)):
        raise ArgumentError(f"the parameter {name} has infinities or NaNs")
    config, static, algorithm = choice.config, choice.static, choice.algorithm
    if algorithm is None:
        found = config.encode(fnp.asarray(w), choice.axes)
    else:
        found = _stacked(name, fnp.asarray(w), choice, seen, algorithm)
    if static and isinstance(found, IntArray) and found.x_scale is None:
        assert isinstance(config, Int8Static)
        low, high = range_of(name, found.shape, choice.stack, config.observer, seen, found.divide)
        found = found.in_range(low, high, choice.axes)
    return found


def range_of(
    name: str,
    shape: tuple[int, ...],
    n_stack: int,
    observer: Observer,
    seen: Examples | None,
    divide: Any = None,
) -> tuple[Any, Any]:
    """Both ends of the range of what a leaf of this shape is multiplied with, divided before: an
    array each, with an element for each matrix of its stack."""
    stack = shape[:n_stack]
    places = _places(name, stack, seen)
    ends = []
    for i, rows in places.items():
        if divide is not None:
            own = np.asarray(divide, np.float32).reshape(len(places), -1)
            rows = [x / own[i if divide.size > rows[0].shape[1] else 0] for x in rows]
        ends.append(observer.range(rows))
    sizes = (*stack, *(1,) * (len(shape) - n_stack))
    low, high = (fnp.asarray(x.reshape(sizes)) for x in np.asarray(ends, np.float32).T)
    return low, high


def _places(name: str, stack: tuple[int, ...], seen: Examples | None) -> dict[int, list]:
    """What each matrix of a stack was multiplied with, in the order of the stack."""
    if seen is None:
        raise ArgumentError(
            f"calibration never saw a product with the parameter {name} that could be observed"
        )
    places = range(int(np.prod(stack)))
    for i in places:
        if i not in seen.found:
            raise ArgumentError(f"calibration never saw a product with matrix {i} of the stack")
    return {i: seen.found[i] for i in places}


def _stacked(name: str, w: Any, choice: Choice, seen: Examples | None, algorithm: Callable) -> Any:
    """What an algorithm makes of each matrix of a stack."""
    n, stack = choice.stack, w.shape[: choice.stack]
    _places(name, stack, seen)
    assert seen is not None
    flat = w.reshape(-1, *w.shape[n:])
    each = [algorithm(flat[i], seen.rows(i), choice.axes, choice.config) for i in range(len(flat))]
    return tree.map(lambda *xs: fnp.stack(xs).reshape(*stack, *xs[0].shape), *each)


def _row(name: str, w: Any, found: Any, choice: Choice | None) -> Row:
    before = sum(formats.nbytes(fnp.asarray(x)) for x in tree.leaves(w))
    shape = tuple(getattr(w, "shape", ()))
    if found is None:
        reason = choice.reason if choice is not None else "no rule is for it"
        return Row(name, shape, before, before, None, f"left alone: {reason}")
    dense = w.dense() if isinstance(w, Weight) else w
    what = f"{type(found).__name__}, {found.bits:.2f} bits"
    return Row(name, shape, before, found.nbytes, sqnr(dense, found.dense()), what)
