"""GGUF files: what they hold comes out; blocks against loops as the reference's; damage."""

import struct

import numpy as np
import pytest

from funcgrad.errors import FormatError
from funcgrad.io import load_gguf
from funcgrad.io.weights.blocks import KINDS


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def gguf(tensors, entries=b"", pairs=0, version=3):
    """A file of (name, shape as in NumPy, kind, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), pairs) + entries
    body = b""
    for name, shape, kind, data in tensors:
        head += text(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", n) for n in shape[::-1])
        head += struct.pack("<IQ", kind, len(body))
        body += data + b"\0" * (-len(data) % 32)
    return head + b"\0" * (-len(head) % 32) + body


def test_tensors_and_metadata(tmp_path):
    path = tmp_path / "a.gguf"
    x = np.arange(6, dtype="f4").reshape(2, 3)
    entries = text("a.name") + struct.pack("<I", 8) + text("hi")
    entries += text("a.sizes") + struct.pack("<IIQ3i", 9, 5, 3, 1, 2, 3)
    path.write_bytes(gguf([("blk.0.w", (2, 3), 0, x.tobytes()),
                           ("h", (4,), 1, np.ones(4, "f2").tobytes())], entries, 2))  # fmt: skip
    tree, metadata = load_gguf(path)
    np.testing.assert_array_equal(tree["blk"]["0"]["w"], x)
    assert tree["h"].dtype == np.float16
    assert metadata == {"a.name": "hi", "a.sizes": [1, 2, 3]}
    assert list(load_gguf(path, flat=True)[0]) == ["blk.0.w", "h"]


# ---- blocks, by loops as the reference has them


def half(raw, at):
    return float(np.frombuffer(raw[at : at + 2].tobytes(), np.float16)[0])


def slow_q4_0(raw):
    q = raw[2:]
    return [(int(b & 15) - 8) * half(raw, 0) for b in q] + [
        (int(b >> 4) - 8) * half(raw, 0) for b in q
    ]


def slow_q4_1(raw):
    d, m, q = half(raw, 0), half(raw, 2), raw[4:]
    return [int(b & 15) * d + m for b in q] + [int(b >> 4) * d + m for b in q]


def slow_q5(raw, at, shift, m):
    d = half(raw, 0)
    high, q = int.from_bytes(raw[at : at + 4].tobytes(), "little"), raw[at + 4 :]
    low = [(int(q[j] & 15) | ((high >> j) << 4 & 16)) for j in range(16)]
    top = [(int(q[j] >> 4) | ((high >> (j + 12)) & 16)) for j in range(16)]
    return [(v - shift) * d + m for v in low + top]


def slow_q8_0(raw):
    return [float(v) * half(raw, 0) for v in raw[2:].view(np.int8)]


def slow_q4_k(raw):
    d, least, s, q, out = half(raw, 0), half(raw, 2), raw[4:16], raw[16:], []

    def six(j):
        if j < 4:
            return int(s[j] & 63), int(s[j + 4] & 63)
        return (
            int(s[j + 4] & 15) | (int(s[j - 4] >> 6) << 4),
            int(s[j + 4] >> 4) | (int(s[j] >> 6) << 4),
        )

    for j in range(4):
        part = q[32 * j : 32 * j + 32]
        for half_of, (scale, low) in ((part & 15, six(2 * j)), (part >> 4, six(2 * j + 1))):
            out += [d * scale * int(b) - least * low for b in half_of]
    return out


def slow_q6_k(raw):
    low, high, scales, d = raw[:128], raw[128:192], raw[192:208].view(np.int8), half(raw, 208)
    out = [0.0] * 256
    for n in range(2):
        ql, qh, sc, y = low[64 * n :], high[32 * n :], scales[8 * n :], 128 * n
        for i in range(32):
            h, k = int(qh[i]), i // 16
            q = (
                (int(ql[i]) & 15) | ((h & 3) << 4), (int(ql[i + 32]) & 15) | ((h >> 2 & 3) << 4),
                (int(ql[i]) >> 4) | ((h >> 4 & 3) << 4),
                (int(ql[i + 32]) >> 4) | ((h >> 6 & 3) << 4),
            )  # fmt: skip
            for j in range(4):
                out[y + i + 32 * j] = d * int(sc[k + 2 * j]) * (q[j] - 32)
    return out


SLOW = {
    "Q4_0": slow_q4_0, "Q4_1": slow_q4_1, "Q5_0": lambda raw: slow_q5(raw, 2, 16, 0.0),
    "Q5_1": lambda raw: slow_q5(raw, 4, 0, half(raw, 2)), "Q8_0": slow_q8_0,
    "Q4_K": slow_q4_k, "Q6_K": slow_q6_k,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: KINDS[k][0])
def test_blocks(kind, tmp_path):
    name, numbers, width, _ = KINDS[kind]
    raw = np.random.default_rng(0).integers(0, 256, (6, width), np.uint8)
    for at in {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q6_K": (208,)}.get(name, (0,)):
        raw[:, at : at + 2] = np.frombuffer(np.linspace(0.1, 2, 6, dtype="f2").tobytes(),
                                            np.uint8).reshape(6, 2)  # fmt: skip
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf([("w", (2, 3 * numbers), kind, raw.tobytes())]))
    got = load_gguf(path)[0]["w"]
    wanted = np.array([SLOW[name](block) for block in raw]).reshape(2, 3 * numbers)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def refused(tmp_path, match, content):
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=match):
        load_gguf(path)


def test_what_is_no_gguf(tmp_path):
    one = np.ones(8, "f4").tobytes()
    refused(tmp_path, "doesn't begin", b"GGML" + b"\0" * 40)
    refused(tmp_path, "version is 9", gguf([], version=9))
    refused(tmp_path, "don't fit", b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 0))
    refused(tmp_path, "ends behind", gguf([("w", (1 << 20,), 0, one)]))
    refused(tmp_path, "of kind 99", gguf([("w", (8,), 99, one)]))
    refused(tmp_path, "whole blocks", gguf([("w", (8,), 2, one)]))
    refused(tmp_path, "stands twice", gguf([("w", (8,), 0, one), ("w", (8,), 0, one)]))
    refused(tmp_path, "goes through an array", gguf([("w", (8,), 0, one), ("w.b", (8,), 0, one)]))
