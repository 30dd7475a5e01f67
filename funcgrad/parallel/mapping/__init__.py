"""Functions of parts: `shard_map`, and what varies from device to device.

- `pmap`: pmap: one lane of a batch for each device
- `primitive`: the `shard_map` primitive
- `shard_map`: shard_map: a function of the parts of arrays that each device of a mesh holds
- `smap`: smap: the same over one mesh axis, with numbers of axes in the place of specs
- `varying`: over which mesh axes the values of a per-device program vary, and what derivatives need
  of it
- `varying_pass`: A walk through a program that follows over which mesh axes each value varies
- `varying_programs`: what varies in programs within programs: calls, custom rules, branches, loops,
  transposes
"""
