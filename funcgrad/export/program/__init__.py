"""Programs as JSON and back.

- `vocabulary`: the operations that files name, and their versions
- `values`: parameters of operations
- `trees`: structures of pytrees
- `own_classes`: the library's own classes in them
- `rules`: derivative rules of a user's functions
- `encode`: programs to JSON
- `decode`: programs from JSON
"""
