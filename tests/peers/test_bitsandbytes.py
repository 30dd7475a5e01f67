"""NF4 and its double quantization against bitsandbytes, where that is installed."""

import numpy as np
import pytest

from funcgrad import quantization as q
from funcgrad.quantization import formats

torch = pytest.importorskip("torch")
functional = pytest.importorskip("bitsandbytes.functional")


def test_nf4_codes_and_scales():
    w = np.random.default_rng(0).standard_normal((64, 128), np.float32)
    packed, state = functional.quantize_4bit(
        torch.from_numpy(w), blocksize=64, quant_type="nf4", compress_statistics=False
    )
    ours = q.quantize_nf4(w, block=64, double_quant=False, axes=(-1,))
    np.testing.assert_allclose(formats.NF4_TABLE, state.code.numpy(), atol=1e-6)
    np.testing.assert_array_equal(np.asarray(ours.scale).ravel(), state.absmax.numpy())
    pairs = packed.numpy().ravel()
    theirs = np.stack([pairs >> 4, pairs & 15], 1).reshape(w.shape)  # the first one is above
    found = np.asarray(formats.unpack(ours.codes, 4, -1))
    assert np.mean(found != theirs) < 1e-3  # of what lies half way between two
    dense = functional.dequantize_4bit(packed, state).numpy()
    same = found == theirs
    np.testing.assert_allclose(np.asarray(ours.dense())[same], dense[same], atol=1e-6)
