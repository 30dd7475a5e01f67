"""What JAX keeps in `jax.experimental`: differential equations in `ode`."""

from funcgrad.experimental import ode

__all__ = ["ode"]
