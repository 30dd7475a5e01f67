"""Philox and Threefry of other widths against the known answers of Random123."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.lax.ciphers import philox2x32, philox4x32, threefry4x32

FULL = 0xFFFFFFFF
# Its file kat_vectors: of a cipher, key and counter, and what they give.
ANSWERS = [
    (philox2x32, [0, 0, 0], [0xFF1DAE59, 0x6CD10DF2]),
    (philox2x32, [FULL] * 3, [0x2C3F628B, 0xAB4FD7AD]),
    (philox2x32, [0x13198A2E, 0x243F6A88, 0x85A308D3], [0xDD7CE038, 0xF62A4C12]),
    (philox4x32, [0] * 6, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    (philox4x32, [FULL] * 6, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (philox4x32,
     [0xA4093822, 0x299F31D0, 0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
     [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
    (threefry4x32, [0] * 8, [0x9C6CA96A, 0xE17EAE66, 0xFC10ECD4, 0x5256A7D8]),
    (threefry4x32, [FULL] * 8, [0x2A881696, 0x57012287, 0xF6C7446E, 0xA16A6732]),
    (threefry4x32,
     [0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89, 0x243F6A88, 0x85A308D3, 0x13198A2E,
      0x03707344],
     [0x59CD1DBB, 0xB8879579, 0x86B5D00C, 0xAC8B6D84]),
]  # fmt: skip


@pytest.mark.parametrize(("cipher", "words", "answer"), ANSWERS)
def test_known_answers(cipher, words, answer):
    drawn = cipher(*fnp.array(words, "uint32"))
    assert [int(x) for x in drawn] == answer
    drawn = cipher(*(fnp.array([0, w], "uint32") for w in words))
    assert all(x.dtype == np.uint32 for x in drawn)
    assert [int(x[1]) for x in drawn] == answer
