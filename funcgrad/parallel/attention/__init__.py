"""Attention of sequences that are cut over devices, for use inside `shard_map`.

- `arguments`: what all of them take: checks, dtypes, windows, what hides keys
- `blocks`: attention to some of the keys, and its cotangents; results of blocks put together
- `pieces`: which queries meet which keys at each turn of a ring, and from where
- `ring`: keys and values go from device to device: `ring_attention`
- `rotation`: arrays that go round a ring of devices, and the sums that follow them
- `ulysses`: heads are exchanged for places: `ulysses_attention`, and both: `hybrid_attention`
- `ways`: how `jit` does attention of sequences that are cut: `sequence_attention`
- `zigzag`: an order of a sequence that gives each device the same work under a causal mask
"""
