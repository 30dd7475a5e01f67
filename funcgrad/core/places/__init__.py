"""Arrays elsewhere: in another memory than the host's, or cut over devices; and the way there.

- `device_array`: arrays in a memory that is not the host's, and what is behind operands wherever
  they are
- `sharded`: arrays that are cut over the devices of a mesh
- `transfers`: borders that values cross: from NumPy into arrays, out of them, between devices
"""
