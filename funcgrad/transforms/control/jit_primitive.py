"""The `jit` primitive: a call of a program, run as one compiled unit, transformed as a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from funcgrad.core import context
from funcgrad.core.array import raw
from funcgrad.core.backend import DEFAULT, Executable, spmd
from funcgrad.core.backend import backend as load
from funcgrad.core.buffers import compiler, memory_of
from funcgrad.core.ir import Jaxpr, call_types, eval_jaxpr, interpret
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.process.gc_pause import no_collections
from funcgrad.core.types import ArrayModule, PlainArray, Values
from funcgrad.ops.sharding import jaxpr_meshes
from funcgrad.transforms.autodiff.partial_eval import partial_eval_jaxpr
from funcgrad.transforms.control import calls


def executable(
    jaxpr: Jaxpr, donated: tuple[bool, ...], name: str, using: str = DEFAULT
) -> Executable:
    """The compiled program, compiled once for each backend and donation."""

    def compiled() -> Executable:
        with no_collections():
            return load(using).compile(jaxpr, donated, name)

    return jaxpr.derive(("executable", using, donated), compiled)


def _impl(xp: ArrayModule, *values: PlainArray, jaxpr: Jaxpr, name: str, donated: Sequence[bool],
          backend: str) -> list:  # fmt: skip
    checking = context.watches_values()
    if xp is not np:
        memory = memory_of(values[0]) if values else None
        if checking or memory is None or not memory.backends:
            return interpret(jaxpr, xp, *values)
        backend = compiler(f"jit({name})", backend, memory.device(values[0]))
    elif checking:
        # Op by op, so that the operation that makes a NaN is found.
        with context.keys_unwatched():
            return [raw(x) for x in eval_jaxpr(jaxpr, *values)]
    if jaxpr_meshes(jaxpr):
        return spmd().run_global(jaxpr, values, name, backend)
    return executable(jaxpr, (False,) * len(values), name, backend)(values)


def _call(what: str, name: str, backend: str) -> Callable:
    return lambda jaxpr, args, cts=(): call_jaxpr(jaxpr, [*args, *cts], f"{what}({name})", backend)


jit_p = Primitive(
    name="jit",
    abstract=lambda *avals, jaxpr, **rest: call_types("jit", jaxpr, avals),
    impl=_impl,
    jvp=lambda primals, tangents, *, jaxpr, name, donated, backend: calls.push_forward(
        jaxpr, primals, tangents, _call("jvp", name, backend)
    ),
    transpose=lambda ct, *args, jaxpr, name, donated, backend: calls.pull_back(
        jaxpr, ct, args, _call("transpose", name, backend)
    ),
    batch=lambda axis, args, dims, *, jaxpr, name, donated, backend: calls.over_lanes(
        jaxpr, axis, args, dims, _call("vmap", name, backend)
    ),
    dims=NoRule("partitioning looks into the program"),
    partial=lambda unknown, eqn: calls.split(
        unknown, eqn, partial_eval_jaxpr(eqn.params["jaxpr"], unknown)
    ),
    dce=calls.dce,
    multiple=True,
    call=True,
)


def call_jaxpr(jaxpr: Jaxpr, args: Values, name: str, using: str = DEFAULT) -> list:
    """Call a program as a unit, under the current trace."""
    donated = (False,) * len(args)
    return jit_p.bind(*args, jaxpr=jaxpr, name=name, donated=donated, backend=using)
