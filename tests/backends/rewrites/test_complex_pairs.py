"""Complex programs as real ones: what becomes kernels and products, and what runs as it is."""

import itertools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.llvm.runtime import pool
from funcgrad.backends.program import GemmStep, walk
from funcgrad.backends.rewrites.complex_pairs import as_pairs
from tests.backends.checks import check, hosts, kernels, program


def numbers(*shape, seed=0, dtype="complex64"):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


def products(planned):
    return sum(isinstance(s, GemmStep) for s in walk(planned.steps))


def jitted(fun, *args):
    """Assert that a function gives compiled what it gives at once."""
    got, wanted = fg.jit(fun)(*args), fun(*(fnp.asarray(a) for a in args))
    for g, w in zip(fg.tree.leaves(got), fg.tree.leaves(wanted), strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=2e-5, atol=2e-5)


# ---- what is computed by kernels


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_a_chain_is_one_kernel(dtype):
    z, w = numbers(30, dtype=dtype), numbers(30, seed=1, dtype=dtype)
    planned = check(lambda z, w: [fnp.exp(z) * w / (w + 2), abs(z - 1j)], z, w)
    assert (kernels(planned), hosts(planned)) == (1, [])
    assert [a.dtype for a in planned.outs] == [z.dtype, z.real.dtype]


@pytest.mark.parametrize("name", ["mul", "sub", "div"])
@pytest.mark.parametrize("shapes", [((4, 3), (3,)), ((), (5,)), ((0, 3), (3,)), ((), ())])
def test_broadcasting(name, shapes):
    f = {"mul": lambda a, b: a * b, "sub": lambda a, b: a - b, "div": lambda a, b: a / b}[name]
    jitted(f, *(numbers(*s, seed=i) for i, s in enumerate(shapes)))


def test_real_and_complex_operands_mix():
    x = np.arange(6, dtype=np.float32)
    jitted(lambda x: [(x + 1j * x).conj(), x * (1 - 2j), fnp.asarray(x, "complex64").imag], x)


MOVES = {
    "transpose": lambda z: z.T * 1,
    "of what is computed": lambda z: (z * z).T.reshape(-1),
    "reshape": lambda z: z.reshape(3, 8),
    "slice": lambda z: z[1:, ::2],
    "reverse": lambda z: z[::-1, ::-1],
    "concatenate": lambda z: fnp.concatenate([z, z[:, :2], z[:, 1:] * 2], axis=1),
    "pad": lambda z: fnp.pad(z, 1, constant_values=1j),
    "broadcast": lambda z: fnp.broadcast_to(z[:, None], (4, 2, 6)),
    "gather": lambda z: z[np.array([3, 0, 0]), np.array([1, 5, 2])],
    "update": lambda z: z.at[1].set(2j).at[2:, 3].add(1).at[np.array([0, 0])].add(1j),
    "dynamic": lambda z: lax.dynamic_slice(z, (z.real.argmax() % 2, 1), (3, 4)),
    "where": lambda z: fnp.where(z.real > 0, z, z.conj()),
    "sum": lambda z: [z.sum(), z.sum(0), z.mean(1), fnp.cumsum(z, 1)],
    "roll": lambda z: fnp.roll(z, (1, -2), (0, 1)),
    "convert": lambda z: [z.astype("complex128"), z.astype(bool), z.real.astype(int)],
    "constant": lambda z: z + fnp.asarray(numbers(4, 6, seed=3)),
    "compare": lambda z: [z == z.conj(), z != 0, fnp.isnan(z)],
}


@pytest.mark.parametrize("name", MOVES)
def test_moving(name):
    z = numbers(4, 6)
    assert hosts(program(lambda z: fg.tree.leaves(MOVES[name](z)), z)[2]) == []
    jitted(MOVES[name], z)
    jitted(lambda z: MOVES[name](z * 2), z)


@pytest.mark.parametrize("fill", [None, 9, 1 + 2j])
def test_gathers_fill_with_complex_numbers(fill):
    i = np.array([2, 7], "int32")
    jitted(lambda z, i: z.at[i].get(mode="fill", fill_value=fill), numbers(5), i)


def test_parts_of_a_result_are_written_by_one_kernel_side_by_side():
    planned = check(lambda z: [z * z + 1j], numbers(64))
    (kernel,) = planned.kernels()
    assert [b.size for b in kernel.params] == [128, 128]


