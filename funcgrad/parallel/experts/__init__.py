"""Mixtures of experts: layers of which each token runs through a few parts.

- `dispatch`: tokens into bins of one size, an expert's or a device's each, and back
- `moe`: the layer, on one device or with experts spread over many: `moe`, `expert_mlp`
- `routing`: which experts a token goes to, and how loads are kept even
"""
