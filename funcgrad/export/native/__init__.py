"""Functions as C libraries: a header, compiled code, weights, and nothing of Python.

- `library`: `aot`: what is written, compiled and linked
- `codes`: a function's compiled code, for this processor or another
- `parts`: code, arrays and where they lie
- `sources`: the C that joins them, and headers, from the templates in the folder `c`
- `toolchain`: the C compiler and its companions
- `measure`: how much memory a run takes
"""
