"""What `jit` makes on its way, by the names of `jax.stages`: `jit(f).trace(x).lower().compile()`.

>>> import funcgrad as fg
>>> isinstance(fg.jit(lambda x: x).lower(1.0), fg.stages.Lowered)
True
"""

from funcgrad.transforms.jit.jit import Jitted as Wrapped
from funcgrad.transforms.jit.stages import ArgInfo, Compiled, Lowered, Traced

__all__ = ["ArgInfo", "Compiled", "Lowered", "Traced", "Wrapped"]
