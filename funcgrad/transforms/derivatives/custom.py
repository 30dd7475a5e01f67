"""Functions with derivative rules of their own: `custom_jvp`, `custom_vjp`, `closure_convert`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from funcgrad import tree
from funcgrad.core import context, source
from funcgrad.core.aval import Linear, ShapedArray, Zero, promote
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.ir import eval_jaxpr
from funcgrad.core.methods import fact
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Cotangents, Operands, Tangents, Tree, Value, Values
from funcgrad.errors import CustomRuleError
from funcgrad.ops.base import instantiate
from funcgrad.ops.families import add
from funcgrad.transforms.arguments import (
    FlatFunction,
    as_array,
    avals_of,
    check_leaves,
    flatten_outputs,
    is_arraylike,
    name_of,
    rule_setter,
    wraps,
)
from funcgrad.transforms.control.bodies import as_type
from funcgrad.transforms.control.custom_call import JVPCall, VJPCall
from funcgrad.transforms.derivatives.captured import captured_by, with_captured
from funcgrad.transforms.refs import hidden, shown
from funcgrad.tree import PyTreeDef


class SymbolicZero:
    """A tangent or cotangent known to be zero, as rules with symbolic_zeros=True see it."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    shape = fact("shape", lambda self: self.aval.shape)
    dtype = fact("dtype", lambda self: self.aval.dtype)

    def __repr__(self) -> str:
        return f"SymbolicZero({self.aval})"


class CustomVJPPrimal:
    """An argument of a forward rule with symbolic_zeros=True: its value, and whether it varies."""

    __slots__ = ("perturbed", "value")

    def __init__(self, value: Value, perturbed: bool):
        self.value = value
        self.perturbed = perturbed


class _Custom:
    """What both kinds of custom functions share: arguments that no rule differentiates.

    closed: all traced values that its functions depend on are arguments.
    """

    closed = False

    def __init__(
        self, fun: Callable, nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ):  # fmt: skip
        if not callable(fun):
            raise TypeError(f"{type(self).__name__}: need a function, got {fun!r}")
        self._fun = fun
        nums = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
        names = (nondiff_argnames,) if isinstance(nondiff_argnames, str) else nondiff_argnames
        places = {_place(type(self).__name__, fun, name) for name in names}
        self._nondiff = tuple(sorted({*nums, *places}))
        wraps(fun, type(self).__name__)(self)
        self.__name__ = name_of(fun)
        self.__qualname__: str = getattr(fun, "__qualname__", self.__name__)
        self._arity = _arity(fun)

    def __reduce__(self) -> str:
        return self.__qualname__  # as functions are pickled: by name

    def __call__(self, *args: Any, **kwargs: Any) -> Tree:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Callable:
        return rule_setter(self, name)

    def _resolve(self, args: tuple, kwargs: dict) -> tuple:
        """Positional arguments, with keywords and defaults in their places."""
        if not kwargs and len(args) == self._arity:
            return args
        try:
            bound = inspect.signature(self._fun).bind(*args, **kwargs)
        except ValueError:
            return args
        if bound.kwargs:
            raise TypeError(
                f"{type(self).__name__} function {name_of(self._fun)} takes no keyword-only "
                f"arguments, got {sorted(bound.kwargs)}"
            )
        bound.apply_defaults()
        return bound.args

    def _apply(self, call: JVPCall | VJPCall, leaves: list, *functions: Any) -> list:
        """Results of a call by the current trace; traced values that its functions close over are
        arguments, too."""
        trace = context.current().trace
        nothing = self.closed or trace.parent is None
        captured = [] if nothing else captured_by(self._fun, *functions)
        if captured:
            call = with_captured(call, captured)
        return trace.process_custom(call, (*leaves, *captured))

    def _split(self, args: tuple) -> tuple[list, tuple]:
        fixed = [args[i] for i in self._nondiff]
        return fixed, tuple(a for i, a in enumerate(args) if i not in self._nondiff)

    def _join(self, fixed: list, dynamic: tuple) -> list:
        rest, held = iter(dynamic), iter(fixed)
        n = len(fixed) + len(dynamic)
        return [next(held) if i in self._nondiff else next(rest) for i in range(n)]

    def __get__(self, instance: object, owner: type | None = None) -> Callable:
        return self if instance is None else tree.Partial(self, instance)


