"""Arrays put together, cut, reordered and searched.

- `bits`: bits packed into bytes, and taken out of them
- `choosing`: elementwise choice among several arrays: choose, select, piecewise
- `indexing`: choosing elements: by condition, by position, along an axis, and writing them back
- `insertion`: arrays with elements inserted or deleted, at positions that may be traced
- `joining`: joining, cutting and repeating arrays: stacks, splits, tiles, rolls
- `padding`: `pad`: an array with a border, in all of NumPy's modes
- `sets`: sets: distinct elements, membership, union, intersection and differences
- `shape`: shapes: reshaping, moving and reversing axes, broadcasting
- `sorting`: sorting, and search in what is sorted
- `updates`: `x.at[idx].set(y)`: functional updates of arrays, as methods
"""
