"""Program to program, for this processor: what `normalize` writes as other ops.

Convolutions:

- `convolution`: as products: each window of the operand is a row
- `tiles`: which are multiplied by tiles: Winograd's F(2×2, 3×3)
- `frames`: whose operands are read as if zeros were around them
- `small_images`: of many small images, as if features came last
- `unmet`: without the elements of kernels that meet nothing but padding

Sums, scatters, sorts:

- `running`: running sums of few long rows in parts
- `scatters`: which way a scatter goes
- `elements`: scatters of very many single elements
- `csr`: products of sparse matrices that don't need each other, as one
- `rows`: scatters that combine whole rows, row by row
- `shuffles`: sorts by random words, as shuffles

Scans:

- `scan_blocks`: scans in blocks of turns, where products before them would fill memory
- `panels`: matrices of a scan's products, laid out before it

Constants:

- `constants`: matrices that never change, laid out once for products of few rows
"""
