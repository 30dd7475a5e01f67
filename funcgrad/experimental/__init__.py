"""What JAX keeps in `jax.experimental`: differential equations in `ode`, checks in `checkify`."""

from funcgrad.experimental import checkify, ode

__all__ = ["checkify", "ode"]
