"""Helpers of this folder's tests: kernels by hand, run natively and by the interpreter."""

import numpy as np

from funcgrad.backends import loops_interpret
from funcgrad.backends.llvm.executable import Executable
from funcgrad.backends.loops import INDEX, Axis, Buffer, Index, Kernel, Load, Op, Store, Value
from funcgrad.backends.program import CopyStep, KernelStep, Program, Ref
from funcgrad.core.aval import ShapedArray


def program_of(kernel):
    """The program that runs one kernel; what it reads and writes is copied first."""
    ins, outs, refs, steps = [], [], [], []
    for b in kernel.params:
        aval = ShapedArray((b.size,), b.dtype)
        if b.role in ("in", "inout"):
            ins.append(aval)
            ref = Ref("input", len(ins) - 1)
        if b.role in ("out", "inout"):
            outs.append(aval)
            to = Ref("output", len(outs) - 1)
            if b.role == "inout":
                steps.append(CopyStep(ref, to, aval.nbytes))
            ref = to
        refs.append(ref)
    return Program("test", tuple(ins), tuple(outs), (*steps, KernelStep(kernel, tuple(refs))), 0)


def run_native(kernel, arrays):
    """The written arrays, by the compiled kernel, given the read ones."""
    return Executable(program_of(kernel))(list(arrays))


def run_interpreted(kernel, arrays):
    """The written arrays, by the interpreter."""
    rest, memory = iter(arrays), []
    for b in kernel.params:
        memory.append(np.zeros(b.size, b.dtype) if b.role == "out" else next(rest).copy())
    loops_interpret.run(kernel, memory)
    return [m for m, b in zip(memory, kernel.params, strict=True) if b.role != "in"]


def flat(axis):
    return Index(0, ((1, axis),))


def pointwise(name, dtypes, out, n):
    """out[i] = name(in0[i], …)."""
    axis = Value(INDEX)
    ins = [Buffer(f"in{k}", d, n, "in") for k, d in enumerate(dtypes)]
    to = Buffer("out", out, n, "out")
    values = [Value(d) for d in dtypes]
    result = Value(out)
    body = [Load(v, b, flat(axis)) for v, b in zip(values, ins, strict=True)]
    body += [Op(result, name, tuple(values)), Store(to, flat(axis), result)]
    return Kernel(name, (*ins, to), (Axis(axis, n),), tuple(body))
