"""Attention as generated code.

- `functions`: one function a dtype and op serves all shapes and strides
- `forward`: blocks of queries, running maxima and sums over blocks of keys
- `backward`: blocks of keys outside, of queries inside, weights computed anew
- `joint`: both in one, where a cotangent is there before the result is
- `parts`: what they share: the call in memory, exponentials, which keys are seen
- `tiles`: their products, in register tiles
- `rows`: what the backward pass keeps of rows of queries
- `pairs`: biases and masks
- `ahead`: memory that is needed soon is fetched
"""
