"""What is kept in files.

- `checkpoints`: trees of arrays, whole or cut over a mesh, in folders that are never half there
"""
