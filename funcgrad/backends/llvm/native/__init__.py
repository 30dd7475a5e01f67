"""Machine code: written, compiled, kept on disk, loaded.

What it is for:

- `target`: the host's processor, or a named level of it
- `caches`: the sizes of its caches
- `foreign`: other processors, whose code is written alone

Making it:

- `ir`: LLVM's IR as text: types, values, functions, modules
- `builder`: writes instructions into functions
- `code`: writing them with Python's operators
- `compiler`: LLVM at work: text in, object code out
- `libllvm`: LLVM by the C functions of llvmlite's library
- `together`: tasks on all processors, while more of them come

Keeping and loading it:

- `engine`: compiled, or found on disk; linked; unloaded when it is dead
- `later`: code that runs as it is soonest translated, until its optimized form is there
- `images`: objects laid out as they lie in memory, so that nothing has to link them
- `linker`: links the others, by way of LLVM
- `objects`: compiled code on disk
- `sources`: digests of sources, which stand for the code that they write
"""
