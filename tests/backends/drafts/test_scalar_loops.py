"""Loops over a few numbers as kernels: interpreted and compiled, against the loops' definition."""

import ml_dtypes  # noqa: F401 (it names bfloat16)
import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.program import LoopStep, WhileStep, walk
from tests.backends.checks import check, floats, integers, same


def loops(planned):
    """How many loops over steps a program has."""
    return sum(isinstance(s, LoopStep | WhileStep) for s in walk(planned.steps))


def compare(fun, *arrays, left=0, exact=False):
    """Compare the interpreted and the compiled program with the ops; how many loops are left."""
    planned = check(fun, *arrays, exact=exact)
    assert loops(planned) == left, planned
    compiled, wanted = fg.jit(fun)(*arrays), fun(*map(fnp.asarray, arrays))
    for g, w in zip(compiled, wanted, strict=True):
        same(np.asarray(g), np.asarray(w), exact)
    return planned


def collatz(n):
    """Steps until a number is 1, and the largest number on the way."""

    def turn(state):
        n, steps, most = state
        n = lax.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, n)
        return n, steps + 1, fnp.maximum(most, n)

    return lax.while_loop(lambda s: s[0] != 1, turn, (n, 0, n))


def newton(x):
    """A square root, until it changes no more, and whether it was found."""

    def turn(state):
        y, _, i = state
        new = 0.5 * (y + x / y)
        return new, abs(new - y) <= 1e-6 * y, i + 1

    return lax.while_loop(lambda s: ~s[1] & (s[2] < 50), turn, (x, False, np.int8(0)))


@pytest.mark.parametrize("n", [1, 7, 27])
def test_while(n):
    compare(lambda n: list(collatz(n)), np.int32(n), exact=True)


@pytest.mark.parametrize("x", [2.0, np.inf, np.nan, 0.0])
def test_while_of_several_types(x):
    compare(lambda x: list(newton(x)), np.float32(x))


def test_while_reads_what_is_around():
    # The first place from which on there is no smaller number.
    def find(xs, limit):
        return [
            lax.while_loop(
                lambda i: (i < xs.shape[0]) & (lax.dynamic_index_in_dim(xs, i, 0, False) < limit),
                lambda i: i + 1,
                0,
            )
        ]

    xs = np.arange(50, dtype=np.float32) ** 2
    for limit in (-1, 30, 99999):
        compare(find, xs, np.float32(limit), exact=True)
    compare(lambda n: find(n.reshape(6).astype("float32"), 3.0), np.arange(6).reshape(2, 3))


def test_a_value_carried_twice_and_swapped():
    def turn(state):
        a, b, _ = state
        return b, a + b, a

    compare(lambda a: list(lax.while_loop(lambda s: s[1] < 100, turn, (a, a, a))), np.int32(1),
            exact=True)  # fmt: skip


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int32", "uint8"])
def test_scan(reverse, dtype):
    def run(xs):
        def turn(carry, x):
            new = carry + x * carry.dtype.type(2)
            return new, (carry, x - new)

        last, (a, b) = lax.scan(turn, xs[0], xs, reverse=reverse)
        return [last, a, b]

    compare(run, integers(33).astype(np.dtype(dtype)))


def test_scan_over_booleans():
    def run(xs):
        return list(lax.scan(lambda c, x: (c ^ x, c & ~x), False, xs))

    compare(run, integers(41) > 0, exact=True)


def test_small_vectors():
    # An orbit: places and speeds have two coordinates.
    def run(place, speed):
        def turn(state, _):
            place, speed = state
            speed = speed - 0.01 * place / fnp.sum(place**2) ** 1.5
            return (place + 0.01 * speed, speed), place

        (place, speed), path = lax.scan(turn, (place, speed), None, length=20)
        return [place, speed, path]

    compare(run, np.float32([1, 0.5]), np.float32([0, 1]))


