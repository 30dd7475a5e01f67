"""What runs beside compiled programs: threads, memory, and the way in.

- `pool`: one thread pool for all generated code: a fork-join loop
- `scratch`: scratch memory, kept between calls
- `routine`: functions that host steps call, and how they are compiled
- `memory`: memory of programs and of large eager results, kept after use
- `memory_code`: the native code of this allocator
- `lapack`: names by which generated code calls NumPy's LAPACK
- `run_code`: the native function that runs any program on lists of arrays
"""
