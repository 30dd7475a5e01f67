"""What JAX keeps in `jax.experimental`: equations in `ode`, checks in `checkify`, and `jet`."""

from funcgrad.experimental import checkify, jet, ode

__all__ = ["checkify", "jet", "ode"]
