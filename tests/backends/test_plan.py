"""Planned programs: fusion, control flow, and memory that is reused at the right time."""

import ml_dtypes
import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.program import CondStep, CopyStep, GemmStep, LoopStep, walk
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import broadcast_p, sum_p, transpose_p
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.elementwise import arithmetic, transcendental
from funcgrad.ops.elementwise.convert import convert_element_type_p
from funcgrad.ops.families import add
from funcgrad.ops.indexing.windows_at import dynamic_update_slice_p
from funcgrad.ops.reduce import max_p
from funcgrad.ops.shape import reshape_p
from funcgrad.ops.sort import sort_p
from funcgrad.transforms.control.cond import cond_p
from funcgrad.transforms.control.jit_primitive import call_jaxpr
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p
from tests.backends.checks import check, floats, kernels, limited, program

mul, sub, div, exp = arithmetic.mul, arithmetic.sub, arithmetic.div, transcendental.exp
sqrt, rsqrt, tanh = arithmetic.sqrt, arithmetic.rsqrt, transcendental.tanh


def rows(x, n):
    """x with a last axis of size n added."""
    shape = (*x.shape, n)
    return broadcast_p.bind(x, shape=shape, broadcast_dimensions=tuple(range(x.ndim)))


def columns(x, n):
    return broadcast_p.bind(x, shape=(n, *x.shape), broadcast_dimensions=(1,))


def mean(x):
    return div.bind(sum_p.bind(x, axes=(x.ndim - 1,)), np.float32(x.shape[-1]))


def softmax(x):
    n, last = x.shape[-1], (x.ndim - 1,)
    e = exp(sub.bind(x, rows(max_p.bind(x, axes=last), n)))
    return div.bind(e, rows(sum_p.bind(e, axes=last), n))


def layer_norm(x, scale, shift):
    n = x.shape[-1]
    d = sub.bind(x, rows(mean(x), n))
    r = rsqrt.bind(add.bind(mean(mul.bind(d, d)), np.float32(1e-5)))
    y = mul.bind(mul.bind(d, rows(r, n)), columns(scale, x.shape[0]))
    return add.bind(y, columns(shift, x.shape[0]))


def dot(x, y):
    numbers = (((x.ndim - 1,), (0,)), ((), ()))
    return dot_general_p.bind(x, y, dimension_numbers=numbers, preferred_element_type=None)


def body(fun, *arrays):
    jaxpr, consts = stage(fun, [aval_of(np.asarray(a)) for a in arrays])
    assert not consts
    return jaxpr


# ---- fusion


def test_softmax_is_one_kernel():
    planned = check(lambda x: [softmax(x)], floats(300, 70))
    assert kernels(planned) == 1
    assert planned.arena_bytes == 0


def test_layer_norm_is_one_kernel():
    planned = check(lambda *a: [layer_norm(*a)], floats(300, 70), floats(70), floats(70))
    assert kernels(planned) == 1


def test_softmax_of_any_rank():
    assert kernels(check(lambda x: [softmax(x)], floats(2, 3, 50, 70))) == 1


def test_adam_is_one_kernel():
    def adam(p, m, v, g):
        m = add.bind(mul.bind(m, np.float32(0.9)), mul.bind(g, np.float32(0.1)))
        v = add.bind(mul.bind(v, np.float32(0.99)), mul.bind(mul.bind(g, g), np.float32(0.01)))
        step = div.bind(m, add.bind(sqrt(v), np.float32(1e-8)))
        return [sub.bind(p, mul.bind(step, np.float32(1e-3))), m, v]

    args = [floats(30, 200, seed=i) for i in range(4)]
    args[2] = np.abs(args[2])
    planned = check(adam, *args, donated=[True, True, True, False])
    assert kernels(planned) == 1
    assert planned.aliases == {0: 0, 1: 1, 2: 2}


def test_column_sums_share_a_kernel():
    def fun(x, y):
        return [sum_p.bind(x, axes=(0,)), sum_p.bind(mul.bind(x, y), axes=(0,))]

    assert kernels(check(fun, floats(50, 90), floats(50, 90))) == 1


def test_costly_values_are_computed_once():
    def fun(x):
        e = exp(x)
        return [transpose_p.bind(e, permutation=(1, 0)), sum_p.bind(e, axes=(0,))]

    planned = check(fun, floats(60, 70))
    assert sum("exp" in repr(k) for k in planned.kernels()) == 1


def test_equal_kernels_are_one():
    def fun(x, w):
        for _ in range(4):
            x = tanh(dot(x, w))
        return [x]

    planned = check(fun, floats(20, 20), floats(20, 20))
    assert kernels(planned) == 4
    assert len(planned.kernels()) == 1