def test_matrices_of_two_rows():
    def run(m):
        step = fnp.asarray([[1.0, 1.0], [1.0, 0.0]])
        return [lax.fori_loop(0, 10, lambda i, m: m[::-1].T + step[i % 2], m)]

    compare(run, floats(2, 2))


def test_rows_of_scanned_arrays_and_elements_by_number():
    def run(xs, table):
        def turn(total, row):
            at = (row[0] > 0).astype("int32") + 2 * (row[1] > 0)
            pair = fnp.stack([total, row[2]])
            return total + table[at], pair[at % 2]

        return list(lax.scan(turn, 0.0, xs))

    compare(run, floats(30, 5), floats(4))


def test_loops_inside():
    def run(n, xs):
        def outer(i, total):
            inner = lax.fori_loop(0, 5, lambda j, t: t + i * j, total)
            return lax.while_loop(lambda t: t > 1000, lambda t: t // 2, inner) + n

        def row(total, x):
            return lax.fori_loop(0, 3, lambda j, t: t * 0.5 + x, total), total

        return [lax.fori_loop(0, 50, outer, n), *lax.scan(row, 0.0, xs)]

    compare(run, np.int32(3), floats(7))


@pytest.mark.long
def test_turns_that_carry_nothing_are_points():
    planned = compare(lambda xs: [lax.map(lambda n: collatz(n)[1], xs)],
                      np.arange(1, 300, dtype=np.int32), exact=True)  # fmt: skip
    assert "parallel i < 299" in str(planned)


def test_random_numbers():
    def run(seed):
        def turn(state, _):
            key, total = state
            key, new = fg.random.split(key)
            return (key, total + fg.random.uniform(new)), total

        (_, total), sums = lax.scan(turn, (fg.random.key(seed), 0.0), None, length=5)
        return [total, sums]

    fun = fg.jit(run)
    for g, w in zip(fun(3), run(3), strict=True):
        same(np.asarray(g), np.asarray(w))


def test_what_stays_a_loop_over_steps():
    wide = floats(9)
    compare(lambda x: [lax.fori_loop(0, 3, lambda i, x: fnp.sin(x), x)], wide, left=1)
    compare(lambda x: [lax.fori_loop(0, 3, lambda i, t: t + fnp.sum(x * t), 0.5)], wide, left=1)
    # Both branches would always be computed, and one of them need not end.
    compare(lambda n: [lax.fori_loop(0, 3, lambda i, t: lax.cond(
        t > 0, lambda t: lax.while_loop(lambda t: t > 5, lambda t: t - 1, t), lambda t: t - 1, t
    ), n)], np.int32(9), left=1)  # fmt: skip
    compare(lambda xs: list(lax.scan(lambda c, x: (c + x, c), 0.0, xs)), floats(0), left=1)


def test_operands_in_their_own_memory():
    def double(n, x):
        return lax.while_loop(lambda s: s[0] > 0, lambda s: (s[0] - 1, s[1] * 2), (n, x))

    f = fg.jit(double, donate_argnums=(0, 1))
    for n in (0, 4):
        a, b = f(fnp.asarray(n), fnp.asarray(3.0))
        assert (int(a), float(b)) == (0, 3.0 * 2**n)


def test_derivatives_and_batches():
    def power(x):
        return lax.fori_loop(0, 5, lambda i, t: fnp.sin(t) * x, x)

    for f in (fg.grad(power), fg.grad(fg.grad(power)), fg.jacfwd(power)):
        same(np.asarray(fg.jit(f)(0.7)), np.asarray(f(0.7)))
    xs = floats(6)
    same(np.asarray(fg.jit(fg.vmap(fg.grad(power)))(xs)), np.asarray(fg.vmap(fg.grad(power))(xs)))
    steps = fg.vmap(lambda n: collatz(n)[1])
    same(np.asarray(fg.jit(steps)(np.arange(1, 9))), np.asarray(steps(np.arange(1, 9))), True)