def _arity(fun: Callable) -> int | None:
    """How many arguments a function takes that are all by position, None where that isn't plain."""
    try:
        kinds = [p.kind for p in inspect.signature(fun).parameters.values()]
    except (TypeError, ValueError):
        return None
    plain = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return len(kinds) if all(k in plain for k in kinds) else None


def _place(kind: str, fun: Callable, name: str) -> int:
    """The position of a named argument."""
    names = list(inspect.signature(fun).parameters)
    if name not in names:
        raise ValueError(
            f"{kind} of {name_of(fun)}: nondiff_argnames={name!r} is no parameter of it; it has "
            f"{', '.join(names) or 'none'}"
        )
    return names.index(name)


def _with_types(values: Tangents) -> list:
    """Primals and tangents as rules see them: Python's numbers, which have no dtype, as arrays."""
    return [v if hasattr(v, "dtype") or type(v) is Zero else as_array(v) for v in values]


def _same_types(what: str, got: Values, want: Sequence[ShapedArray]) -> None:
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        a = aval_of(g)
        if a.shape != w.shape or a.dtype != w.dtype:
            raise CustomRuleError(f"{what} {i} must be {w}, got {a}")


def _same_result(what: str, out_tree: PyTreeDef, flat: FlatFunction) -> None:
    """Raise where a rule's result has another structure than the function's, if that has run."""
    if getattr(flat, "out_tree", None) not in (None, out_tree):
        raise CustomRuleError(
            f"{what} must give a result with the structure that the function's has, "
            f"{flat.out_tree}, got {out_tree}"
        )
    flat.out_tree = out_tree


class custom_jvp(_Custom):
    """A function whose derivative the user gives, forward mode's and through it reverse mode's.

    nondiff_argnums, nondiff_argnames: arguments, by position or by name, that are not
    differentiated (functions, static values); they come first in the rule.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> @fg.custom_jvp
    ... def f(x):
    ...     return fnp.sin(x)
    >>> @f.defjvp
    ... def f_jvp(primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return f(x), 10.0 * t
    >>> float(fg.grad(f)(1.0))
    10.0
    """

    _rule: Callable | None = None
    _transpose: Callable | None = None
    _symbolic_zeros = False

    def defjvp(self, rule: Callable, symbolic_zeros: bool = False) -> Callable:
        """Set the rule(primals, tangents) → (result, tangent of the result).

        symbolic_zeros: zero tangents come as `SymbolicZero`, not as arrays of zeros
        """
        self._rule = rule
        self._symbolic_zeros = symbolic_zeros
        return rule

    def defjvps(self, *rules: Callable | None) -> None:
        """Set a rule(tangent, result, *primals) → tangent for each argument (None: zero).

        >>> cube = fg.custom_jvp(lambda x: x**3)
        >>> cube.defjvps(lambda t, out, x: 3 * x**2 * t)
        >>> float(fg.grad(cube)(2.0))
        12.0
        """

        def rule(*given: Any) -> tuple:
            *fixed, primals, tangents = given
            out = self(*self._join(list(fixed), primals))
            terms = [
                r(t, out, *primals) for r, t in zip(rules, tangents, strict=True) if r is not None
            ]
            if not terms:
                return out, tree.map(lambda o: instantiate(Zero(aval_of(o))), out)
            total = terms[0]
            for term in terms[1:]:
                total = tree.map(add, total, term)
            return out, total

        self.defjvp(rule)

    def deftranspose(self, rule: Callable) -> Callable:
        """Set the rule(primals, cotangent) → a tuple with a cotangent (or None) for each argument.

        For a function that is linear in some arguments, where its jvp rule applies it to tangents:
        there the primals are `Linear`, known by their type alone.
        """
        self._transpose = rule
        return rule

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Tree:
        if self._rule is None:
            raise CustomRuleError(
                f"custom_jvp function {name_of(self._fun)} has no rule yet: give one with "
                f"@{name_of(self._fun)}.defjvp"
            )
        fixed, dynamic = self._split(self._resolve(args, kwargs))
        check_leaves("custom_jvp", self._fun, dynamic, {})
        leaves, in_tree = tree.flatten((dynamic, {}))
        flat = FlatFunction("custom_jvp", lambda *a: self._fun(*self._join(fixed, a)), in_tree)
        rule = _jvp_rule(self, fixed, in_tree, flat)
        transpose = self._transpose and _transpose_rule(self, fixed, in_tree, flat)
        call = JVPCall(name_of(self._fun), flat, rule, self._symbolic_zeros, transpose)
        return flat.unflatten(self._apply(call, leaves, fixed, self._rule, self._transpose))


