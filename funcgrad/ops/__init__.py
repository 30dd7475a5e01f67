"""The vocabulary of programs: primitives, a file a family. Nothing here knows of a backend.

For users there are `segment_sum`, `segment_prod`, `segment_max` and `segment_min`, those of
`jax.ops`; the ops themselves are in `funcgrad.lax`.

- `base`: the three structural ops on which the rules of all others stand
- `identities`: what an equation may be simplified to
- `families`: families of elementwise ops: one formula and one derivative make a primitive
- `elementwise`: ops on single elements
- `special_math`: the special functions as scalar programs
- `shape`: ops that move elements and compute nothing
- `slicing`: joining and cutting
- `indexing`: reading and writing at positions, known or computed
- `contract`: sums of products over any axes of two arrays
- `csr`: products of a matrix of few entries with a dense one
- `csr_codes`: the same with one of 8 or 4 bits and a scale a row
- `convolution`: ops that look through windows
- `reduce`: reductions over axes
- `folds`: reductions and merged updates by an operator alone
- `cumulative`: running sums, products and extrema
- `sort`: sorting, and the greatest
- `linalg`: decompositions of matrices and solving with them
- `fft`: discrete Fourier transforms
- `random`: the counter-based generator under all random numbers
- `collective`: sums and exchanges over named axes
- `sharding`: how a value is cut over a mesh
- `barrier`: identities that mean something to transformations
- `precision`: how exact products have to be
- `arguments`: static arguments, checked in the user's terms
"""

from funcgrad.ops.indexing.segment import segment_max, segment_min, segment_prod, segment_sum

__all__ = ["segment_max", "segment_min", "segment_prod", "segment_sum"]
