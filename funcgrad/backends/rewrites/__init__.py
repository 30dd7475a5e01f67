"""Program to program, before lowering: a few ops are written as others.

All of them:

- `normalize`: in which order they go: no calls, no unused equations, fewer kinds of ops
- `equations`: the list of equations that they write to

Products and convolutions:

- `products`: contractions as matrix products, or as sums that fuse with what is near
- `phases`: which convolution a product of windows is: all of it, or one of its phases
- `attention_joint`: attention forward and backward as one op

Sums, pads, scatters:

- `reductions`: reductions to few results in two steps, so that they run in parallel
- `pads`: sums of padded arrays that don't overlap, as concatenations
- `scatters`: scatters of one update into zeros, as selections

Scans:

- `scans`: products out of scans: a large one in place of one each turn

Floats of 8 bits, integers of 4:

- `narrow`: their casts, and what moves them, on bytes

Complex numbers, as pairs of real ones:

- `complex_pairs`: programs
- `complex_math`: arithmetic and functions by their parts
- `complex_matrices`: decompositions and solving

Devices:

- `exchanges`: collectives as exchanges of blocks, and how native code asks for them
"""
