"""Programs in mixed precision: products in a narrow dtype, what needs it in float32.

- `autocast`: the transform: a function, evaluated under a policy
- `casts`: casts of what a loop closes over, made once for all turns
- `float8`: matrix products in float8, forward and backward
- `kept`: what derivatives keep of float32 arithmetic, in the narrow dtype
- `leaves`: leaves of parameters as what rules name
- `lists`: which ops are computed in which dtype
- `policy`: the policy as a rule for equations: lists, a user's rules, explicit dtypes
"""
