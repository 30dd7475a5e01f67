"""Matrix products and convolutions as generated code.

The face:

- `functions`: one function a pair of formats serves all shapes and strides
- `steps`: how a program's products are calls of them
- `driver`: what such a function does: batches, choice of a way, rounding
- `gathered`: the same for operands that have axes
- `trial`: the same on numbers, to learn which way it would go
- `words`: the records in memory that all share, and limits of blocks
- `job`: the kernels, packers and symbols of one format

Operands:

- `pack`: packing, and the number formats
- `packers`: packers as libraries of their own
- `gather`: packing of rows and columns that begin anywhere

Innermost loops:

- `registers`: the register tile: sums that stay in registers, and come to C
- `kernels`: micro-kernels: the loops over k around it
- `micro`: micro-kernels as libraries of their own

Ways for products:

- `packed`: all that is neither small nor thin
- `own`: its tasks that pack what no other task reads
- `unpacked`: small and thin products: little or nothing is packed
- `batch`: batches of small products
- `long`: a small C that is a long sum: parts of k on several threads

Ways for convolutions:

- `images`: windows that are gathered, or read where they lie in images
- `winograd`: by tiles, of fewer multiplications
"""
