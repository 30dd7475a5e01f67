"""Matrix products and convolutions as generated code.

The face:

- `functions`: one function a pair of formats serves all shapes and strides
- `steps`: how a program's products are calls of them
- `driver`: what such a function does: batches, choice of a way, rounding
- `trial`: the same on numbers, to learn which way it would go
- `job`: the records in memory that all share, limits of blocks, symbols

Operands:

- `pack`: packing, and the number formats
- `packers`: packers as libraries of their own
- `gather`: packing of rows and columns that begin anywhere
- `frames`: copies with zeros around them

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

Ways for convolutions, whose windows are gathered or lie in images:

- `windows`: batches of gathered windows against one A
- `placed`: windows that are read where they lie
- `strips`: windows of image lines, vectors of a line against all features
- `lines`: windows of image lines and few features
- `columns`: few windows, and features that follow each other
- `sums`: gradients of kernels whose features come last

Ways by tiles, of fewer multiplications:

- `tiles`: what they share
- `tiles_last`: what they share where channels come last
- `winograd`: windows of 3×3 elements
- `winograd_last`: the same where channels come last
- `winograd_kernel`: gradients of kernels of 3×3 elements
- `winograd_kernel_last`: the same where channels come last
- `winograd_phases`: convolutions that double images
"""
