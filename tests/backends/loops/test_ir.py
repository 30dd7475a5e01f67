"""The loop IR: how it prints, and what its interpreter makes of it."""

import numpy as np

from funcgrad.backends.loops.builder import Builder
from funcgrad.backends.loops.interpret import apply, run
from funcgrad.backends.loops.ir import (
    INDEX,
    OPS,
    Axis,
    Buffer,
    Const,
    Index,
    Kernel,
    kernel_text,
)

F32 = np.dtype("float32")

SOFTMAX = """\
kernel rows(in x: f32[6], out y: f32[2])
  parallel i < 2:
    parallel j < 3, v0 = add from 0.0:f32:
      v1 = x[3*i + j]
      v2 = exp v1
      v3 = add v0 v2
      next v0 <- v3
    y[i] = v0"""


def sum_of_exp(name="rows"):
    b = Builder()
    x, y = Buffer("x", F32, 6, "in"), Buffer("y", F32, 2, "out")
    i = b.axis(2)

    def turn(j, total):
        value = b.op("exp", F32, b.load(x, Index(0, ((3, i), (1, j)))))
        return [b.op("add", F32, total, value)]

    (total,) = b.loop(3, turn, [Const(0, F32)], ["add"], parallel=True)
    b.store(y, Index(0, ((1, i),)), total)
    return Kernel(name, (x, y), (Axis(i, 2),), tuple(b.blocks[0].stmts))


def test_text():
    assert repr(sum_of_exp()) == SOFTMAX
    assert kernel_text(sum_of_exp("a"), name="") == kernel_text(sum_of_exp("b"), name="")


def test_run():
    x, y = np.arange(6, dtype=F32), np.zeros(2, F32)
    run(sum_of_exp(), [x, y])
    np.testing.assert_allclose(y, np.exp(x.reshape(2, 3)).sum(axis=1), rtol=1e-6)


def test_while_runs_each_point_as_long_as_it_wants():
    b = Builder()
    x = Buffer("x", F32, 4, "inout")
    i = b.axis(4)
    at = Index(0, ((1, i),))
    (out,) = b.while_(
        lambda v: b.op("less", np.dtype(bool), v, Const(10, F32)),
        lambda v: [b.op("multiply", F32, v, Const(2, F32))],
        [b.load(x, at)],
    )
    b.store(x, at, out)
    values = np.array([1, 3, 20, 9], F32)
    run(Kernel("w", (x,), (Axis(i, 4),), tuple(b.blocks[0].stmts)), [values])
    assert values.tolist() == [16, 12, 20, 18]


def test_guards_and_scratch():
    b = Builder()
    x, y = Buffer("x", F32, 3, "in"), Buffer("y", F32, 5, "out")
    tmp = Buffer("tmp", F32, 1, "scratch")
    i = b.axis(5)
    at = Index(0, ((1, i),))
    with b.guarded(b.compare("less", at, 3)):
        value = b.load(x, at)
    b.store(tmp, Index(0), value)
    b.store(y, at, b.load(tmp, Index(0)))
    out = np.ones(5, F32)
    run(Kernel("g", (x, y, tmp), (Axis(i, 5),), tuple(b.blocks[0].stmts)),
        [np.array([1, 2, 3], F32), out])  # fmt: skip
    assert out.tolist() == [1, 2, 3, 0, 0]


def test_every_op_has_a_meaning():
    for name, arity in OPS.items():
        integer = name.startswith(("bitwise", "invert", "left", "right", "count"))
        dtype = np.dtype("int32") if integer else F32
        args = [np.asarray(2, dtype)] * arity
        if name == "where":
            args[0] = np.asarray(True)
        assert apply(name, args[-1].dtype, args) is not None
    assert apply("count_leading_zeros", INDEX, [np.asarray(1)]) == 63
