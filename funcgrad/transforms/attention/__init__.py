"""Attention as one op, whose memory is linear in the lengths of the sequences.

- `attention`: attention as one op, with derivatives whose memory is linear in the sequences'
  lengths
- `formula`: attention, its tangent and its cotangents as programs of other ops, some queries at a
  time
- `operands`: the operands of attention's ops: their types, and which of them may be given
- `reference`: attention on arrays, and its cotangents: what the ops mean, some queries at a time
"""
