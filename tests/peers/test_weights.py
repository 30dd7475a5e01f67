"""Files that PyTorch and the gguf package write."""

import numpy as np
import pytest

from funcgrad.io import load_gguf, load_pt


def test_what_torch_saves(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "a.pt"
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    base = torch.arange(12.0)
    extra = {
        "bf16": base.bfloat16(), "half": base.half(), "turned": base.reshape(3, 4).T,
        "part": base[3:7], "long": torch.arange(3), "bool": base > 3, "c": base * 1j,
        "parameter": torch.nn.Parameter(base), "f8": base.to(torch.float8_e4m3fn),
        "scalar": torch.tensor(2.5), "number": 3, "list": [1.5, "x", None, True], "none": None,
    }  # fmt: skip
    torch.save({"model": model.state_dict(), "extra": extra}, path)
    got = load_pt(path)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(got["model"][name], value.numpy())
    for name, value in extra.items():
        if not isinstance(value, torch.Tensor):
            assert got["extra"][name] == value
            continue
        wide = torch.complex128 if value.is_complex() else torch.float64
        mine = got["extra"][name]
        assert mine.shape == tuple(value.shape)
        assert mine.dtype.name.startswith(str(value.dtype).removeprefix("torch."))
        np.testing.assert_array_equal(
            mine.astype("c16" if value.is_complex() else "f8"), value.detach().to(wide).numpy()
        )


def test_what_gguf_quantizes(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    x = np.random.default_rng(0).standard_normal((4, 512)).astype("f4")
    kinds = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
    wanted = {}
    for name in kinds:
        kind = getattr(gguf.GGMLQuantizationType, name)
        raw = gguf.quants.quantize(x, kind)
        writer.add_tensor(name, raw, raw_dtype=kind)
        wanted[name] = gguf.quants.dequantize(raw, kind)
    rng = np.random.default_rng(1)
    for name, width in (("Q4_K", 144), ("Q6_K", 210)):
        kind = getattr(gguf.GGMLQuantizationType, name)
        raw = rng.integers(0, 100, (4, 2 * width), np.uint8)
        writer.add_tensor(name, raw, raw_dtype=kind)
        wanted[name] = gguf.quants.dequantize(raw, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    got, metadata = load_gguf(path)
    assert metadata["general.architecture"] == "llama"
    for name, w in wanted.items():
        np.testing.assert_allclose(got[name], w, rtol=1e-6, atol=1e-6, err_msg=name)