def test_loops_carry_pairs():
    xs = numbers(20, 3)

    def scanned(xs):
        return lax.scan(lambda h, x: (h * 0.9j + x, abs(h)), fnp.zeros(3, "complex64"), xs)

    def escaped(c):
        def step(_, s):
            z, n = s
            z = z * z + c
            return z, n + (abs(z) < 2)

        return lax.fori_loop(0, 9, step, (fnp.zeros_like(c), fnp.zeros(c.shape, "int32")))[1]

    def doubled(a):
        return lax.while_loop(lambda s: abs(s) < 100, lambda s: s * (1 + 0.5j) + a, a)

    def chosen(z):
        return lax.cond(z.real.sum() > 0, lambda z: z * 2, lambda z: z - 1j, z)

    for f, arg in ((scanned, xs), (escaped, xs), (doubled, xs[0, 0]), (chosen, xs), (chosen, -xs)):
        jitted(f, arg)
        assert hosts(program(lambda z, f=f: fg.tree.leaves(f(z)), arg)[2]) == []


def test_gradients_and_vmap():
    def loss(z):
        return (abs(fnp.exp(z) * z) ** 2).sum() + fnp.log(z).imag.sum()

    z = numbers(7)
    jitted(fg.grad(loss), z)
    jitted(lambda z: fg.jvp(fg.grad(loss), (z,), (z,))[1], z)
    jitted(fg.vmap(lambda a, b: a @ b.conj()), numbers(5, 4), numbers(5, 4, seed=1))


def test_donated_arguments():
    z = fnp.asarray(numbers(100))
    wanted = np.asarray(z) * 2
    np.testing.assert_allclose(fg.jit(lambda z: z * 2, donate_argnums=0)(z), wanted)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("n", [11, 25, 100])
def test_masks_from_memory_choose(n, dtype):
    """LLVM ends the process on vectors that such masks have chosen, if pairs are made of them."""
    z, w, mask = numbers(n, dtype=dtype), numbers(n, seed=1, dtype=dtype), np.arange(n) % 3 > 0
    jitted(lambda m, z, w: fnp.where(m, z * 2, w.conj()), mask, z, w)
    jitted(lambda m, z, w: fnp.where(m, z / w, z), mask, z, w)
    jitted(lambda m, z: fnp.where(m > 0, z * z, fnp.nan_to_num(z)), mask.astype("int32"), z)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_gives_the_same_bits(threads):
    z = numbers(300, 700)

    def f(z):
        return fnp.tanh(z) * z.sum(1)[:, None]

    pool.set_num_threads(1)
    wanted = np.asarray(fg.jit(f)(z))
    fg.clear_caches()
    pool.set_num_threads(threads)
    np.testing.assert_array_equal(np.asarray(fg.jit(f)(z)), wanted)


# ---- products


DOTS = [
    "ij,jk->ik", "ij,kj->ik", "ji,jk->ik", "bij,bjk->bik", "bij,bkj->bik", "bhij,jk->bhik",
    "ijk,jkl->il", "i,i->", "ij,j->i", "j,jk->k", "i,j->ij", "bi,bi->b",
]  # fmt: skip


@pytest.mark.parametrize("spec", DOTS)
@pytest.mark.parametrize("sizes", [(3, 4, 5, 2, 2, 3), (40, 3, 33, 2, 3, 2)])
def test_products(spec, sizes):
    of = dict(zip("ijklbh", sizes, strict=True))
    shapes = [tuple(of[c] for c in part) for part in spec.split("->")[0].split(",")]
    args = [numbers(*s, seed=i) for i, s in enumerate(shapes)]
    jitted(lambda a, b: fnp.einsum(spec, a, b), *args)
    jitted(lambda a, b: fnp.einsum(spec, a * 2, b.conj()) + 1, *args)


