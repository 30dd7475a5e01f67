"""Transforms as convolutions with a chirp: the tables, and the lengths that are chosen."""

import numpy as np
import pytest

from funcgrad.backends.llvm.routines.fft_chirp import chirp, room, spectrum
from funcgrad.backends.llvm.routines.fft_passes import radices


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("n", [2, 37, 1009])
def test_convolution_with_a_chirp_is_a_transform(n, forward, rng):
    x = rng.standard_normal(n) + 1j * rng.standard_normal(n)
    w, line = (v[:, 0] + 1j * v[:, 1] for v in (chirp(n, forward),
                                                spectrum(n, room(n), forward)))  # fmt: skip
    found = np.fft.fft(np.conj(np.fft.fft(np.pad(x * w, (0, room(n) - n))) * line))
    exact = np.fft.fft(x) if forward else n * np.fft.ifft(x)
    np.testing.assert_allclose(np.conj(found)[:n] * w, exact, atol=1e-12 * n)


def test_room_is_enough_and_has_passes():
    for n in (*range(2, 300), 1009, 10_007, 32_749):
        assert 2 * n - 1 <= room(n) <= 4 * n
        assert radices(room(n))
