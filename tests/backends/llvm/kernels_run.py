"""Helpers of this folder's tests: kernels by hand, run natively and by the interpreter."""

import numpy as np

from funcgrad.backends.llvm.build import assemble
from funcgrad.backends.loops import interpret as loops_interpret
from funcgrad.backends.loops.builder import Builder
from funcgrad.backends.loops.ir import Axis, Buffer, Index, Kernel
from funcgrad.backends.program import CopyStep, KernelStep, Program, Ref
from funcgrad.core.aval import ShapedArray

F32, F64, I32 = np.dtype("float32"), np.dtype("float64"), np.dtype("int32")
BOOL = np.dtype(bool)


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
    return assemble(program_of(kernel))(list(arrays))


def run_interpreted(kernel, arrays):
    """The written arrays, by the interpreter."""
    rest, memory = iter(arrays), []
    for b in kernel.params:
        memory.append(np.zeros(b.size, b.dtype) if b.role == "out" else next(rest).copy())
    loops_interpret.run(kernel, memory)
    return [m for m, b in zip(memory, kernel.params, strict=True) if b.role != "in"]


def check(kernel, *arrays, tolerance=0.0):
    """Compare the two."""
    got, wanted = run_native(kernel, arrays), run_interpreted(kernel, arrays)
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)


def kernel(buffers, sizes, write, in_place=()):
    """The kernel whose body write(builder, *axes) writes."""
    b = Builder()
    axes = [b.axis(n) for n in sizes]
    write(b, *axes)
    outer = tuple(Axis(v, n) for v, n in zip(axes, sizes, strict=True))
    return Kernel("test", tuple(buffers), outer, tuple(b.blocks[0].stmts), in_place)


def at(*terms, const=0):
    """The index const + Σ coefficient·value."""
    return Index(const, tuple((c, v) for c, v in terms if c))


def pointwise(name, dtypes, out, n):
    """out[i] = name(in0[i], …)."""
    ins = [Buffer(f"in{k}", d, n, "in") for k, d in enumerate(dtypes)]
    to = Buffer("out", out, n, "out")

    def write(b, i):
        b.store(to, at((1, i)), b.op(name, out, *(b.load(x, at((1, i))) for x in ins)))

    return kernel([*ins, to], [n], write)


def matrix(m, n, axis):
    """Strides of points and of turns, and their numbers, for loops along an axis of (m, n)."""
    return ((n, 1), (m, n)) if axis == 1 else ((1, n), (n, m))