# What products read where it lies.
IN_PLACE = {
    "as it is": lambda a, b: a @ b,
    "transposed": lambda a, b: a.T @ b.T,
    "of a row": lambda a, b: a[3] @ b,
    "of a column": lambda a, b: a @ b[:, 3],
    "turned round": lambda a, b: (a @ b).T,
    "slices": lambda a, b: a[3:, ::2] @ b[5:21, 1:],
    "reversed": lambda a, b: a[::-1, ::-1] @ b[:, ::-1],
    "batches": lambda a, b: a.reshape(4, 8, 32) @ b.T.reshape(8, 4, 32).transpose(1, 2, 0),
    "a matrix for all": lambda a, b: a.reshape(4, 8, 32) @ b,
    "parts": lambda a, b: lax.slice(a @ b, (1, 0), (31, 32)).real,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_products_read_pairs_where_they_lie(name, dtype):
    f, a, b = IN_PLACE[name], *(numbers(32, 32, seed=i, dtype=dtype) for i in (0, 1))
    planned = check(lambda a, b: [f(a, b)], a, b)
    found = [s for s in walk(planned.steps) if isinstance(s, GemmStep)]
    assert {s.dtype for s in found} == {a.dtype}
    assert (len(found), kernels(planned)) == (1, int(name == "parts"))
    assert hosts(planned) == []
    jitted(f, a, b)


def test_products_read_conjugates_in_the_order_of_what_they_are_of():
    a, b = numbers(8, 16), numbers(24, 16, seed=1)
    for f in (lambda a, b: a @ b.T.conj(), lambda a, b: a @ (b.conj() * 2).T):
        planned = check(lambda a, b, f=f: [f(a, b)], a, b)
        (step,) = (s for s in walk(planned.steps) if isinstance(s, GemmStep))
        assert (step.b_strides, kernels(planned)) == ((1, 16), 1)
    planned = check(lambda b: [b.T.conj() + 1, b.T.conj().imag, b.conj().T], b)
    assert (kernels(planned), hosts(planned)) == (1, [])


@pytest.mark.parametrize("rows", [2, 64])
def test_a_product_is_one_product(rows):
    planned = check(lambda a, b: [a @ b], numbers(rows, 16), numbers(16, 32, seed=1))
    assert (products(planned), hosts(planned)) == (1, [])


def test_small_products_and_those_of_two_vectors_are_sums():
    for a, b in ((numbers(4, 4), numbers(4, 4, seed=1)), (numbers(900), numbers(900, seed=1))):
        planned = check(lambda a, b: [a @ b], a, b)
        assert (products(planned), hosts(planned)) == (0, [])


TRANSFORMED = {
    "gradients": lambda a, b: fg.grad(lambda a, b: (abs(a @ b.conj().T) ** 2).sum(), (0, 1))(a, b),
    "tangents": lambda a, b: fg.jvp(lambda a, b: (a @ b) @ a, (a, b), (b, a)),
    "a batch": lambda a, b: fg.vmap(lambda x, y: x @ y @ x, (0, 1))(
        a.reshape(4, 6, 24), b.reshape(24, 4, 6)
    ),
    "a loop": lambda a, b: lax.scan(lambda h, _: (h @ b * 0.05, h[:, 0]), a, None, length=5),
    "both operands conjugate": lambda a, b: (a * 2).conj() @ (b + 1).T.conj(),
    "axes apart": lambda a, b: fnp.einsum("ijk,kli->jl", a.reshape(6, 4, 24), b.reshape(24, 4, 6)),
    "joined": lambda a, b: fnp.concatenate([a @ b, b @ a], 1),
}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_products_in_transformed_programs(name, threads):
    pool.set_num_threads(threads)
    a, b = (numbers(24, 24, seed=i) / 5 for i in (0, 1))
    planned = check(lambda a, b: fg.tree.leaves(TRANSFORMED[name](a, b)), a, b)
    assert any(s.dtype == a.dtype for s in walk(planned.steps) if isinstance(s, GemmStep))
    assert hosts(planned) == []
    jitted(TRANSFORMED[name], a, b)


@pytest.mark.parametrize("rows", [2, 30])
def test_products_in_a_wider_dtype(rows):
    a, b = numbers(rows, 5), numbers(5, 6, seed=1)
    jitted(lambda a, b: fnp.matmul(a, b, preferred_element_type="complex128"), a, b)
    jitted(lambda a, b: lax.conv_general_dilated(
        a, b, (1,), "SAME", preferred_element_type="complex128"),
        numbers(2, 3, 20), numbers(4, 3, 5, seed=1))  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_products_with_real_numbers(dtype):
    a, b = np.arange(400).reshape(20, 20).astype(dtype), numbers(20, 20)
    for x, y in ((a, b), (b, a), (a[:2, :2], b[:2, :2])):
        jitted(lambda x, y: fnp.matmul(x, y, preferred_element_type="complex64"), x, y)
    jitted(lambda x, y: lax.conv_general_dilated(
        x, y, (1,), "SAME", preferred_element_type="complex64"),
        a.reshape(4, 5, 20), numbers(4, 5, 3))  # fmt: skip


def test_convolution():
    jitted(lambda a, b: lax.conv_general_dilated(a, b, (2,), "SAME"),
           numbers(2, 3, 20), numbers(4, 3, 5, seed=1))  # fmt: skip


# ---- what runs as it is


def test_ops_without_a_formula_run_on_complex_views():
    z = numbers(5, 5)
    planned = check(lambda z: [fnp.sort(z * 1j, 1) + 1, z.prod(1), z ** z.conj()], z)
    assert hosts(planned) == ["on_complex"] * 3
    jitted(lambda z: fnp.linalg.eigvals(z + z.real), z)
    jitted(lambda z: fnp.linalg.inv(z), z)
    jitted(lambda z: fnp.linalg.det(z), z)


@pytest.mark.parametrize("shape", [(8, 6), (3, 8, 6), (2, 3, 4, 6), (1, 2)])
@pytest.mark.parametrize("kind", ["fft", "ifft", "rfft", "irfft"])
def test_fourier_transforms(shape, kind):
    z = numbers(*shape)
    x = z.real.copy() if kind == "rfft" else z
    for name in (kind, f"{kind}2", f"{kind}n"):
        jitted(lambda x, name=name: getattr(fnp.fft, name)(x) * 2, x)


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_transformed_in_parallel(threads):
    pool.set_num_threads(threads)
    z = numbers(70, 1024)
    jitted(lambda z: fnp.fft.ifft(fnp.fft.fft(z) * 2), z)
    jitted(lambda z: fnp.fft.irfft(fnp.fft.rfft(z.real)), z)


def test_programs_that_stay_complex():
    z = numbers(10)
    seen = []

    def called(z):
        fg.debug.callback(lambda x: seen.append(x.dtype), z)
        like = fg.ShapeDtypeStruct((10,), "complex64")
        return fg.pure_callback(lambda x: np.asarray(x) * 2, like, z * z)

    jaxpr = fg.make_jaxpr(called)(z).jaxpr
    assert as_pairs(jaxpr, 0) is jaxpr
    np.testing.assert_allclose(fg.jit(called)(z), 2 * z * z, rtol=1e-5)
    assert seen == [z.dtype]


def test_collectives_stay_complex():
    z = numbers(2, 5)
    f = fg.vmap(lambda v: lax.psum(v * 1j, "i"), axis_name="i")
    jitted(f, z)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (2, 1, 3)])