def _transpose_rule(
    custom: custom_jvp, fixed: list, in_tree: PyTreeDef, flat: FlatFunction
) -> Callable:
    def rule(args: Operands, cts: Cotangents) -> list:
        primals = in_tree.unflatten(args)[0]
        assert custom._transpose is not None
        found = custom._transpose(*fixed, primals, flat.unflatten([instantiate(c) for c in cts]))
        leaves: list[Any] = []
        for given, primal in zip(found, primals, strict=True):
            n = len(tree.leaves(primal))
            leaves += [None] * n if given is None else tree.leaves(given)
        return [c if type(a) is Linear else None for a, c in zip(args, leaves, strict=True)]

    return rule


def _jvp_rule(custom: custom_jvp, fixed: list, in_tree: PyTreeDef, flat: FlatFunction) -> Callable:
    name = name_of(custom._fun)

    def rule(primals: Values, tangents: Tangents) -> tuple[list, list]:
        primals, tangents = _with_types(primals), _with_types(tangents)
        shown = [SymbolicZero(t.aval) if type(t) is Zero else t for t in tangents]
        assert custom._rule is not None
        with source.unplaced():
            result = custom._rule(
                *fixed, in_tree.unflatten(primals)[0], in_tree.unflatten(shown)[0]
            )
        if not (isinstance(result, tuple | list) and len(result) == 2):
            raise CustomRuleError(
                f"the jvp rule of {name} must return a pair (result, tangent), got {result!r}"
            )
        outs, out_tree = flatten_outputs("the jvp rule", custom._fun, result[0])
        outs_t, tangent_tree = tree.flatten(
            result[1], is_leaf=lambda x: isinstance(x, SymbolicZero)
        )
        if out_tree != tangent_tree:
            raise CustomRuleError(
                f"the jvp rule of {name} must return a tangent with the structure of the result, "
                f"{out_tree}, got {tangent_tree}"
            )
        _same_result(f"the jvp rule of {name}", out_tree, flat)
        zeros = [Zero(t.aval) if isinstance(t, SymbolicZero) else t for t in outs_t]
        wants = [aval_of(o).tangent() for o in outs]
        zeros = [
            Zero(w) if type(t) is not Zero and w.dtype.names is not None else t
            for t, w in zip(zeros, wants, strict=True)
        ]
        _same_types(f"the jvp rule of {name}: tangent", zeros, wants)
        return outs, zeros

    return rule


