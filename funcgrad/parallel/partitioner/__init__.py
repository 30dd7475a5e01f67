"""From a program of whole arrays to the one that each device runs on its parts.

- `analysis`: what a per-device program costs, on paper
- `attend`: attention on blocks: rings of keys where the sequence is cut, by bytes
- `bodies`: loops, branches and shard_map on parts
- `edges`: ops that take rows of a cut axis or put rows together, on runs of rows (`windows`)
- `explicit`: how values are cut over Explicit mesh axes, which their types say
- `factors`: what of an equation may be cut: its factors, and the choice of mesh axes for them
- `halos`: slices, pads and concatenations along an axis that is cut, so that only their edges are
  sent
- `localize`: ops on blocks: what beside operands changes where an op sees a part of its arrays
- `lookups`: reading and writing by position, where devices hold blocks of the axis that is looked
  up in
- `nested`: ops that hold programs, as partitioning sees them: which values inside and outside are
  one
- `partition`: partitioning: from a program of whole arrays to the one that each device runs on its
  parts
- `propagate`: propagation: over which mesh axes each value of a program is cut
- `reshard`: from one layout of an array to another by the fewest bytes
- `shift`: an array turned along one axis, as `roll`
- `site`: where a device's blocks meet an op: an equation, its cuts, and the op to bind
- `windows`: parts of an axis as whole programs see them: runs of pieces that lie in arrays of one
  size
"""
