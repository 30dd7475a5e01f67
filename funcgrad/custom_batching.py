"""Functions with a rule of their own for `vmap`, by the names of `jax.custom_batching`."""

from funcgrad.transforms.control.custom_vmap import custom_vmap, sequential_vmap

__all__ = ["custom_vmap", "sequential_vmap"]
