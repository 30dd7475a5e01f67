"""Ops by the names of `jax.extend.core.primitives`: `sin_p`, `scan_p`, … as `funcgrad.lax` has
them. A name that isn't there has no op of its own: its function is made of others.

>>> from funcgrad.extend.core import primitives
>>> fg.make_jaxpr(lambda x: fnp.sum(x))(fnp.ones(3)).eqns[0].primitive is primitives.reduce_sum_p
True
"""

from funcgrad import lax
from funcgrad.core.primitive import Primitive
from funcgrad.transforms.control.jit_primitive import jit_p
from funcgrad.transforms.derivatives.checkpoint import checkpoint_p as remat_p

__all__ = ["jit_p", "remat_p"]


def __getattr__(name: str) -> Primitive:
    if name.endswith("_p"):
        for module in (lax, lax.linalg):
            found = getattr(module, name, None)
            if isinstance(found, Primitive):
                return found
    raise AttributeError(f"module 'funcgrad.extend.core.primitives' has no attribute {name!r}")
