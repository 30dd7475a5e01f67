"""What an NVIDIA GPU does with the programs that a backend would give it, measured without one.

`first` alone asks the backend itself: the half hour that comes first on a GPU.

`python -m benchmarks.cuda --out DIR` runs each measurement in a process of its own, so that one
that ends badly leaves the others alone, and writes a JSON file of each. docs/cuda.md says what was
found, and what it decides.

- `driver`: the driver's library by ctypes; `texts`: LLVM's text to PTX
- `bits`: scalar ops' bits beside the CPU's, and the time that linking takes; `scalars`: their texts
- `launches`: what a launch, a graph's node and a copied flag cost a native host function;
  `launching`: their texts
- `products`: matrix products and their epilogues; `cublaslt`: cuBLASLt by ctypes
- `bandwidth`: elementwise kernels and rows; `streams`: their texts
- `layouts`: columns, transposes, lookups, scattered sums; `tiles`: their texts
- `attention`: attention's forward pass on tensor cores; `flash`: its text
- `blocking`: which of CuPy's calls wait for the device, and which a capture takes
"""
