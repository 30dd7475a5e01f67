"""What NVIDIA's libraries compute for programs, and how they are called.

- `products`: products as cuBLASLt's calls, which are data
- `eights`: those of floats of 8 bits, as programs have to be for them
- `cublaslt`: its library by ctypes: descriptors, algorithms
- `by_cupy`: what has no kernel, by CuPy
"""
