"""Which products of windows leave both operands where they lie."""

from funcgrad.backends.llvm.gemm import functions
from funcgrad.backends.llvm.gemm.words import inner_words
from funcgrad.backends.llvm.native.target import default_target
from funcgrad.backends.program import GemmAxes

OF_C = {"batch0": 1, "batch1": 4, "c_b1": 64 * 4096, "axes": 1}


def way(axes, words, windows=0):
    known = {**OF_C, **words, "windows": windows, **inner_words(axes)}
    return functions.route("float32", "float32", known)[0]


def test_few_windows_and_a_kernel():
    axes = GemmAxes(((4, 1536), (4, 256)), ((512, 1),), ((3, 768, 65536), (384, 1, 512)))
    words = {"m": 16, "n": 512, "k": 1152, "c_rs": 512, "c_cs": 1, "a_b1": 4608}
    assert way(axes, words) == "columns"


def test_lines_of_windows_are_copied():
    """In strips, where the processor has masks, rather than read beside a kernel's elements."""
    axes = GemmAxes(((64, 320),), ((4096, 1),), ((64, 5, 4100), (5, 1, 1)))
    words = {"m": 64, "n": 4096, "k": 320, "c_rs": 4096, "c_cs": 1, "b_b1": 64 * 4100}
    assert way(axes, words, 2) == ("strips" if default_target().has("avx2") else "columns")
