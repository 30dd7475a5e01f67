"""Fewer bits: parameters of a function in narrow formats, with the products that go with them.

- `algorithms`: codes and scales by more than a weight's range: GPTQ, AWQ, SmoothQuant, HQQ
- `arrays`: quantized arrays: codes, scales and zero points, and what products with them are
- `cache`: keys and values of attention in fewer bits
- `calibration`: what a function multiplies with its weights, on example inputs
- `configs`: what to quantize, and into what
- `convert`: `quantize`: a function of quantized parameters, these, and a report
- `encode`: arrays as quantized arrays
- `fake`: weights that act as quantized ones, to train by
- `folding`: norms by kept statistics as part of the weights before them
- `formats`: number formats: from floats to codes and back, exactly
- `observers`: ranges of numbers from examples
- `pruning`: weights of which two in four are left, or the largest, and training with these
- `report`: what quantization did: bytes, signal to noise, what was left alone
- `training`: `qat`: training with the rounding that quantization will do
"""

from funcgrad.quantization.algorithms import AWQ, GPTQ, HQQ, SmoothQuant
from funcgrad.quantization.arrays import (
    Float8Array,
    IntArray,
    MXArray,
    NF4Array,
    QuantizedArray,
    dequantize,
)
from funcgrad.quantization.cache import quantize_keys, quantize_values
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
from funcgrad.quantization.folding import fold_norms
from funcgrad.quantization.observers import EMA, Entropy, Histogram, MinMax, Observer, Percentile
from funcgrad.quantization.pruning import (
    Pruned,
    compress_2_4,
    expand_2_4,
    mask_2_4,
    mask_magnitude,
    prune,
    sparsity_at,
)
from funcgrad.quantization.report import Report, Row, sqnr
from funcgrad.quantization.training import prepare, qat, update_ranges

__all__ = [
    "AWQ", "compress_2_4", "Config", "dequantize", "EMA", "Entropy", "expand_2_4", "Fake",
    "Float8", "Float8Array", "fold_norms", "GPTQ", "Histogram", "HQQ", "Int8Dynamic", "Int8Static",
    "IntArray", "mask_2_4", "mask_magnitude", "MinMax", "MXArray", "MXFP4", "NF4", "NF4Array",
    "Observer", "Percentile", "prepare", "prune", "Pruned", "qat", "quantize",
    "quantize_float8", "quantize_int", "quantize_keys", "quantize_mxfp4", "quantize_nf4",
    "quantize_values", "QuantizedArray", "Report", "Row", "SmoothQuant", "sparsity_at",
    "sqnr", "update_ranges", "WeightOnly",
]  # fmt: skip
