"""Program to program, before lowering: a few ops are written as others.

All of them:

- `normalize`: in which order they go: no calls, no unused equations, fewer kinds of ops
- `equations`: the list of equations that they write to

Products and convolutions:

- `products`: contractions as matrix products, or as sums that fuse with what is near
- `small_images`: convolutions of many small images, as if features came last
- `unmet`: convolutions without the elements of kernels that meet nothing but padding
- `attention_joint`: attention forward and backward as one op

Sums, pads, scatters, sorts:

- `reductions`: reductions to few results in two steps, so that they run in parallel
- `running`: running sums of few long rows in parts
- `pads`: sums of padded arrays that don't overlap, as concatenations
- `scatters`: scatters of one update into zeros, as selections
- `elements`: scatters of very many single elements
- `rows`: scatters that combine whole rows, row by row
- `shuffles`: sorts by random words, as shuffles

Scans:

- `scans`: products out of scans: a large one in place of one each turn
- `scan_blocks`: scans in blocks of turns, where that would fill memory
- `panels`: matrices of a scan's products, laid out before it

Complex numbers, as pairs of real ones:

- `complex_pairs`: programs
- `complex_math`: arithmetic and functions by their parts
- `complex_matrices`: decompositions and solving

Devices:

- `exchanges`: collectives as exchanges of blocks, and how native code asks for them
"""
