"""What NVIDIA's libraries compute for programs, and how they are called.

- `products`: products as cuBLASLt's calls, which are data
- `cublaslt`: its library by ctypes: descriptors, algorithms
- `by_cupy`: what has no kernel, by CuPy
"""
