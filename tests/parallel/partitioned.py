"""Per-device programs in tests: how they are made, run on all devices at once, and counted."""

from collections import Counter

import numpy as np

from funcgrad.core.context import scoped
from funcgrad.core.ir import interpret, sub_jaxprs, typecheck
from funcgrad.core.sharding import NamedSharding, PartitionSpec
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.parallel.partitioner.partition import partition
from funcgrad.parallel.runtimes.lockstep import lockstep
from funcgrad.transforms.passes.simplify import simplify

COLLECTIVES = ("psum", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "ppermute")


def traced(fun, args):
    """The program of a function of flat arguments to a list, and all of its inputs."""
    jaxpr, consts = stage(fun, [aval_of(x) for x in args])
    return simplify(jaxpr, barriers=True), [*consts, *args]


def sharded(mesh, *specs):
    """Shardings from specs or cuts; None stays None."""

    def one(s):
        if s is None or isinstance(s, NamedSharding):
            return s
        spec = s if isinstance(s, PartitionSpec) else PartitionSpec(*s)
        return NamedSharding(mesh, spec)

    return [one(s) for s in specs]


def run(program, args):
    """The results of a per-device program on whole arrays, all devices in lockstep, by numpy."""
    return interpret(lockstep(program), np, *(np.asarray(x) for x in args))


def checked(program):
    """The program, after its types have been checked."""
    with scoped(axes=program.mesh.shape):
        typecheck(program.jaxpr)
    return program


def partitioned(fun, args, mesh, specs):
    """A function's per-device program, its program and all inputs of both."""
    jaxpr, args = traced(fun, args)
    shardings = [None] * (len(args) - len(specs)) + sharded(mesh, *specs)
    program = partition(jaxpr, mesh, shardings)
    return program, jaxpr, args


def counts(program):
    """How many collectives of each kind the program has, those in loops once."""
    found = Counter()

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.prim.name in COLLECTIVES:
                found[eqn.prim.name] += 1
            for sub in sub_jaxprs(eqn):
                walk(sub)

    walk(program.jaxpr)
    return dict(found)
