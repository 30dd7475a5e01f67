"""`jet`: derivatives of higher order along a curve, at JAX's address."""

from funcgrad.transforms.derivatives.taylor import jet

__all__ = ["jet"]
