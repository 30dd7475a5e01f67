import ctypes

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.emit.half_calls import library as conversions
from funcgrad.backends.llvm.native.engine import HALF_CALLS, engine
from funcgrad.backends.llvm.native.target import Target

# Arrays in, arrays out, through the functions that a processor without conversions calls.
LOOPS = """
define void @{name}(ptr %from, ptr %to, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %p = getelementptr {source}, ptr %from, i64 %i
  %x = load {source}, ptr %p
  %y = {op} {source} %x to {to}
  %q = getelementptr {to}, ptr %to, i64 %i
  store {to} %y, ptr %q
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret void
}}
"""


def converted(x, op, source, to, dtype):
    generic = engine(Target.host().generic())
    for symbol in HALF_CALLS:
        generic.provide(symbol, lambda: conversions(generic))
    name = f"half_{source}_{to}"
    library = generic.compile(LOOPS.format(name=name, op=op, source=source, to=to))
    out = np.empty(x.shape, dtype)
    f = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    f(library.address(name))(x.ctypes.data, out.ctypes.data, x.size)
    return out


def same(a, b):
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a), np.signbit(b))


def test_every_half_is_extended():
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    assert same(converted(x, "fpext", "half", "float", np.float32), x.astype(np.float32))


def test_floats_and_doubles_are_rounded_once(rng):
    # Halves, what lies in the middle of two, and their neighbours.
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)].astype(np.float64)
    middles = (halves[:-1] + halves[1:]) / 2
    around = [np.nextafter(middles, side) for side in (-np.inf, np.inf)]
    special = [np.nan, np.inf, -np.inf, 65519.999, 65520.0, 1e300, 5e-324, -0.0]
    doubles = np.concatenate([halves, middles, *around, special, rng.normal(size=9999)])
    with np.errstate(over="ignore", under="ignore"):
        floats = doubles.astype(np.float32)
        assert same(
            converted(doubles, "fptrunc", "double", "half", np.float16), doubles.astype(np.float16)
        )
        assert same(
            converted(floats, "fptrunc", "float", "half", np.float16), floats.astype(np.float16)
        )


def test_a_processor_that_converts_floats_but_not_doubles():
    # LLVM makes one conversion of two, from double to float and on, which AVX-512 alone lacks.
    def repeated(x):
        turns = fnp.max(fnp.array(3))
        return fg.lax.fori_loop(0, turns, lambda i, y: fnp.cbrt(x), x * 0)

    x = np.array([0.1, 0.5, 0.9], np.float16)
    assert np.allclose(fg.jit(repeated)(x), np.cbrt(x.astype(np.float64)), rtol=1e-3)
