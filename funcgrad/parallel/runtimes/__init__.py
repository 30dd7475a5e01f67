"""What runs programs on meshes: devices in lockstep in one process, or ranks of a job.

- `agree`: whether all ranks compile the same program: else they would wait for each other forever
- `lockstep`: virtual devices
- `ranks`: ranks of an MPI job
- `spmd`: programs on meshes: partitioned, compiled by the mesh's runtime, called with sharded
  arrays
"""