class custom_vjp(_Custom):
    """A function whose reverse-mode derivative the user gives.

    `f.defvjp(fwd, bwd)`: fwd(*args) → (result, residuals); bwd(residuals, cotangent) → a tuple with
    a cotangent (or None for zero) for each argument. nondiff_argnums, nondiff_argnames: arguments
    that are not differentiated; bwd gets them first. Forward mode differentiates the function
    itself, unless `defvjp(..., jvp=False)` forbids it.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> @fg.custom_vjp
    ... def clip_gradient(x):
    ...     return x
    >>> clip_gradient.defvjp(lambda x: (x, None), lambda _, g: (fnp.clip(g, -1.0, 1.0),))
    >>> float(fg.grad(lambda x: 5.0 * clip_gradient(x))(2.0))
    1.0
    """

    _fwd: Callable | None = None
    _bwd: Callable | None = None
    _symbolic_zeros = False
    _jvp = True

    def defvjp(
        self, fwd: Callable, bwd: Callable, symbolic_zeros: bool = False,
        optimize_remat: bool = False, *, jvp: bool = True,
    ) -> None:  # fmt: skip
        """Set the forward and the backward rule.

        symbolic_zeros: fwd gets a `CustomVJPPrimal` for each array, which says whether it varies;
            zero cotangents come to bwd as `SymbolicZero`
        optimize_remat: as JAX has it, and without effect: where nothing is differentiated, the
            function runs, never fwd
        jvp: whether forward mode may differentiate the function itself
        """
        self._fwd, self._bwd = fwd, bwd
        self._symbolic_zeros = symbolic_zeros
        self._jvp = jvp

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Tree:
        if self._fwd is None:
            raise CustomRuleError(
                f"custom_vjp function {name_of(self._fun)} has no rules yet: give them with "
                f"{name_of(self._fun)}.defvjp(fwd, bwd)"
            )
        fixed, dynamic = self._split(self._resolve(args, kwargs))
        given, dynamic = dynamic, hidden(dynamic)
        show = (lambda a: a) if dynamic is given else shown
        check_leaves("custom_vjp", self._fun, dynamic, {})
        leaves, in_tree = tree.flatten((dynamic, {}))
        fun = lambda *a: self._fun(*self._join(fixed, show(a)))  # noqa: E731
        flat = FlatFunction("custom_vjp", fun, in_tree)
        state: dict[str, Any] = {"show": show}
        fwd = _fwd_rule(self, fixed, in_tree, flat, state)
        bwd = _bwd_rule(self, fixed, dynamic, flat, state)
        call = VJPCall(name_of(self._fun), flat, fwd, bwd, self._jvp, show is shown)
        return flat.unflatten(self._apply(call, leaves, fixed, self._fwd, self._bwd))


def _fwd_rule(
    custom: custom_vjp, fixed: list, in_tree: PyTreeDef, flat: FlatFunction, state: dict
) -> Callable:
    name = name_of(custom._fun)

    def fwd(primals: Values, perturbed: Sequence[bool]) -> tuple[list, list]:
        given = primals = _with_types(primals)
        if custom._symbolic_zeros:
            given = [CustomVJPPrimal(p, v) for p, v in zip(primals, perturbed, strict=True)]
        assert custom._fwd is not None
        with source.unplaced():
            args = state["show"](in_tree.unflatten(given)[0])
            result = custom._fwd(*custom._join(fixed, args))
        if not (isinstance(result, tuple | list) and len(result) == 2):
            raise CustomRuleError(
                f"the forward rule of {name} must return a pair (result, residuals), got {result!r}"
            )
        outs, out_tree = flatten_outputs("the forward rule", custom._fun, result[0])
        _same_result(f"the forward rule of {name}", out_tree, flat)
        # Refs among the arguments may be residuals, too: they are what both rules share.
        kept = result[1] if state["show"] is not shown else hidden(result[1])
        residuals, state["residual_tree"] = flatten_outputs("the forward rule", custom._fun, kept)
        return outs, residuals

    return fwd


