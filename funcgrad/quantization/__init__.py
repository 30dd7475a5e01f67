"""Fewer bits: parameters of a function in narrow formats, with the products that go with them.

- `arrays`: quantized arrays: codes, scales and zero points, and what products with them are
- `calibration`: what a function multiplies with its weights, on example inputs
- `configs`: what to quantize, and into what
- `convert`: `quantize`: a function of quantized parameters, these, and a report
- `encode`: arrays as quantized arrays
- `fake`: weights that act as quantized ones, to train by
- `formats`: number formats: from floats to codes and back, exactly
- `observers`: ranges of numbers from examples
- `report`: what quantization did: bytes, signal to noise, what was left alone
- `training`: `qat`: training with the rounding that quantization will do
"""

from funcgrad.quantization.arrays import (
    Float8Array,
    IntArray,
    MXArray,
    NF4Array,
    QuantizedArray,
    dequantize,
)
from funcgrad.quantization.configs import (
    MXFP4,
    NF4,
    Config,
    Float8,
    Int8Dynamic,
    Int8Static,
    WeightOnly,
)
from funcgrad.quantization.convert import quantize
from funcgrad.quantization.encode import (
    quantize_float8,
    quantize_int,
    quantize_mxfp4,
    quantize_nf4,
)
from funcgrad.quantization.fake import Fake
from funcgrad.quantization.observers import EMA, Entropy, Histogram, MinMax, Observer, Percentile
from funcgrad.quantization.report import Report, Row, sqnr
from funcgrad.quantization.training import prepare, qat

__all__ = [
    "Config", "dequantize", "EMA", "Entropy", "Fake", "Float8", "Float8Array", "Histogram",
    "Int8Dynamic", "Int8Static", "IntArray", "MinMax", "MXArray", "MXFP4", "NF4", "NF4Array",
    "Observer", "Percentile", "prepare", "qat", "quantize", "quantize_float8", "quantize_int",
    "quantize_mxfp4", "quantize_nf4", "QuantizedArray", "Report", "Row", "sqnr", "WeightOnly",
]  # fmt: skip