def test_narrow_floats_round_once_an_op():
    def fun(x):
        x = convert_element_type_p.bind(x, new_dtype=np.dtype("float16"))
        return [softmax(x), sum_p.bind(x, axes=(0,)), div.bind(x, exp(x))]

    check(fun, floats(40, 30))


@pytest.mark.parametrize(
    ("dtype", "out", "text"),
    [
        (ml_dtypes.bfloat16, None, "gemm bfloat16 2"),
        (np.float16, None, "gemm float16 to float32 2"),
        (ml_dtypes.bfloat16, np.float32, "gemm bfloat16 to float32 2"),
        (np.int8, None, "gemm int8 to int32 2"),
        (np.int8, np.int64, "gemm int8 to int32 2"),
        (np.int8, np.float32, "gemm int8 to int32 2"),
    ],
)
def test_products_read_narrow_operands_as_they_are(dtype, out, text):
    x, y = ((floats(*s) * 30).astype(dtype) for s in ((20, 3, 9), (3, 13, 9)))

    def product(x, y):
        numbers = (((2,), (2,)), ((1,), (0,)))
        wide = None if out is None else np.dtype(out)
        return [dot_general_p.bind(x, y, dimension_numbers=numbers, preferred_element_type=wide)]

    planned = check(product, x, y, exact=dtype == np.int8)
    assert text in str(planned), str(planned)


def test_long_sums_of_int8_are_exact():
    k = 1 << 17
    x, y = (np.full(s, -128, np.int8) for s in ((16, k), (k, 16)))

    def product(x, y):
        numbers = (((1,), (0,)), ((), ()))
        wide = np.dtype(np.int64)
        return [dot_general_p.bind(x, y, dimension_numbers=numbers, preferred_element_type=wide)]

    _, _, planned = program(product, x, y)
    assert "gemm" not in str(planned)
    planned = check(product, x[:, 1:], y[1:], exact=True)
    assert "int8 to int32" in str(planned)


def test_reshapes_inside_fusion():
    def fun(x):
        y = reshape_p.bind(exp(x), new_sizes=(4, 6, 35))
        y = transpose_p.bind(y, permutation=(1, 0, 2))
        return [reshape_p.bind(add.bind(y, y), new_sizes=(6, 140)), sum_p.bind(y, axes=(2,))]

    check(fun, floats(24, 35))


def test_attention():
    def attention(x, w):
        qkv = reshape_p.bind(dot(x, w), new_sizes=(2, 9, 3, 4, 8))
        qkv = transpose_p.bind(qkv, permutation=(2, 0, 3, 1, 4))
        parts = []
        for i in range(3):
            from funcgrad.ops.shape import slice_p

            part = slice_p.bind(qkv, start_indices=(i, 0, 0, 0, 0),
                                limit_indices=(i + 1, 2, 4, 9, 8), strides=None)  # fmt: skip
            parts.append(reshape_p.bind(part, new_sizes=(2, 4, 9, 8)))
        q, k, v = parts
        batch = (0, 1), (0, 1)
        s = dot_general_p.bind(q, k, dimension_numbers=(((3,), (3,)), batch),
                               preferred_element_type=None)  # fmt: skip
        o = dot_general_p.bind(softmax(s), v, dimension_numbers=(((3,), (2,)), batch),
                               preferred_element_type=None)  # fmt: skip
        o = transpose_p.bind(o, permutation=(0, 2, 1, 3))
        return [reshape_p.bind(o, new_sizes=(2, 9, 32))]

    planned = check(attention, floats(2, 9, 32), floats(32, 96))
    assert sum(isinstance(s, GemmStep) for s in walk(planned.steps)) == 3
    assert kernels(planned) == 1


# ---- calls and control flow


def test_calls_are_inlined():
    inner = body(lambda x: [mul.bind(x, x)], floats(5))
    planned = check(lambda x: [add.bind(call_jaxpr(inner, [x], "f")[0], x)], floats(5))
    assert kernels(planned) == 1


def scan(fun, n_consts, n_carry, length, *args, reverse=False, like):
    jaxpr = body(fun, *like)
    return scan_p.bind(*args, jaxpr=jaxpr, length=length, reverse=reverse, unroll=1,
                       n_consts=n_consts, n_carry=n_carry)  # fmt: skip


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse):
    def step(w, h, x):
        h = tanh(add.bind(dot(h, w), x))
        return [h, mul.bind(h, h)]

    w, h, xs = floats(12, 12), floats(6, 12), floats(5, 6, 12)
    planned = check(lambda *a: scan(step, 1, 1, 5, *a, reverse=reverse, like=[w, h, xs[0]]),
                    w, h, xs)  # fmt: skip
    assert any(isinstance(s, LoopStep) for s in planned.steps)


