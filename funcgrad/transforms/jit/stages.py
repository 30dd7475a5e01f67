"""The stages of `jit`: a program traced, lowered, compiled; each prints and shows itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np

from funcgrad import tree
from funcgrad.core import backend, context
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.buffers import compiler
from funcgrad.core.closed import ClosedJaxpr
from funcgrad.core.display.compile_report import CompileReport, CompileStage
from funcgrad.core.display.jaxpr_html import program_html
from funcgrad.core.evaluation import own
from funcgrad.core.ir import Jaxpr, eval_jaxpr
from funcgrad.core.places.device_array import DeviceArray, device_among, placed, settled, wrap
from funcgrad.core.places.transfers import crosses
from funcgrad.core.refs import Ref
from funcgrad.core.sharding import NamedSharding
from funcgrad.core.staging import only_staging
from funcgrad.core.telemetry.events import record_event_duration_secs
from funcgrad.core.telemetry.log import DEBUG, WARNING, logger
from funcgrad.core.telemetry.spans import record, record_stages, recordings
from funcgrad.core.trace import Tracer
from funcgrad.core.types import Tree, Value, Values
from funcgrad.errors import ShardingError
from funcgrad.transforms.callbacks import calls_users
from funcgrad.transforms.control.bodies import has_explicit_axes
from funcgrad.transforms.control.custom_call import rules_share_refs
from funcgrad.transforms.control.jit_primitive import executable, jit_p
from funcgrad.transforms.jit.make_jaxpr import struct
from funcgrad.transforms.refs import State, aval_or_inner
from funcgrad.tree import PyTreeDef


class Program(NamedTuple):
    """What tracing gives: the program, the arrays it captured, the structures of dynamic arguments
    and result, which inputs are donated and how they are called, how inputs are cut (None for a
    program that knows of no mesh), how long tracing took, and which operands are mutable arrays."""

    jaxpr: Jaxpr
    consts: list
    in_tree: PyTreeDef
    out_tree: PyTreeDef
    donated: tuple[bool, ...]
    names: list[str]
    shardings: tuple[NamedSharding | None, ...] | None
    seconds: float
    state: State | None = None

    def captured(self, leaves: Values) -> list:
        """The arrays it captured; where operands are on a device, copies there, made once."""
        if not self.consts or self.state is not None or DeviceArray not in map(type, leaves):
            return self.consts
        device, *others = {x.device for x in leaves if type(x) is DeviceArray}
        if others:  # an error that others tell
            return self.consts
        return self.jaxpr.derive(
            ("captured", device), lambda: [placed(x, device) for x in self.consts]
        )

    def executable(self, name: str, using: str, donating: bool = True) -> backend.Executable:
        """The compiled program: for a mesh where its inputs or annotations name one. It may write
        to donated inputs, and to what Refs hold that it writes to, where it sees who else has it.
        """
        key = ("called", using, donating)
        return self.jaxpr.derive(key, lambda: self._executable(name, using, donating))

    def overwrites(self, using: str) -> Sequence[int]:
        """Which operands are what Refs hold, to whose memory the compiled program may write."""
        if self.state is None or self.shardings is not None or using != backend.DEFAULT:
            return ()
        # Programs with effects, and users' functions within, fail more often than sums.
        return () if self.jaxpr.has_effects or calls_users(self.jaxpr) else self.state.written

    def _executable(self, name: str, using: str, donating: bool) -> backend.Executable:
        donated = self.donated if donating else (False,) * len(self.donated)
        if donating:
            over = self.overwrites(using)
            donated = tuple(d or i in over for i, d in enumerate(donated))
        start = time.perf_counter_ns()
        if self.shardings is None:
            done = executable(self.jaxpr, donated, name, using)
        else:
            done = backend.spmd().executable(self.jaxpr, self.shardings, donated, name, using)
        seconds = _tell_of("backend_compile_duration", name, start)
        if recordings:
            record_stages(start, done.compile_stages())
            record(f"compile {name}", "compile", start, signature=self.signature())
        level = WARNING if "compiles" in context.current().logs else DEBUG
        log = logger()
        if log.isEnabledFor(level):
            log.log(level, "compiled jit(%s) of %s: traced in %.3f s, compiled in %.3f s",
                    name, self.signature(), self.seconds, seconds)  # fmt: skip
        return done

    def signature(self) -> str:
        """The types of arguments and results."""
        ins = self.jaxpr.in_avals[len(self.consts) :]
        return f"({_listed(ins)}) → {_listed(self.jaxpr.out_avals)}"

    def shown(self, title: str) -> tuple[str, Jaxpr, int]:
        """The program under a title, for a notebook."""
        return title, self.jaxpr, len(self.consts)


def _listed(avals: Sequence[ShapedArray]) -> str:
    more = f", … {len(avals) - 6} more" if len(avals) > 6 else ""
    return ", ".join(map(str, avals[:6])) + more


def call_compiled(
    compiled: backend.Executable, program: Program, operands: Values, began: list | None = None
) -> list:
    """The results of a compiled program as arrays; `began` as of `backend.Executable`."""
    jaxpr = program.jaxpr
    if program.shardings is not None:
        return compiled(operands, began)
    values = compiled([settled(x) for x in operands], began)
    if np.ndarray in map(type, operands):
        values = own(operands, values)
    return [wrap(v, a) for v, a in zip(values, jaxpr.out_avals, strict=True)]


def call_donating(
    compiled: backend.Executable, program: Program, name: str, operands: Values, using: str
) -> list:
    """As `call_compiled`. Donated arrays are gone once the program has begun, also where it fails
    or is interrupted: nobody knows what is in their memory. So is then what Refs hold, if the
    program writes there."""
    over = program.overwrites(using)
    if True not in program.donated and not over:
        return call_compiled(compiled, program, operands)
    began: list = []
    done = False
    try:
        outs = call_compiled(compiled, program, operands, began)
        done = True
        return outs
    finally:
        if began:
            delete_donated(program, name, operands)
            for i in () if done else over:
                operands[i].delete(f"jit({name}), which wrote to its Ref, failed or was stopped")


def delete_donated(program: Program, name: str, operands: Values) -> None:
    """Donated arrays are gone after a call, whether their memory was of use or not."""
    for x, reason in zip(operands, gone_reasons(program, name), strict=True):
        if reason is not None and isinstance(x, Array):
            x.delete(reason)


def gone_reasons(program: Program, name: str) -> list[str | None]:
    """Why an input can't be used after a call: it was donated. None for those that weren't."""
    return [
        f"argument {argument} was donated to jit({name})" if donated else None
        for donated, argument in zip(program.donated, program.names, strict=True)
    ]


def _tell_of(what: str, name: str, start: int) -> float:
    """Tell who listens how long a stage of compiling a function took; the seconds."""
    seconds = (time.perf_counter_ns() - start) / 1e9
    record_event_duration_secs(f"/funcgrad/core/compile/{what}", seconds, fun_name=name)
    return seconds


def told_of_trace(name: str, start: int, jaxpr: Jaxpr) -> float:
    """The seconds since a function began to be traced, after who listens was told."""
    record(f"trace {name}", "compile", start, what=f"{len(jaxpr.eqns)} operations")
    return _tell_of("jaxpr_trace_duration", name, start)


def is_traced(x: Value) -> bool:
    """Whether a captured value belongs to a transformation that will end."""
    return isinstance(x, Tracer) or (type(x) is Ref and x.home is not context.ROOT.trace)


def goes_alone(program: Program) -> bool:
    """Whether the transformations that run can have a program as it is: there are no mutable arrays
    that rules of derivatives touch, whose programs are made once for all calls."""
    return only_staging() or not rules_share_refs(program.jaxpr)


def op_by_op(program: Program, operands: Values) -> list:
    """The results of a call, after `watch_call`, without compiled code: what watches operations
    finds the one that it looks for."""
    with context.keys_unwatched():
        return eval_jaxpr(program.jaxpr, *operands)


def watch_call(program: Program, name: str, operands: Values) -> None:
    """Tell who watches of a call: of arrays that come from NumPy or from another device, and of
    random keys."""
    checks = context.current().checks
    assert checks is not None
    away = DeviceArray in map(type, operands)
    for x, aval in zip(operands, program.jaxpr.in_avals, strict=True):
        if type(x) is np.ndarray:
            crosses("host_to_device", aval)
        elif type(x) is Array and away:
            crosses("device_to_device", aval)
    if checks.keys is not None:
        checks.keys.watch(jit_p, operands, {"jaxpr": program.jaxpr, "name": f"jit({name})"})


def sharding_of(x: Value) -> NamedSharding | None:
    """How an argument is cut over a mesh."""
    if isinstance(x, Tracer):
        return backend.explicit().sharding_of(x) if has_explicit_axes() else None
    cut = getattr(x, "sharding", None)
    return cut if isinstance(cut, NamedSharding) else None


class _Stage:
    """What all stages are: objects that nobody changes, of this process."""

    _name: str
    _program: Program

    @property
    def in_tree(self) -> PyTreeDef:
        """The structure of (positional arguments, keyword arguments)."""
        return self._program.in_tree

    @property
    def args_info(self) -> Tree:
        """Of each argument its shape, dtype, and whether it is donated: a pair of the positional
        ones and of those by name.

        >>> fg.jit(fnp.add, donate_argnums=1).lower(fnp.ones(3), 1.0).args_info[0][1].donated
        True
        """
        p = self._program
        start = len(p.jaxpr.ins) - p.in_tree.num_leaves
        types = zip(p.jaxpr.in_avals[start:], p.donated[start:], strict=True)
        return p.in_tree.unflatten([ArgInfo(a.shape, a.dtype, d) for a, d in types])

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """Which leaves of the arguments are donated."""
        return tuple(i for i, x in enumerate(tree.leaves(self.args_info)) if x.donated)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__}({self._name}) can't be pickled, as it belongs to this process: "
            f"pickle the function and compile it where it is loaded, which finds its code on disk"
        )


@dataclass(frozen=True)
class ArgInfo:
    """What is known of an argument of a stage: its type, and whether its memory is given away."""

    shape: tuple[int, ...]
    dtype: np.dtype
    donated: bool


class Traced(_Stage):
    """A traced function: `.jaxpr`, `.program`, `.out_info`, `.lower()`."""

    def __init__(self, program: Program, name: str, using: str):
        self._program = program
        self._name = name
        self._backend = using

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The program with the arrays it captured."""
        return ClosedJaxpr(self._program.jaxpr, self._program.consts)

    @property
    def program(self) -> Program:
        """All that tracing gave: also structures, names and shardings, and what is donated."""
        return self._program

    @property
    def fun_name(self) -> str:
        """What the function is called."""
        return self._name

    @property
    def out_info(self) -> Tree:
        """Shapes and dtypes of the result, as `ShapeDtypeStruct`.

        >>> fg.jit(lambda x: {"norm": fnp.sqrt(x @ x)}).trace(fnp.ones(3)).out_info
        {'norm': ShapeDtypeStruct(shape=(), dtype=float32)}
        """
        out_tree = self._program.out_tree
        avals = self._program.jaxpr.out_avals[: out_tree.num_leaves]
        return out_tree.unflatten([struct(a) for a in avals])

    def lower(self) -> Lowered:
        """The program lowered for the backend."""
        return Lowered(self._program, self._name, self._backend)

    def __repr__(self) -> str:
        return f"Traced({self._name})\n{self.jaxpr}"

    def _repr_html_(self) -> str:
        title = f"{self._name}{self._program.signature()}"
        return program_html(title, {}, [self._program.shown("jaxpr")])