def _bwd_rule(
    custom: custom_vjp, fixed: list, dynamic: tuple, flat: FlatFunction, state: dict
) -> Callable:
    name = name_of(custom._fun)
    in_avals = avals_of(tree.leaves(dynamic))
    arg_trees = [tree.structure(a) for a in dynamic]

    def flat_ct(given: Tree, position: int, treedef: PyTreeDef) -> list:
        """The cotangents of one argument's leaves; None stands for zero anywhere in it."""
        if given is None:
            return [None] * treedef.num_leaves
        is_leaf = lambda x: x is None or isinstance(x, SymbolicZero)  # noqa: E731
        leaves, got = tree.flatten(given, is_leaf=is_leaf)
        if got != treedef:  # unless the argument itself holds None where None was given
            there, whole = tree.flatten(treedef.unflatten(range(treedef.num_leaves)), is_leaf)
            if got == whole:
                return [c for c, place in zip(leaves, there, strict=True) if place is not None]
            raise CustomRuleError(
                f"the backward rule of {name}: the cotangent of argument {position} must have the "
                f"structure {treedef}, got {got}"
            )
        return leaves

    def bwd(residuals: Values, cts: Cotangents) -> list:
        if custom._symbolic_zeros:
            varying = [SymbolicZero(c.aval) if type(c) is Zero else c for c in cts]
        else:
            varying = [instantiate(c) for c in cts]
        assert custom._bwd is not None
        with source.unplaced():
            kept = state["show"](state["residual_tree"].unflatten(residuals))
            result = custom._bwd(*fixed, kept, flat.unflatten(varying))
        if not isinstance(result, tuple | list) or len(result) != len(dynamic):
            raise CustomRuleError(
                f"the backward rule of {name} must return a tuple of {len(dynamic)} cotangents, "
                f"one a differentiable argument, got {_describe(result)}"
            )
        leaves: list[Any] = []
        for i, (given, treedef) in enumerate(zip(result, arg_trees, strict=True)):
            leaves += flat_ct(given, i, treedef)
        found = []
        for c, a in zip(leaves, in_avals, strict=True):
            t = a.tangent()
            zero = c is None or isinstance(c, SymbolicZero) or t.dtype.names is not None
            found.append(Zero(t) if zero else c)
        wants = [a.tangent() for a in in_avals]
        _check_cotangents(name, found, wants)
        return found

    return bwd


def _check_cotangents(name: str, found: Values, wants: Sequence[ShapedArray]) -> None:
    # Under vmap the rule may be given lanes of other avals than the call's; ranks tell.
    _same_types(f"the backward rule of {name}: cotangent", found, wants)


def _describe(result: object) -> str:
    if isinstance(result, tuple | list):
        return f"{len(result)} entries"
    return f"one array {aval_of(result)}" if is_arraylike(result) else f"{type(result)}"


def _of_type(what: str, x: Value, want: ShapedArray) -> Value:
    """x, a weak scalar in the wanted dtype, checked to have the wanted type."""
    got = aval_of(x)
    if got.weak_type and got.shape == want.shape and promote([got, want.strong()])[0] == want.dtype:
        return as_type(x, want)
    if not got.matches(want):
        raise TypeError(f"closure_convert of {what} must be {want} as the example was, got {got}")
    return x


def closure_convert(fun: Callable, *example_args: Any) -> tuple[Callable, list]:
    """A function of `fun`'s arguments and then the values it captured, and those values.

    The arrays and tracers that `fun` closes over become explicit arguments, in which a custom rule
    can tell derivatives.

    >>> import funcgrad as fg
    >>> def g(a):
    ...     f, captured = fg.closure_convert(lambda x: a * x, 1.0)
    ...     return f(3.0, *captured)
    >>> float(fg.grad(g)(2.0))
    3.0
    """
    check_leaves("closure_convert", fun, example_args, {})
    leaves, in_tree = tree.flatten((example_args, {}))
    flat = FlatFunction("closure_convert", fun, in_tree)
    avals = avals_of(leaves)
    jaxpr, consts = stage(flat, avals, name_of(fun))
    n = len(example_args)

    def converted(*args: Any) -> Tree:
        if len(args) != n + len(consts):
            raise TypeError(
                f"closure_convert of {name_of(fun)} takes {n} arguments and the {len(consts)} "
                f"values that it captured, got {len(args)}"
            )
        given, got = tree.flatten((args[:n], {}))
        if got != in_tree:
            tree.check_same_structure(
                in_tree.unflatten(leaves)[0], args[:n],
                what_a="closure_convert: the example arguments", what_b="the arguments",
            )  # fmt: skip
        given = [
            _of_type(f"{name_of(fun)}: argument leaf {i}", x, a)
            for i, (x, a) in enumerate(zip(given, avals, strict=True))
        ]
        return flat.unflatten(eval_jaxpr(jaxpr, *args[n:], *given))

    return wraps(fun, "closure_convert")(converted), consts
