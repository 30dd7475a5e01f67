"""New arrays: of one value, evenly spaced, on grids, from files.

- `creation`: arrays from values, and filled arrays: array, zeros, arange, linspace, eye, …
- `diagonals`: diagonals and triangles of matrices, and the positions of their elements
- `files`: arrays in files, in NumPy's formats
- `grids`: grids of coordinates, and positions in flattened arrays
- `ranges`: evenly spaced numbers: arange, linspace, logspace, geomspace
- `slices`: arrays written as indices: `mgrid[0:3, 0:2]`, `r_[0:3, 7]`, `s_[1:, ...]`
- `windows`: windows of signal processing: vectors that taper towards both ends
"""
