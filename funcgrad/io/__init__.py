"""What is kept in files.

- `checkpoints`: trees of arrays, whole or cut over a mesh, in folders that are never half there
- `weights`: weights that other programs wrote: .pt without unpickling, GGUF, safetensors
"""

from funcgrad.io.weights import load_gguf, load_pt, load_safetensors

__all__ = ["load_gguf", "load_pt", "load_safetensors"]
