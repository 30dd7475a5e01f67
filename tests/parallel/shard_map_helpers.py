"""What the tests of shard_map share: meshes, values, comparisons, counts of collectives."""

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.core.ir import typecheck
from funcgrad.parallel import P, make_mesh, shard_map
from funcgrad.parallel.mapping.varying_programs import collectives

LINE = make_mesh((4,), "i")
GRID = make_mesh((2, 2), ("i", "j"))
X = np.linspace(-0.7, 1.5, 32, dtype=np.float32).reshape(8, 4)
W = np.linspace(-0.5, 1, 12, dtype=np.float32).reshape(4, 3)
B = np.array([0.1, -0.2, 0.3], np.float32)


def close(got, want, tol=2e-5):
    tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=tol, atol=tol), got, want)


def mapped(f, mesh, in_specs, out_specs, **options):
    return shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)


def sums(f, *args):
    """The collectives of a function's program by their axes."""
    closed = fg.make_jaxpr(f)(*args)
    typecheck(closed.jaxpr)
    return sorted(collectives(closed.jaxpr))


def layer(reduce):
    def loss(params, x):
        h = fnp.tanh(x @ params["w"] + params["b"])
        return reduce(fnp.mean(h**2))

    return loss


PARAMS = {"w": W, "b": B}
plain_loss = layer(lambda v: v)
data_parallel = mapped(layer(lambda v: lax.pmean(v, "i")), LINE, (P(), P("i")), P())


def check_like_plain(f, plain, *args, tol=1e-4):
    close(f(*args), plain(*args), tol)
    close(fg.jit(f)(*args), plain(*args), tol)
    total = lambda f: lambda *a: sum(fnp.sum(v) for v in tree.leaves(f(*a)))
    nums = tuple(range(len(args)))
    close(fg.grad(total(f), nums)(*args), fg.grad(total(plain), nums)(*args), tol)
    close(fg.jit(fg.grad(total(f), nums))(*args), fg.grad(total(plain), nums)(*args), tol)
