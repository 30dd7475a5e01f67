"""All ops, transforms and random programs through the whole way of a program on a GPU.

A few of them run on the stand-in of the driver. `pytest -m gpu` runs all on a GPU, where there is
one.
"""

from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, lax
from funcgrad.backends.cuda.device_program import CudaBackend
from funcgrad.core import backend
from funcgrad.core.ir import interpret
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.transforms.jit.jit import jit
from tests.backends.checks import floats, same
from tests.backends.cuda.simulated import layer_norm, numbers, softmax
from tests.backends.cuda.stand_in import launches_of
from tests.backends.test_random_programs import SHAPES, Writer
from tests.op_checks import by_row, operands, typical
from tests.op_samples import ROWS
from tests.test_ops_compiled import check_jit

JIT = [row for row in ROWS if row.cases_for("jit")]
STAND_IN = "cuda-stand-in"


class OnStandIn(CudaBackend):
    """Programs on the stand-in: the simulator runs what the last one that was compiled launches."""

    def __init__(self, fake, gpu):
        super().__init__(lambda: gpu)
        self.fake, self.gpu_, self.starts = fake, gpu, []

    def compile(self, jaxpr, donated, name):
        made = super().compile(jaxpr, donated, name)
        self.starts.append(launches_of(self.fake, made))
        return made


@pytest.fixture
def stand_in(monkeypatch, fake, gpu):
    """The name of the stand-in's backend."""
    monkeypatch.setattr(backend, "_BACKENDS", dict(backend._BACKENDS))
    made = OnStandIn(fake, gpu)
    backend.register_backend(STAND_IN, lambda: made)
    return STAND_IN


def check_op(row, rng, dtype, name):
    cases = row.cases_for("jit")
    check_jit(
        row, cases, [operands(row, c, rng, dtype) for c in cases], jit=partial(jit, backend=name)
    )


@pytest.mark.sampled(20)
@by_row(JIT)
def test_ops(row, rng, stand_in):
    check_op(row, rng, typical(row), stand_in)


@pytest.mark.gpu
@by_row(JIT)
def test_ops_on_a_gpu(row, rng):
    for dtype in row.dtypes:
        check_op(row, rng, dtype, "cuda")


# ---- transforms


def loss(w, x):
    h = layer_norm(fnp.tanh(x @ w))
    return (softmax(h @ w.T) ** 2).sum()


def steps(w, x):
    def body(c, row):
        return fg.checkpoint(lambda c: fnp.sin(c) * row)(c), c.sum()

    return lax.scan(body, x[0], x)[1].sum() + w[0, 0]


TRANSFORMS = {
    "grad": fg.grad(loss, argnums=(0, 1)),
    "vmap of grad": fg.vmap(fg.grad(lambda w, x: loss(w, x[None])), in_axes=(None, 0)),
    "grad of scan and checkpoint": fg.grad(steps, argnums=(0, 1)),
    "hessian of a vector": lambda w, x: fg.hessian(lambda v: (fnp.exp(v) * v).sum())(x[0]),
    "jvp of cond": lambda w, x: fg.jvp(
        lambda v: lax.cond(v.sum() > 0, fnp.sin, fnp.cos, v), (x,), (x,)
    )[1],
    "vmap of while": fg.vmap(
        lambda v: lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2 + 1, v), in_axes=0
    ),
    "random numbers": lambda w, x: fg.random.normal(fg.random.key(3), (5, 7)) + x[0, 0],
}


def check_transform(name, using):
    f, w, x = TRANSFORMS[name], numbers(6, 4), numbers(5, 6)
    args = [x] if name == "vmap of while" else [w, x]
    there = jit(lambda *args: f(*args), backend=using)  # which no cache keeps
    got, want = (fg.tree.leaves(made(*args)) for made in (there, fg.jit(f)))
    for g, y in zip(got, want, strict=True):
        np.testing.assert_allclose(g, y, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name, stand_in):
    check_transform(name, stand_in)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_on_a_gpu(name):
    check_transform(name, "cuda")


# ---- programs from files, and on virtual devices


def check_exported(path, put, using):
    """A program from a file, which captured a matrix: by itself, in `jit`, differentiated."""
    w, x = numbers(6, 4), numbers(5, 6)
    export.export(fg.jit(lambda x: fnp.tanh(x @ fnp.asarray(w)).sum(1)))(x).save(path)
    f = export.load(path)
    for got in (f.call(put(x)), jit(f.call, backend=using)(put(x))):
        np.testing.assert_allclose(got, np.tanh(x @ w).sum(1), rtol=1e-4)
    slope = jit(fg.grad(lambda x: f.call(x).sum()), backend=using)(put(x))
    np.testing.assert_allclose(slope, (1 - np.tanh(x @ w) ** 2) @ w.T, rtol=1e-4, atol=1e-5)


def test_programs_from_files(stand_in, tmp_path):
    check_exported(tmp_path / "f.fg", lambda x: x, stand_in)


@pytest.mark.gpu
def test_programs_from_files_on_a_gpu(tmp_path):
    check_exported(tmp_path / "f.fg", lambda x: fg.device_put(x, "cuda:0"), "cuda")


def check_lockstep(using):
    """Six virtual devices on one GPU: a program that the partitioner cuts, and one of a device."""
    mesh = fg.make_mesh((2, 3), ("x", "y"))
    w, x = numbers(6, 12), numbers(4, 6)

    def sums(x):
        total = lax.psum(x * 2, "x") + lax.axis_index("y")
        return lax.all_gather(total, "y", axis=1, tiled=True)

    by_hand = fg.shard_map(sums, mesh=mesh, in_specs=fg.P("x", "y"), out_specs=fg.P(None, None),
                           check_vma=False)  # fmt: skip
    got = jit(by_hand, backend=using)(x)
    np.testing.assert_allclose(got, 2 * (x[:2] + x[2:]) + [0, 0, 1, 1, 2, 2], rtol=1e-5)
    cut = [fg.device_put(v, fg.NamedSharding(mesh, spec)) for v, spec in (
        (x, fg.P("x", "y")), (w, fg.P("y", None)))]  # fmt: skip
    got = jit(lambda x, w: softmax(fnp.tanh(x @ w)), backend=using)(*cut)
    np.testing.assert_allclose(got, softmax(fnp.tanh(x @ w)), rtol=1e-4)


def test_virtual_devices(stand_in):
    check_lockstep(stand_in)


@pytest.mark.gpu
def test_virtual_devices_on_a_gpu():
    check_lockstep("cuda")


# ---- random programs


def check_random(seed, using):
    args = [floats(*shape, seed=i) for i, shape in enumerate(SHAPES)]

    def fun(*xs):
        writer = Writer(seed, xs)
        for _ in range(1 + seed % 20):
            writer.step()
        return [*writer.values[len(xs) :][:3], writer.values[-1]]

    jaxpr, consts = stage(lambda *xs: fun(*xs), [aval_of(a) for a in args])
    program = backend.backend(using).compile(jaxpr, [False] * len(jaxpr.ins), "random")
    arrays = [*(np.asarray(c) for c in consts), *map(np.asarray, args)]
    with np.errstate(all="ignore"):
        wanted = interpret(jaxpr, np, *arrays)
    for _ in range(2):  # the second time by a graph
        for w, g, v in zip(wanted, program(arrays), jaxpr.outs, strict=True):
            same(g, np.asarray(w).astype(v.aval.dtype))


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed, stand_in):
    check_random(17 * seed + 3, stand_in)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(200))
def test_random_programs_on_a_gpu(seed):
    check_random(seed, "cuda")
