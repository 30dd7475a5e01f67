"""NF4, its scales and moments of 8 bits against bitsandbytes, where it is installed."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad import quantization as q
from funcgrad.optim.eight_bit import dequantized, dynamic_map, quantized
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


def test_scales_of_nf4_in_eight_bits():
    """Double quantization: the mean apart, blocks of 256 scales in the dynamic map."""
    w = np.random.default_rng(1).standard_normal((256, 512), np.float32)
    packed, state = functional.quantize_4bit(
        torch.from_numpy(w), blocksize=64, quant_type="nf4", compress_statistics=True
    )
    ours = q.quantize_nf4(w, block=64, axes=(-1,))
    np.testing.assert_allclose(np.asarray(ours.mean).item(), state.offset.item(), rtol=1e-6)
    np.testing.assert_allclose(
        np.asarray(ours.second).ravel(), state.state2.absmax.numpy(), rtol=1e-5
    )
    table = state.state2.code.numpy()
    np.testing.assert_allclose(dynamic_map(signed=True), table, atol=1e-7)
    different = np.asarray(ours.scale).ravel() != state.absmax.numpy()
    assert different.mean() < 0.01  # of what lies half way between two
    dense = functional.dequantize_4bit(packed, state).numpy()
    assert q.sqnr(dense, ours.dense()) > 45
    size = packed.numel() + state.absmax.numel() + 4 * state.state2.absmax.numel() + 4
    assert ours.nbytes == size
    assert round(8 * size / w.size, 3) == 4.127


@pytest.mark.parametrize("signed", [True, False])
def test_moments_of_eight_bits(signed):
    x = np.random.default_rng(2).standard_normal(4096).astype(np.float32)
    x = x if signed else x**2
    table = functional.create_dynamic_map(signed)
    np.testing.assert_allclose(dynamic_map(signed), np.sort(table.numpy()), atol=1e-7)
    codes, state = functional.quantize_blockwise(torch.from_numpy(x), code=table, blocksize=256)
    ours = quantized(fnp.asarray(x), signed)
    np.testing.assert_array_equal(ours.largest, state.absmax.numpy())
    dense = functional.dequantize_blockwise(codes, state).numpy()
    found = np.asarray(dequantized(ours, signed))
    # Its search on processors is not of the very nearest: ours is, wherever they differ.
    different = np.asarray(ours.codes) != codes.numpy()
    assert different.mean() < 0.05
    assert (np.abs(found - x) <= np.abs(dense - x) + 1e-6 * np.abs(x)).all()
    np.testing.assert_allclose(found[~different], dense[~different], rtol=1e-6)
