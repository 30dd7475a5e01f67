"""The vocabulary of programs: primitives, a file a family. Nothing here knows of a backend.

For users there are `segment_sum`, `segment_prod`, `segment_max` and `segment_min`, those of
`jax.ops`; the ops themselves are in `funcgrad.lax`.
"""

from funcgrad.ops.segment import segment_max, segment_min, segment_prod, segment_sum

__all__ = ["segment_max", "segment_min", "segment_prod", "segment_sum"]
