"""From kernels of the loop language to LLVM's IR.

The way of a kernel:

- `kernels`: kernels to machine code: equal ones once, new ones on all processors
- `schedule`: the order of its axes, tiles, blocks, and parts for threads
- `emitter`: the kernel's function: statements of a point, what is around and inside
- `levels`: the loops around a point
- `loops`: the loops among its statements
- `ops`: the scalar ops, a function each
- `text`: LLVM's IR as text
- `facts`: what is asked about statements before they are written

Kernels rewritten before:

- `abreast`: rows abreast: reductions of several rows in one loop
- `split`: reductions to few results, cut in two for threads
- `unroll`: short axes whose points read different arrays, written out
- `wide`: copies of pairs, as copies of wider elements

What makes them faster:

- `edges`: loops are cut where a guard changes
- `block`: a block of points is the innermost loop
- `pairs`: bfloat16, two elements at a time
- `sums`: long sums in blocks
- `stage`: tiles read in long strides are transposed first
- `transpose`: in registers
- `stream`: large results are written past the caches
- `tables`: numbers from short tables, in registers
- `ahead`: rows that a later turn reads are asked for in time
- `half_calls`: conversions of float16 for processors that lack them
"""
