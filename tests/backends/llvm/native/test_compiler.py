"""LLVM at work: machines are used again, each by one thread at a time."""

import ctypes
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from funcgrad.backends.llvm.native import compiler
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.native.target import Target

GENERIC = Target.host().generic()


@pytest.fixture(autouse=True)
def no_machines(monkeypatch):
    monkeypatch.setattr(compiler, "_idle", {})


def idle():
    """The levels of machines for the target of these tests, and how many there are of each; other
    code may be optimized meanwhile."""
    return {level: len(found) for (of, level), found in compiler._idle.items() if of == GENERIC}


def code(value, level=1):
    text = f"define i32 @f() {{ ret i32 {value} }}"
    return compiler.compiled(GENERIC, text, level, lambda module: module.code())


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_a_used_machine_writes_the_code_of_a_new_one(level):
    first = code(3, level)
    code(4, level)
    assert code(3, level) == first
    assert list(idle().values()) == [1]


def test_code_that_is_not_optimized_has_machines_of_its_own():
    code(3, level=0)
    code(3, level=3)
    assert sorted(idle()) == [0, 3]


def test_a_machine_outlives_a_module_that_is_wrong():
    with pytest.raises(compiler.InvalidIR, match="parse"):
        compiler.compiled(GENERIC, "define", 1, lambda module: None)
    assert code(3)
    assert list(idle().values()) == [1]


def test_threads_have_a_machine_each():
    held = []

    def nested(module):
        held.append(code(3))
        return module.code()

    text = "define i32 @g() { ret i32 5 }"
    assert compiler.compiled(GENERIC, text, 1, nested)
    assert held
    assert list(idle().values()) == [2]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: code(i % 3), range(60)))
    assert len(set(found)) == 3
    assert idle()[3] <= 6


MASKED = """
declare void @llvm.masked.store.v{n}f32.p0(<{n} x float>, ptr, i32, <{n} x i1>)
define void @f(<{n} x float> %x, <{n} x i1> %m, ptr %to) {{
  call void @llvm.masked.store.v{n}f32.p0(<{n} x float> %x, ptr %to, i32 4, <{n} x i1> %m)
  {rest}
  ret void
}}
define void @"other one"(ptr %to) {{
  store i32 7, ptr %to
  ret void
}}
"""
TAKEN = "%bits = bitcast <8 x i1> %m to i8\n store i8 %bits, ptr %to"
WIDE = Target("x86_64-unknown-linux-gnu", "x86-64", "+avx512bw,+avx512dq,-avx512vl")


@pytest.mark.parametrize(("n", "rest", "short"), [(16, "", 0), (8, "", 1), (8, TAKEN, 0)])
def test_parts_of_short_vectors_are_code_with_these_if_masks_stay_masks(n, rest, short):
    """In the function that has them, and in no other."""
    if not Target.host().triple.startswith("x86_64"):
        pytest.skip("of x86-64")
    text = MASKED.format(n=n, rest=rest)
    made, code = compiler.compiled(WIDE, text, 3, lambda module: (str(module), module.code()))
    assert code
    assert made.count("+avx512vl") == short
    functions = compiler._FUNCTION.findall(made)
    assert functions == ["f", '"other one"']


def test_only_what_takes_parts_of_short_vectors_from_masks_has_none():
    """Of two loops that LLVM would vectorize, one is not to be."""
    text = """
define void @{name}(ptr noalias %x, ptr noalias %y) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %at = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %at
  %to = getelementptr float, ptr %y, i64 %i
  %square = fmul float %v, %v
  store float %square, ptr %to
  %next = add nuw nsw i64 %i, 1
  %more = icmp ult i64 %next, 1024
  br i1 %more, label %loop, label %out
out:
  ret void
}}"""
    both = "".join(text.format(name=name) for name in ("f", "g"))
    scalar = compiler._with_attribute(both, ["f"], "noimplicitfloat")
    assert scalar.count("noimplicitfloat") == 1
    assert compiler._with_attribute(scalar, ["f", "h"], "noimplicitfloat") == scalar
    made = compiler.compiled(WIDE, scalar, 3, str)
    first, second = (m[0] for m in compiler._FUNCTION.finditer(made))
    assert "x float>" not in first
    assert "x float>" in second


@pytest.mark.parametrize(("name", "zero"), [("maximum", "0.0"), ("minimum", "-0.0")])
@pytest.mark.parametrize(("n", "kind"), [(4, 32), (8, 32), (16, 32), (2, 64), (4, 64), (8, 64)])
def test_extremes_of_short_vectors_and_zero_are_stored_where_they_were_read(name, zero, n, kind):
    if not Target.host().triple.startswith("x86_64"):
        pytest.skip("of x86-64")
    dtype = {32: "float", 64: "double"}[kind]
    text = f"""
declare <{n} x {dtype}> @llvm.{name}.v{n}f{kind}(<{n} x {dtype}>, <{n} x {dtype}>)
define void @f(ptr %p) {{
  %x = load <{n} x {dtype}>, ptr %p, align 4
  %m = call <{n} x {dtype}> @llvm.{name}.v{n}f{kind}(<{n} x {dtype}> %x,
                                                     <{n} x {dtype}> splat ({dtype} {zero}))
  store <{n} x {dtype}> %m, ptr %p, align 4
  ret void
}}"""
    made, code = compiler.compiled(WIDE, text, 3, lambda module: (str(module), module.code()))
    assert code
    assert ("freeze" in made) == (n * kind < 512)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
@pytest.mark.parametrize("kind", ["double", "<2 x double>"])
def test_extremes_of_float64_for_arm_are_those_of_numpy(name, kind):
    llvm_name = f"llvm.{name}.{'v2' * (kind != 'double')}f64"
    text = f"""
declare {kind} @{llvm_name}({kind}, {kind})
define void @f(ptr %p, ptr %q) {{
  %x = load {kind}, ptr %p, align 8
  %y = load {kind}, ptr %q, align 8
  %m = call {kind} @{llvm_name}({kind} %x, {kind} %y)
  store {kind} %m, ptr %p, align 8
  ret void
}}"""
    assert compiler.compiled(Target.named("armv7-linux"), text, 3, lambda module: module.code())
    f = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
        engine().compile(compiler._own_extremes(text)).address("f")
    )
    for x, y in itertools.product([0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan], repeat=2):
        got, other = np.array([x, x]), np.array([y, y])
        f(got.ctypes.data, other.ctypes.data)
        wanted = getattr(np, name)(x, y)
        np.testing.assert_array_equal(got[0], wanted)
        if x == y == 0:
            greatest = name == "maximum"
            assert np.signbit(got[0]) == (all if greatest else any)(np.signbit([x, y]))
