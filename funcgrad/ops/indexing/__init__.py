"""Reading and writing at positions, known or computed.

- `gather`: gather, which reads windows at many positions, and its transpose, scatter_add
- `indexing`: numPy-style indexing `x[idx]` and functional updates `x.at[idx].set(y)`
- `plan`: what `x[idx]` means: NumPy's indexing rules, worked out before anything is computed
- `scatter`: scatters: windows of an array replaced by, or combined with, updates at many positions
- `segment`: reductions of rows by the number of their segment: `segment_sum`, `_prod`, `_max`,
  `_min`
- `window_checks`: whether dimension numbers of gathers and scatters fit their operands
- `windows`: what gather and scatter share
- `windows_at`: windows at positions known only when the program runs
"""
