"""Steps that run in Python: batches of matrices are cut into parts, errors arrive."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.backends.llvm.host_run import run_host_step
from funcgrad.backends.llvm.runtime import pool
from funcgrad.backends.program import HostStep
from funcgrad.backends.rewrites.products import product_p
from funcgrad.core.ir import Var
from funcgrad.core.trace import aval_of
from funcgrad.ops.linalg import lapack
from tests.backends.checks import program


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("batch", [(40,), (1,), (2, 20), (0,)])
def test_batches_in_parts(batch, threads, rng):
    pool.set_num_threads(threads)
    a = rng.standard_normal((*batch, 32, 32)).astype(np.float32)

    def fun(a):
        return [lax.linalg.svd(a, compute_uv=False), *lax.linalg.eig(a)]

    for got, wanted in zip(fg.jit(fun)(a), fun(fg.numpy.asarray(a)), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))


def test_an_error_in_a_thread_is_raised(rng, monkeypatch):
    """That of the second part, if its matrices make one."""
    pool.set_num_threads(2)
    a = rng.standard_normal((40, 32, 32)).astype(np.float32)
    step = next(s for s in program(lambda a: lax.linalg.eig(a), a)[2].steps
                if isinstance(s, HostStep))  # fmt: skip
    eig = lapack.eig

    def fails(x, vectors):
        if np.array_equal(x[-1], a[-1]):
            raise np.linalg.LinAlgError("eigenvalues did not converge")
        return eig(x, vectors)

    monkeypatch.setattr(lapack, "eig", fails)
    outs = [np.empty(v.aval.shape, v.aval.dtype) for v in step.outs]
    with pytest.raises(np.linalg.LinAlgError):
        run_host_step(step, [a], outs)


def test_a_product_of_pairs(rng):
    """What `pairs` says of a product is another thing than what it says of views of pairs."""
    x, y = (rng.standard_normal((4, 4, 2)).astype(np.float32) for _ in range(2))
    params = {"dimension_numbers": (((1,), (0,)), ((), ())), "permutation": (0, 1, 2),
              "gathers": False, "exact": True, "pairs": True, "convolution": None,
              "rounded": False}  # fmt: skip
    ins, out = [Var(aval_of(v)) for v in (x, y)], Var(aval_of(x))
    found = np.empty_like(x)
    run_host_step(HostStep(product_p, params, ins, [out]), [x, y], [found])
    wanted = (x[..., 0] + 1j * x[..., 1]) @ (y[..., 0] + 1j * y[..., 1])
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], wanted, rtol=1e-5)
