"""ONNX: programs as models, and models as functions.

- `model`: `to_onnx`, which traces a function and writes the model
- `dynamic`: axes of any size, from traces at several sizes
- `dims`: sizes with their formulas
- `linalg/`: factors and spectra of matrices, as loops
- `lowered`: the program that is translated: real, with formulas in place of their ops
- `translate`: programs as graphs, equation by equation
- `rules/`: what each primitive is in ONNX
- `scalars`: elementwise ops, from their meaning
- `functions`, `bits`: what ONNX lacks, as formulas
- `graph`: graphs being written
- `kernels`: which types runtimes take, and what stands for others
- `store`: model files
- `read/`: `from_onnx`, the other way round
"""

from funcgrad.export.onnx.model import to_onnx
from funcgrad.export.onnx.read.model import from_onnx

__all__ = ["from_onnx", "to_onnx"]