class Lowered(_Stage):
    """A lowered program: `.as_text(stage)`, `.cost_analysis()`, `.compile()`."""

    def __init__(self, program: Program, name: str, using: str):
        self._program = program
        self._name = name
        self._backend = using

    def _executable(self) -> backend.Executable:
        return self._program.executable(self._name, self._backend)

    def as_text(self, stage: str = "jaxpr") -> str:
        """The program at a stage: "jaxpr", "loops", "llvm" or "asm".

        >>> print(fg.jit(fnp.tanh).lower(fnp.ones(3)).as_text("loops"))
        program tanh(f32[3]) -> (f32[3]), arena 0 bytes
          tanh input0, output0
        <BLANKLINE>
        kernel tanh(in in0: f32[3], out out0: f32[3])
          in place: out0 over in0
          parallel i < 3:
            v0 = in0[i]
            v1 = tanh v0
            out0[i] = v1
        """
        if stage == "jaxpr" and self._program.shardings is None:
            return repr(ClosedJaxpr(self._program.jaxpr, self._program.consts))
        return self._executable().as_text(stage)

    def cost_analysis(self) -> dict[str, float]:
        """Floating-point operations ("flops") and bytes moved ("bytes accessed") of one call.

        Operations are those of the program as it is written, whatever a faster way spares: of a
        convolution two for each element of each window and each feature, also where it goes by
        tiles. So flops by time compare ways, as XLA's do.
        """
        return self._executable().cost_analysis()

    def device_analysis(self) -> object:
        """What each device of a mesh keeps, computes and sends: a table, from the program alone, so
        that it needs no devices (`AbstractMesh`)."""
        if self._program.shardings is None:
            raise ShardingError(f"{self._name} isn't partitioned: nothing in it names a mesh")
        return self._executable().analysis  # type: ignore[attr-defined]

    def compile(self) -> Compiled:
        """The native program."""
        return Compiled(self._program, self._executable(), self._name, self._backend)

    def __repr__(self) -> str:
        return f"Lowered({self._name})"

    def _repr_html_(self) -> str:
        title = f"{self._name}{self._program.signature()}"
        if self._program.shardings is not None:
            program = self._executable().program  # type: ignore[attr-defined]
            device = ("the program of each device", program.jaxpr, 0)
            return program_html(title, self.cost_analysis(), [device])
        loops = [("loops", self.as_text("loops"))]
        return program_html(title, self.cost_analysis(), [self._program.shown("jaxpr")], loops)


