"""Weights that other programs wrote, as trees of arrays; nothing in a file is run or unpickled.

- `pt`: PyTorch's files (.pt, .pth, .bin), by an interpreter of our own
- `pickles`: that interpreter: a few opcodes, and names from a literal table
- `gguf`: llama.cpp's files, quantized tensors as floats
- `blocks`: what the blocks of quantized numbers mean
- `safetensors`: safetensors files, and folders of them
- `parts`: arrays cut over devices, of which each process reads its own parts
- `mapped`: files mapped into memory, read within bounds

Arrays are NumPy's, on the mapped file where its bytes are what they need.
"""

from funcgrad.io.weights.gguf import load_gguf
from funcgrad.io.weights.pt import load_pt
from funcgrad.io.weights.safetensors import load_safetensors

__all__ = ["load_gguf", "load_pt", "load_safetensors"]
