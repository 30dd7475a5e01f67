"""Functions as C libraries: a header, compiled code, weights, and nothing of Python.

- `library`: `aot`: what is written, compiled and linked
- `parts`: a function's compiled code, its arrays and where they lie
- `sources`: the C that joins them, from the templates in the folder `c`
- `toolchain`: the C compiler and its companions
- `measure`: how much memory a run takes
"""
