"""What is computed where: which values get a place in memory, and which share a kernel.

- `roots`: which values are inlined, and which get a place in memory
- `joins`: concatenations as memory: each piece is written where it is wanted
- `clusters`: which roots share a kernel, one root after the other
- `merges`: afterwards: clusters that had better be one
- `recomputes`: values that are computed again rather than kept
- `levels`: in which loops a cluster's members are computed
- `signature`: what a cluster's kernel depends on, so that equal ones are found
"""