class Compiled(_Stage):
    """A native program for arguments of one type."""

    def __init__(self, program: Program, compiled: backend.Executable, name: str, using: str):
        self._program = program
        self._executable = compiled
        self._name = name
        self._backend = using

    def __call__(self, *args: Any, **kwargs: Any) -> Tree:
        p = self._program
        leaves, in_tree = tree.flatten((args, kwargs))
        if in_tree != p.in_tree:
            tree.check_same_structure(
                p.in_tree, in_tree,
                what_a=f"what {self._name} was compiled for", what_b="this call",
            )  # fmt: skip
        want = p.jaxpr.in_avals[len(p.consts) :]
        got = [aval_or_inner(x) for x in leaves]
        if len(got) != len(want) or any(not g.matches(w) for g, w in zip(got, want, strict=True)):
            raise TypeError(f"the compiled {self._name} takes arguments of types {want}, got {got}")
        if p.shardings is not None or any(map(sharding_of, leaves)):
            leaves = self._cut(leaves)
        given = operands = [*p.captured(leaves), *leaves]
        if p.state is not None:
            operands = p.state.operands(f"the compiled {self._name}", given, p.names)
        if DeviceArray in map(type, operands):
            self._check_device(operands)
        outs = call_donating(self._executable, p, self._name, operands, self._backend)
        if p.state is not None:
            outs = p.state.put_back(given, outs)
        return p.out_tree.unflatten(outs)

    def _check_device(self, operands: Values) -> None:
        what = f"the compiled {self._name}"
        device = device_among(what, operands)
        if compiler(what, self._backend, device) != self._backend:
            raise ShardingError(
                f"{what} is of backend {self._backend!r}, its arguments are on {device}; lower it "
                "for such arguments"
            )

    def _cut(self, leaves: Values) -> list:
        """Arguments cut as the program was compiled for; a plain array may be cut in any way."""
        p = self._program
        cuts = (p.shardings or (None,) * (len(p.consts) + len(leaves)))[len(p.consts) :]
        for x, want, name in zip(leaves, cuts, p.names[len(p.consts) :], strict=True):
            got = sharding_of(x)
            if got is not None and got != want:
                raise ShardingError(
                    f"the compiled {self._name} takes argument {name} with sharding {want}, got "
                    f"{got}: reshard it, or call the function that isn't compiled ahead"
                )
        return list(leaves)

    def as_text(self, stage: str = "asm") -> str:
        """The program at a stage: "loops", "llvm" or "asm"."""
        return self._executable.as_text(stage)

    def cost_analysis(self) -> dict[str, float]:
        """Floating-point operations and bytes moved by one call; see `Lowered.cost_analysis`."""
        return self._executable.cost_analysis()

    def memory_analysis(self) -> dict[str, int]:
        """Bytes of arguments, results, what they share, temporaries, and scratch memory that bands
        of rows, products by tiles and attention take while they run. Printed, it names the values
        that are in memory when it is fullest, and the lines that compute them."""
        return self._executable.memory_analysis()

    def compile_report(self) -> CompileReport:
        """Where the time of tracing and compiling went: a table of stages, of what was compiled,
        found on disk, or held already by other programs.

        >>> import funcgrad as fg, funcgrad.numpy as fnp
        >>> report = fg.jit(fnp.sin).lower(fnp.ones(3)).compile().compile_report()
        >>> [stage.name for stage in report.stages]
        ['trace', 'plan', 'kernels', 'program']
        """
        p = self._program
        traced = CompileStage("trace", p.seconds, f"{len(p.jaxpr.eqns)} operations")
        return CompileReport(self._name, (traced, *self._executable.compile_stages()))

    def __repr__(self) -> str:
        return f"Compiled({self._name})"

    def _repr_html_(self) -> str:
        title = f"{self._name}{self._program.signature()}"
        facts: dict[str, Any] = {**self.cost_analysis(), **self.memory_analysis()}
        facts |= {s.name: f"{s.seconds * 1e3:,.1f} ms" for s in self.compile_report().stages}
        texts = [(stage, self.as_text(stage)) for stage in self._executable.texts]
        return program_html(title, facts, [self._program.shown("jaxpr")], texts)