def test_scan_that_swaps_its_carries():
    def step(a, b, x):
        return [b, add.bind(a, x), a, x]

    a, b, xs = floats(7), floats(7, seed=1), floats(4, 7)
    check(lambda *args: scan(step, 0, 2, 4, *args, like=[a, b, xs[0]]), a, b, xs, exact=True)
    check(lambda c, x: scan(step, 0, 2, 4, c, c, x, like=[a, b, xs[0]]), a, xs, exact=True)


def test_scan_updates_its_carry_in_place():
    def step(buffer, i):
        row = exp(broadcast_p.bind(convert_element_type_p.bind(i, new_dtype=buffer.dtype),
                                   shape=(1, 6), broadcast_dimensions=()))  # fmt: skip
        buffer = dynamic_update_slice_p.bind(buffer, row, i, np.int32(0))
        return [buffer]

    buffer, i = floats(8, 6), np.arange(3, dtype=np.int32)
    planned = check(lambda *a: scan(step, 0, 1, 3, *a, like=[buffer, i[0]]), buffer, i)
    loop = next(s for s in planned.steps if isinstance(s, LoopStep))
    assert not any(isinstance(s, CopyStep) for s in walk(loop.body))
    donated = check(lambda *a: scan(step, 0, 1, 3, *a, like=[buffer, i[0]]), buffer, i,
                    donated=[True, False])  # fmt: skip
    assert donated.aliases == {0: 0}
    assert not any(isinstance(s, CopyStep) for s in walk(donated.steps))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 7])
