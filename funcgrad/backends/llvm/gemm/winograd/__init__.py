"""Products by tiles, of fewer multiplications: Winograd's convolutions and their gradients.

- `tiles`: what they share
- `tiles_last`: what they share where channels come last
- `first`: windows of 3×3 elements
- `last`: the same where channels come last
- `last_bytes`: the same of int8, exactly
- `kernel_first`: gradients of kernels of 3×3 elements
- `kernel_last`: the same where channels come last
- `phases`: convolutions that double images
"""
