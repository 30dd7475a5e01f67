"""Products of integers whose rows are finished by their tasks: which are, and the same bits."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.build import assemble
from funcgrad.backends.llvm.cpu import CPU
from funcgrad.backends.llvm.drafts import finishes
from funcgrad.backends.plain.interpret import run as run_program
from funcgrad.backends.plan import plan
from funcgrad.backends.program import GemmStep, KernelStep, walk
from funcgrad.transforms.passes.simplify import simplify


def planned(fun, *arrays, donated=None):
    jaxpr = fg.make_jaxpr(fun)(*arrays).jaxpr
    return plan(simplify(jaxpr), donated or [False] * len(arrays), "test", CPU)


def products(program):
    return [s for s in walk(program.steps) if isinstance(s, GemmStep)]


def check(fun, *arrays, joined=1, donated=None):
    """The plan, which finishes the rows of so many products, and natively gives the bits of the
    plan that finishes none."""
    program = planned(fun, *arrays, donated=donated)
    assert sum(s.finish is not None for s in products(program)) == joined, program
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finishes, "LEAST_ROWS", 1 << 62)
        whole = planned(fun, *arrays)
    assert all(s.finish is None for s in products(whole))
    wanted = [np.asarray(x).copy() for x in assemble(whole)([np.array(a) for a in arrays])]
    found = assemble(program)([np.array(a) for a in arrays])
    for got, same in zip(found, wanted, strict=True):
        assert got.dtype == same.dtype
        np.testing.assert_array_equal(got, same)
    return program, wanted


def meant(program, arrays):
    return run_program(program, [np.array(a) for a in arrays])


def codes(rng, *shape):
    return rng.integers(-128, 128, shape).astype(np.int8)


def dot(a, b):
    return fnp.matmul(a, b, preferred_element_type="int32")


def layer(a, b, scale, bias, zero):
    y = (dot(a, b) - zero).astype("float32") * scale + bias
    return fnp.clip(fnp.round(fnp.maximum(y, 0) / 3), -127, 127).astype("int8")


def operands(m, k, n, seed=0):
    rng = np.random.default_rng(seed)
    scale, bias = rng.random((2, n), np.float32)
    zero = rng.integers(-100, 100, n).astype(np.int32)
    return codes(rng, m, k), codes(rng, k, n), scale / 100, bias, zero


@pytest.mark.parametrize(
    ("m", "k", "n"), [(64, 40, 16), (101, 77, 130), (1200, 33, 48), (70, 3000, 65)]
)
def test_a_layer_has_no_memory_for_sums(m, k, n):
    arrays = operands(m, k, n)
    program, wanted = check(layer, *arrays)
    assert program.arena_bytes == 0
    assert not any(isinstance(s, KernelStep) for s in program.steps)
    a, b, scale, bias, zero = arrays
    sums = a.astype(np.int64) @ b.astype(np.int64) - zero
    y = np.maximum(sums.astype(np.float32) * scale + bias, 0) / np.float32(3)
    found = wanted[0].astype(int) - np.clip(np.round(y), -127, 127)
    # A fused multiply-add may round a tie the other way.
    assert np.abs(found).max() <= 1
    assert np.mean(found != 0) < 1e-3


def test_the_interpreter_means_the_same():
    arrays = operands(64, 40, 16)
    program, wanted = check(layer, *arrays)
    np.testing.assert_array_equal(meant(program, arrays)[0], wanted[0])
    assert "band[16, 1] = " in str(program)


def test_sums_that_others_read_are_kept():
    a, b, scale, *_ = operands(80, 40, 32)

    def f(a, b, scale):
        y = dot(a, b)
        q = fnp.clip(y.astype("float32") * scale, -127, 127).astype("int8")
        return q, fnp.sum(y, axis=0)

    program, _ = check(f, a, b, scale)
    assert products(program)[0].c.space == "arena"


def test_a_residual_block():
    rng = np.random.default_rng(1)
    w = codes(rng, 2, 32, 32)
    x = rng.standard_normal((96, 32), np.float32)

    def f(x, w):
        for i in range(2):
            q = fnp.clip(fnp.round(x * 20), -127, 127).astype("int8")
            x = fnp.maximum(x + dot(q, w[i]).astype("float32") / 4000, 0)
        return x

    check(f, x, w, joined=2, donated=[True, False])


def test_what_is_made_of_rows():
    a, b, scale, *_ = operands(90, 50, 40)
    check(lambda a, b, s: fg.nn.softmax(dot(a, b).astype("float32") * s / 9), a, b, scale)


def test_in_a_scan():
    rng = np.random.default_rng(2)
    x, w = codes(rng, 64, 32), codes(rng, 3, 32, 32)

    def turn(x, w):
        return fnp.clip(fnp.round(dot(x, w).astype("float32") / 64), -127, 127).astype("int8"), None

    check(lambda x, w: fg.lax.scan(turn, x, w)[0], x, w)


@pytest.mark.parametrize("f", [
    lambda a, b: fnp.sum(dot(a, b), axis=0),
    lambda a, b: dot(a, b).T.astype("float32") * 2,
    lambda a, b: dot(a, b)[::-1].astype("float32") * 2,
    lambda a, b: dot(a[:32], b).astype("float32") * 2,
    lambda a, b: dot(a, b),
])  # fmt: skip
def test_others_stay_as_they_are(f):
    a, b, *_ = operands(64, 40, 16)
    check(f, a, b, joined=0)
