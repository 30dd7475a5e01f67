"""Collectives: sums and exchanges over named axes.

- `blocks`: collectives on plain arrays: what a device does, through the communicators of the
  context
- `exchanges`: collectives over named axes that exchange data: all_to_all, and permutations of lanes
- `reductions`: collectives over named axes: sums and gathers across the lanes of `vmap`
- `varying`: collectives that know over which mesh axes a value varies from device to device
"""