def test_scan_with_large_carries_does_two_turns_at_a_time(length, reverse, monkeypatch):
    def step(w, a, b, x):
        moved = transpose_p.bind(dot(a, w), permutation=(1, 0))
        new = add.bind(sub.bind(moved, b), rows(x, 8))
        return [new, a, mul.bind(sum_p.bind(new, axes=(1,)), x), x]

    limited(monkeypatch, swapped_bytes=1)
    w, a, b, xs = floats(8, 8, seed=3) / 4, floats(8, 8), floats(8, 8, seed=1), floats(length, 8)
    like = [w, a, b, floats(8)]
    planned = check(lambda *args: scan(step, 1, 2, length, *args, reverse=reverse, like=like),
                    w, a, b, xs)  # fmt: skip
    loops = [s for s in planned.steps if isinstance(s, LoopStep)]
    assert [s.length for s in loops] == [length if length < 2 else length // 2]
    if length > 1:
        large = [s for s in loops[0].body if isinstance(s, CopyStep) and s.nbytes >= a.nbytes]
        assert not large


def test_two_turns_at_a_time_in_two_turns_at_a_time(monkeypatch):
    def inner(c, x):
        return [sub.bind(transpose_p.bind(c, permutation=(1, 0)), x), mul.bind(c, x)]

    def outer(c, row):
        c, ys = scan(inner, 0, 1, 3, c, row, like=[floats(4, 4), floats(4, 4)])
        return [c, ys]

    limited(monkeypatch, swapped_bytes=1)
    xs = floats(5, 3, 4, 4)
    check(lambda *a: scan(outer, 0, 1, 5, *a, like=[floats(4, 4), xs[0]]),
          floats(4, 4), xs, exact=True)  # fmt: skip


def test_nested_scans():
    def inner(c, x):
        return [add.bind(c, x), mul.bind(c, x)]

    def outer(c, row):
        c, ys = scan(inner, 0, 1, 4, c, row, like=[np.float32(0), np.float32(0)])
        return [c, ys]

    xs = floats(3, 4)
    check(lambda *a: scan(outer, 0, 1, 3, *a, like=[np.float32(0), xs[0]]),
          np.float32(1), xs)  # fmt: skip


def test_while():
    def test(limit, x):
        return [arithmetic_less(sum_p.bind(x, axes=(0,)), limit)]

    def turn(x):
        return [add.bind(x, np.float32(1))]

    x, limit = floats(5), np.float32(40)
    cond_jaxpr, body_jaxpr = body(test, limit, x), body(turn, x)
    planned = check(
        lambda limit, x: while_p.bind(limit, x, cond_jaxpr=cond_jaxpr, body_jaxpr=body_jaxpr,
                                      n_cond=1, n_body=0), limit, x,
    )  # fmt: skip
    assert planned.arena_bytes <= 128


def arithmetic_less(x, y):
    from funcgrad.ops.elementwise.compare import lt

    return lt.bind(x, y)


def test_branches_that_pass_a_value_on_copy_nothing():
    """A value that a loop carries through branches stays where it is, and is changed in place."""

    def turn(x, row):
        k, y = row
        branches = [lambda: x, lambda: x + y, lambda: fnp.tanh(x) @ x, lambda: fnp.flip(x)]
        return lax.switch(k, branches), None

    f = lambda x, ks, ys: lax.scan(turn, x, (ks, ys))[0]
    x, ys = np.eye(64, dtype=np.float32) / 2, np.linspace(0, 1, 320, dtype=np.float32)
    ks = np.array([0, 1, 2, 3, 1], np.int32)
    args = x, ks, ys.reshape(5, 64)
    np.testing.assert_allclose(fg.jit(f)(*args), f(*args), rtol=1e-5)
    steps = program(lambda *args: [f(*args)], *args)[2].steps
    conds = [s for loop in steps if isinstance(loop, LoopStep) for s in loop.body]
    conds = [s for s in [*conds, *steps] if isinstance(s, CondStep)]
    assert conds
    for cond in conds:
        unchanged, added, *_ = cond.branches
        assert not unchanged
        assert not any(isinstance(s, CopyStep) for s in added)


def test_branches_keep_what_is_read_later():
    """What others read, or what two results begin as, isn't overwritten."""

    def f(k, x):
        y = x * 2
        a, b = lax.switch(
            k, [lambda: (y, y), lambda: (y + 1, y), lambda: (fnp.flip(y), y[::2][0] + y)]
        )
        return a, b, y

    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    for k in range(3):
        for got, want in zip(fg.jit(f)(np.int32(k), x), f(np.int32(k), x), strict=True):
            np.testing.assert_array_equal(got, want)

    def passed(k, x):
        y, z = fnp.sin(x), fnp.cos(x)
        return lax.switch(k, [lambda: (y, z), lambda: (z, y), lambda: (z + y, y)])

    for k in range(3):
        for got, want in zip(fg.jit(passed)(np.int32(k), x), passed(np.int32(k), x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_cond(index):
    branches = tuple(
        body(f, floats(4), floats(4))
        for f in (
            lambda x, y: [x, add.bind(x, y)],
            lambda x, y: [exp(x), y],
            lambda x, y: [y, y],
        )
    )
    check(lambda i, x, y: cond_p.bind(i, x, add.bind(y, y), branches=branches),
          np.int32(index), floats(4), floats(4, seed=3))  # fmt: skip


# ---- memory


def test_temporaries_are_reused():
    def fun(x, w):
        for _ in range(6):
            x = dot(x, w)
        return [x]

    planned = check(fun, floats(32, 32), floats(32, 32) * np.float32(0.1))
    assert planned.arena_bytes == 2 * 32 * 32 * 4


def test_outputs_that_are_inputs_or_each_other():
    def fun(x, y):
        z = add.bind(x, y)
        return [x, z, z, reshape_p.bind(z, new_sizes=(6,)), np.float32(2)]

    check(fun, floats(2, 3), floats(2, 3))


def test_donated_inputs():
    def fun(x, y):
        return [y, add.bind(x, x), sum_p.bind(y, axes=(0,))]

    planned = check(fun, floats(4, 3), floats(4, 3), donated=[True, True])
    assert planned.aliases == {0: 1, 1: 0}


def test_donated_and_still_read():
    def fun(x):
        y = exp(x)
        (s,) = sort_p.bind(y, dimension=0, is_stable=True, num_keys=1)
        return [s, mul.bind(x, s), sub.bind(x, transpose_p.bind(x, permutation=(1, 0)))]

    check(fun, floats(4, 4), donated=[True])


def test_in_place_only_where_elements_stay():
    def fun(x):
        y = exp(x)
        z = add.bind(y, transpose_p.bind(y, permutation=(1, 0)))
        return [mul.bind(dot(z, z), z)]

    check(fun, floats(16, 16))


def test_what_a_result_is_written_over_lies_in_its_place():
    x, w = floats(20, 12), floats(12, 30)
    planned = check(lambda x, w: [mul.bind(*[dot(x, w)] * 2)], x, w)
    assert planned.arena_bytes == 0
    # Two results of one kernel can't both lie over the product.
    two = check(lambda x, w: (lambda p: [tanh(p), exp.bind(p)])(dot(x, w)), x, w)
    assert two.arena_bytes == 0
    three = check(lambda x, w: (lambda p: [tanh(p), exp.bind(tanh(p)), p])(dot(x, w)), x, w)
    assert three.arena_bytes == 0


@pytest.mark.parametrize("donated", [False, True])
def test_a_second_value_is_not_written_into_a_results_place(donated):
    def f(x, w):
        p = dot(x, w)
        a, b = tanh(p), exp.bind(p)
        return [a, dot(b, w), mul.bind(b, b)]

    x, w = floats(12, 12), floats(12, 12)
    check(f, x, w, donated=[donated, False])
    check(lambda x, w: f(x, w)[::-1], x, w, donated=[donated, False])


def test_what_an_update_begins_as_lies_in_its_result():
    def f(x, i):
        return [fg.numpy.zeros((100, 200)).at[i].add(x)]

    planned = check(f, floats(50, 200), np.arange(50, dtype=np.int32))
    assert not any(isinstance(s, CopyStep) for s in walk(planned.steps))
    assert planned.arena_bytes < 4096
