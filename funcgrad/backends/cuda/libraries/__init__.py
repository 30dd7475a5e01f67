"""What NVIDIA's libraries compute for programs, and how they are called.

- `products`, `convolutions`: as cuBLASLt's and cuDNN's calls, which are data
- `eights`: products of floats of 8 bits, as programs have to be for them
- `cublaslt`, `cudnn`: these libraries by ctypes: descriptors, algorithms
- `library`: what both have in common
- `by_cupy`: what has no kernel, by CuPy
"""
