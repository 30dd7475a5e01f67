"""Models as functions: the other way round.

- `model`: `from_onnx`, which reads a file and gives a function over parameters
- `graph`: graphs, run node by node; what is known while tracing (sizes, axes) stays NumPy's
- `elementwise`, `shape`, `reductions`, `indexing`: plain operators
- `layers`, `recurrent`: convolutions, pools, norms, attention; recurrent layers
- `losses`: losses over classes
- `control`: branches and loops
- `quantized`: integers that stand for floats
- `resize`, `images`, `signal`: resizing; grids, crops and patches; windows and spectra
"""
