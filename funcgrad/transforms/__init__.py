"""Transformations: of functions (by tracing them) and of programs (jaxpr to jaxpr)."""
