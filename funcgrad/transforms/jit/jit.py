"""jit: trace a function once for each type of its arguments, compile it, and call native code."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakSet

from funcgrad import tree
from funcgrad.core import backend, caches, context
from funcgrad.core.array import Array
from funcgrad.core.buffers import compiler
from funcgrad.core.display.jaxpr_html import program_html
from funcgrad.core.display.tracebacks import hide_frames
from funcgrad.core.evaluation import found_in
from funcgrad.core.places.device_array import DeviceArray, device_among
from funcgrad.core.process import fork
from funcgrad.core.staging import stage_with_refs
from funcgrad.core.telemetry.log import logger
from funcgrad.core.telemetry.spans import record, recordings
from funcgrad.core.trace import Tracer
from funcgrad.core.types import Prefix, Tree, Values
from funcgrad.errors import RefError
from funcgrad.ops.sharding import constrain, jaxpr_meshes
from funcgrad.transforms.arguments import FlatFunction, as_array, check_leaves, name_of, wraps
from funcgrad.transforms.control.bodies import has_explicit_axes
from funcgrad.transforms.control.jit_primitive import jit_p
from funcgrad.transforms.jit.choice import Choice
from funcgrad.transforms.jit.keys import difference, programs_of, type_key
from funcgrad.transforms.jit.signature import Signature, SortedCall
from funcgrad.transforms.jit.stages import (
    Lowered,
    Program,
    Traced,
    call_compiled,
    call_donating,
    delete_donated,
    goes_alone,
    gone_reasons,
    is_traced,
    op_by_op,
    sharding_of,
    told_of_trace,
    watch_call,
)
from funcgrad.transforms.refs import Lending, State, aval_or_inner, refs_among, state_of

RETRACES_BEFORE_WARNING = 16
# Programs that are kept of a function: a small one takes some 20 KB.
MOST_PROGRAMS = 1024
# Kinds of calls that go straight to native code: of one program (its arguments may be numpy arrays
# at times, or static values other objects), and in all.
ENTRIES_PER_PROGRAM = 4
MAX_ENTRIES = 16


def jit(
    fun: Callable | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    in_shardings: Prefix = None,
    out_shardings: Prefix = None,
    backend: str = backend.DEFAULT,
) -> Jitted:
    """The function compiled to native code, once for each type of its arguments.

    static_argnums, static_argnames: arguments whose values the program may depend on; they must be
    hashable, and each value is compiled apart. donate_argnums, donate_argnames: arguments whose
    memory the call may reuse for its results; using them afterwards raises. Arrays the function
    closes over become inputs of the program. Works as a decorator, with or without arguments.
    Where the function can be pickled, so can what is returned. Of more than 1024 programs those go
    that were called longest ago; what `.compile()` gave stays.

    in_shardings, out_shardings: how arguments and results are cut over a mesh, `NamedSharding`s in
    a pytree whose structure is a prefix of the arguments (a tuple) or of the result; None leaves it
    to the compiler. Where anything is cut, the program is partitioned: each device runs its part,
    with the collectives that this takes.

    `jit(f).trace(*args)`, `.lower(*args)` and `.lower(*args).compile()` show the stages.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> @fg.jit
    ... def f(x):
    ...     return fnp.sum(x * x)
    >>> f(fnp.arange(3.0))
    Array(5., dtype=float32)
    """
    if fun is None:
        return lambda f: jit(  # type: ignore[return-value]
            f, static_argnums=static_argnums, static_argnames=static_argnames,
            donate_argnums=donate_argnums, donate_argnames=donate_argnames,
            in_shardings=in_shardings, out_shardings=out_shardings, backend=backend,
        )  # fmt: skip
    if not callable(fun):
        raise TypeError(f"Expected a callable value: jit of {fun!r}, which is no function")
    static = Choice.of(fun, static_argnums, static_argnames, "static")
    donated = Choice.of(fun, donate_argnums, donate_argnames, "donate")
    return _jitted(fun, static, donated, (in_shardings, out_shardings), backend)


def _jitted(fun: Callable, *options: Any) -> Jitted:
    return wraps(fun, "jit")(Jitted(fun, *options))


class CacheInfo(NamedTuple):
    """How often a compiled function found its program, and how many it has."""

    hits: int
    misses: int
    currsize: int


def _by_python(args: tuple, kwargs: dict) -> object:
    return NotImplemented


_all: WeakSet[Jitted] = WeakSet()
_lock = fork.lock()


@caches.forgotten_by
def _forget() -> None:
    with _lock:
        functions = list(_all)
    for f in functions:
        f.clear_cache()


class Jitted:
    """A compiled function: what `jit` returns."""

    __name__: str
    __wrapped__: Callable

    def __init__(
        self, fun: Callable, static: Choice, donated: Choice, shardings: tuple, using: str
    ):
        self._fun = fun
        self._in_shardings, self._out_shardings = shardings
        self._signature = Signature(fun, static, donated)
        self._backend = using
        self._programs = programs_of(fun, (static, donated, shardings, using), MOST_PROGRAMS)
        self._direct: Callable[[tuple, dict], Tree] = _by_python
        self._direct_using = using
        self._entries: list[object] = []
        self._learned: dict[int, int] = {}
        self._hits = 0
        self._misses = 0
        self._warned = False
        with _lock:
            _all.add(self)

    def __reduce__(self) -> str | tuple:
        # By name where that is this object's, as functions are pickled; else to be compiled anew.
        name = getattr(self._fun, "__qualname__", "")
        try:
            if attrgetter(name)(sys.modules[self.__module__]) is self:
                return name
        except (AttributeError, KeyError, TypeError):  # a callable's may be anything
            pass
        shardings = self._in_shardings, self._out_shardings
        return _jitted, (*self._signature, shardings, self._backend)

    def __call__(self, *args: Any, **kwargs: Any) -> Tree:
        began = time.perf_counter_ns() if recordings else 0
        try:
            out = self._direct(args, kwargs)
            if out is NotImplemented:
                return self._call(args, kwargs)
        except Exception as e:
            hide_frames(e)
            raise
        finally:
            if began:
                record(f"jit({name_of(self._fun)})", "call", began)
        self._hits += 1
        return out

    def _call(self, args: tuple, kwargs: dict) -> Tree:
        """A call by way of Python: the first ones, and those that native code can't do."""
        ctx = context.current()
        call = self._signature.sort(args, kwargs)
        if ctx.disable_jit:
            return self._by_itself(call, map(as_array, call.leaves))
        program = self._program(call)
        if ctx.trace is not context.ROOT.trace and not goes_alone(program):
            return self._by_itself(call, call.leaves)
        leaves = call.leaves
        operands = [*program.captured(leaves), *leaves] if program.consts else leaves
        if program.state is not None:
            return self._call_with_state(program, program.state, operands)
        if ctx.trace is context.ROOT.trace and not any(isinstance(x, Tracer) for x in operands):
            using = self._using(operands)
            self._learn(call, program, using)
            outs = self._run(program, operands, using)
        else:
            outs = self._bind(program, operands)
        return program.out_tree.unflatten(outs)

    def _by_itself(self, call: SortedCall, leaves: Iterable) -> Tree:
        """What the function gives without being compiled as a unit."""
        dynamic, named = call.in_tree.unflatten(leaves)
        return self._signature.of_dynamic(call)(*dynamic, **named)

    def _bind(self, program: Program, operands: list) -> list:
        """The results as a transformation around sees them, whose matter donation then is."""
        return jit_p.bind(*operands, jaxpr=program.jaxpr, name=name_of(self._fun),
                          donated=(False,) * len(operands), backend=self._backend)  # fmt: skip

    def _call_with_state(self, program: Program, state: State, given: list) -> Tree:
        """A call that reads and writes mutable arrays."""
        operands = state.operands(f"jit({name_of(self._fun)})", given, program.names)
        root = context.current().trace is context.ROOT.trace
        if root and not any(isinstance(x, Tracer) for x in operands):
            outs = self._run(program, operands, self._using(operands))
        else:
            outs = self._bind(program, operands)
        return program.out_tree.unflatten(state.put_back(given, outs))

    def _using(self, operands: Values) -> str:
        """The backend that runs a program on these operands, where they are."""
        what = f"jit({name_of(self._fun)})"
        if DeviceArray in map(type, operands):
            return compiler(what, self._backend, device_among(what, operands))
        ctx = context.current()
        if ctx.device is not None and not any(isinstance(x, Array) for x in operands):
            return compiler(what, self._backend, ctx.device)
        return self._backend

    def _run(self, program: Program, operands: list, using: str) -> list:
        if context.current().checks is not None:
            watch_call(program, name_of(self._fun), operands)
        checking = context.watches_values()
        if checking and program.shardings is not None:
            # Op by op at once: another process may see a NaN where this one sees none.
            return op_by_op(program, operands)
        name = name_of(self._fun)
        compiled = program.executable(name, using, donating=not checking)
        if not checking:
            return call_donating(compiled, program, name, operands, using)
        outs = call_compiled(compiled, program, operands)
        if found_in(outs):
            # Run again op by op: the operation that made the NaN raises, naming its line.
            op_by_op(program, operands)
        delete_donated(program, name, operands)
        return outs

    def _learn(self, call: SortedCall, program: Program, using: str) -> None:
        """Let calls like this one be direct from now on, where the backend can."""
        times = self._learned.get(id(program), 0)
        if program.shardings is not None or times >= ENTRIES_PER_PROGRAM:
            return
        if context.current().checks:
            return
        name = name_of(self._fun)
        example = backend.Call(
            call.args,
            call.kwargs,
            self._signature.static,
            program.consts,
            gone_reasons(program, name),
            program.out_tree,
            program.jaxpr.out_avals,
        )
        entry = program.executable(name, using).direct(example)
        if entry is NotImplemented:
            return
        self._learned[id(program)] = times + 1
        if entry is not None:
            others = self._entries if using == self._direct_using else []
            self._entries = [entry, *others[: MAX_ENTRIES - 1]]
            self._direct = backend.backend(using).caller(self._entries)
            self._direct_using = using

    # ---- arguments and the cache

    def _program(self, call: SortedCall) -> Program:
        try:
            types = tuple([type_key(x) for x in call.leaves])
        except RefError:  # a mutable array that is no more
            raise
        except TypeError:
            check_leaves("jit", self._fun, call.args, call.kwargs)
            raise
        key = (call.in_tree, types, call.static, context.current().static_key())
        program = self._programs.get(key)
        if program is not None:
            self._hits += 1
            return program
        self._misses += 1
        program = self._trace(call)
        # A program that captured a tracer is good for this call only.
        if not any(map(is_traced, program.consts)):
            for old in self._programs.put(key, program):
                self._learned.pop(id(old), None)
            self._tell_of_retraces(key, program)
        return program

    def _trace(self, call: SortedCall) -> Program:
        fun = self._fun
        names = list(self._signature.leaf_names(call))
        flat = FlatFunction(
            "jit", self._with_shardings(self._signature.of_dynamic(call)), call.in_tree
        )
        places = refs_among(call.leaves)
        lent = Lending(flat, places) if places else None
        avals, start = [aval_or_inner(x) for x in call.leaves], time.perf_counter_ns()
        traced: Callable = lent or flat
        if has_explicit_axes():
            traced = backend.explicit().between_types(traced, call.leaves)
        jaxpr, consts, written = stage_with_refs(traced, avals, f"jit({name_of(fun)})", names)
        seconds = told_of_trace(name_of(fun), start, jaxpr)
        state = state_of(consts, call.leaves, lent, written)
        donated = self._signature.donated_leaves(call)
        cut = tuple(map(sharding_of, [*consts, *call.leaves]))
        return Program(
            jaxpr,
            consts,
            call.in_tree,
            flat.out_tree,
            (*([False] * len(consts)), *donated),
            ["captured"] * len(consts) + names,
            cut if any(cut) or jaxpr_meshes(jaxpr) else None,
            seconds,
            state if state.touched else None,
        )

    def _with_shardings(self, fun: Callable) -> Callable:
        """The function whose arguments and results are constrained to the shardings given."""
        ins, outs = self._in_shardings, self._out_shardings
        if ins is None and outs is None:
            return fun
        ins = tuple(ins) if isinstance(ins, list) else ins

        def constrained(*args: Any, **kwargs: Any) -> Tree:
            out = fun(*constrain(f"jit({name_of(fun)}): in_shardings", args, ins), **kwargs)
            return constrain(f"jit({name_of(fun)}): out_shardings", out, outs)

        return wraps(fun, "sharded")(constrained)

    def _tell_of_retraces(self, last: tuple, program: Program) -> None:
        many = self._misses >= RETRACES_BEFORE_WARNING and not self._warned
        explained = self._misses > 1 and "misses" in context.current().logs
        if not many and not explained:
            return
        before = next(key for key in reversed(self._programs.keys()) if key is not last)
        names = program.names[len(program.consts) :]
        changed = difference(before, last, names, self._fun)
        if explained:
            logger().warning("jit(%s) is traced again: %s", name_of(self._fun), changed)
        if many:
            self._warned = True
            warnings.warn(
                f"jit({name_of(self._fun)}) has been traced {self._misses} times, each time "
                f"compiled anew; between the last two calls {changed}. Pad to common "
                "shapes, or pass changing Python values as arrays instead of static arguments.",
                stacklevel=4,
            )

    # ---- stages

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """The program for arguments of these types (arrays or `ShapeDtypeStruct`).

        >>> fg.jit(lambda x: x + 1).trace(1.0).jaxpr
        { lambda ; a:f32[] . let
            b:f32[] = add a 1.0:f32[]
          in (b,) }
        """
        call = self._signature.sort(args, kwargs)
        program = self._program(call)
        using = self._using([*program.consts, *call.leaves])
        return Traced(program, name_of(self._fun), using)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program lowered for the backend.

        >>> fg.jit(lambda x: x + 1).lower(fnp.ones(3)).cost_analysis()
        {'flops': 3.0, 'bytes accessed': 24.0}
        """
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, *args: Any, **kwargs: Any) -> Tree:
        """Shapes and dtypes of the result, as `ShapeDtypeStruct`.

        >>> fg.jit(lambda x: x.sum()).eval_shape(fnp.ones(3))
        ShapeDtypeStruct(shape=(), dtype=float32)
        """
        return self.trace(*args, **kwargs).out_info

    def cache_info(self) -> CacheInfo:
        """Hits, misses and number of programs, as of `functools.lru_cache`.

        >>> f = fg.jit(lambda x: fnp.sin(x))
        >>> _ = f(1.0), f(2.0), f(fnp.ones(3))
        >>> f.cache_info()
        CacheInfo(hits=1, misses=2, currsize=2)
        """
        return CacheInfo(self._hits, self._misses, len(self._programs))

    def expect_many_types(self) -> None:
        """Let there be no warning of many programs: the types of arguments are a user's affair."""
        self._warned = True

    def clear_cache(self) -> None:
        """Forget all programs."""
        self._direct, self._entries = _by_python, []
        self._learned.clear()
        self._programs.clear()
        self._hits = self._misses = 0

    def __get__(self, instance: object, owner: type | None = None) -> Callable:
        return self if instance is None else tree.Partial(self, instance)

    def __repr__(self) -> str:
        return f"jit({name_of(self._fun)})"

    def _repr_html_(self) -> str:
        facts = {"programs": len(self._programs), "calls": self._hits + self._misses}
        programs = [p.shown(p.signature()) for p in self._programs.values()]
        return program_html(repr(self), facts, programs)