def test_small_and_empty(shape):
    z = numbers(*shape)
    for f in (lambda z: z * 2 + 1j, lambda z: abs(z), lambda z: z.sum(), lambda z: z.T + z.real.T):
        jitted(f, z)


def test_strides_of_arguments():
    z = numbers(6, 8)
    for view in (z.T, z[::2, 1::3], z[::-1], z[:, :0]):
        jitted(lambda z: fnp.sqrt(z) * z.conj(), view)


def test_random_chains(rng):
    """Programs of random elementwise ops, moves and sums."""
    ops = [
        lambda a, b: a * b, lambda a, b: a + b.conj(), lambda a, b: a / (2 + abs(b)),
        lambda a, b: fnp.exp(1j * a.real) + b, lambda a, b: a.T.reshape(a.shape) - b,
        lambda a, b: fnp.where(a.real > b.imag, a, b), lambda a, b: a[::-1] + b.sum(0),
        lambda a, b: lax.complex(abs(a), b.real), lambda a, b: fnp.roll(a, 1, 1) * 0.5 + b * 1j,
    ]  # fmt: skip
    for seed, steps in itertools.product(range(12), (3, 7)):
        picks = np.random.default_rng(seed).integers(0, len(ops), steps)

        def f(a, b, picks=picks):
            for p in picks:
                a, b = ops[p](a, b), a
            return a, b

        jitted(f, numbers(4, 6, seed=seed), numbers(4, 6, seed=seed + 100))
