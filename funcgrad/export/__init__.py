"""Programs leave Python.

- `onnx/`: as ONNX models, and from them
"""

from funcgrad.export.onnx import from_onnx, to_onnx

__all__ = ["from_onnx", "to_onnx"]
