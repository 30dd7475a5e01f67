"""The three steps of differentiation: tangents forward, the known and the unknown apart, backwards.

- `jvp`: forward mode: each value carries a tangent, each op pushes tangents forward by its jvp rule
- `partial_eval`: partial evaluation: split what is computed from known values from what awaits
  unknown ones
- `transpose`: reverse mode: run a linear program backwards, each op by its transpose rule
"""
