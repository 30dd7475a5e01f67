"""Host steps that generated code runs, in place of a primitive's `impl`.

- `table`: which: those of `matrix` and `sort`, and these
- `elements`: scatters of very many single elements: a task owns a range of the target
- `csr`: products of sparse matrices with dense ones, many at a time
- `rows`: the order of updates by the rows they go to
- `fft_rows`: Fourier transforms of many rows, a row in each lane
- `fft_long`: the same of rows that are long, or few
- `fft_chirp`: the same of lengths with large prime factors
- `fft_passes`: what both share: complex vectors, and passes over them
- `copies`: copies of much memory, shared among threads
"""
