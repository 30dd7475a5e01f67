"""LLVM at work: machines are used again, each by one thread at a time."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from funcgrad.backends.llvm import compiler
from funcgrad.backends.llvm.target import Target

GENERIC = Target.host().generic()


@pytest.fixture(autouse=True)
def no_machines(monkeypatch):
    monkeypatch.setattr(compiler, "_idle", {})


def code(value, level=1):
    text = f"define i32 @f() {{ ret i32 {value} }}"
    return compiler.compiled(GENERIC, text, level, lambda module: module.code())


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_a_used_machine_writes_the_code_of_a_new_one(level):
    first = code(3, level)
    code(4, level)
    assert code(3, level) == first
    assert [len(idle) for idle in compiler._idle.values()] == [1]


def test_code_that_is_not_optimized_has_machines_of_its_own():
    code(3, level=0)
    code(3, level=3)
    assert sorted(optimize for _, optimize in compiler._idle) == [0, 3]


def test_a_machine_outlives_a_module_that_is_wrong():
    with pytest.raises(compiler.InvalidIR, match="parse"):
        compiler.compiled(GENERIC, "define", 1, lambda module: None)
    assert code(3)
    assert [len(idle) for idle in compiler._idle.values()] == [1]


def test_threads_have_a_machine_each():
    held = []

    def nested(module):
        held.append(code(3))
        return module.code()

    text = "define i32 @g() { ret i32 5 }"
    assert compiler.compiled(GENERIC, text, 1, nested)
    assert held
    assert [len(idle) for idle in compiler._idle.values()] == [2]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: code(i % 3), range(60)))
    assert len(set(found)) == 3
    assert len(compiler._idle[GENERIC, 3]) <= 6


MASKED = """
declare void @llvm.masked.store.v{n}f32.p0(<{n} x float>, ptr, i32, <{n} x i1>)
define void @f(<{n} x float> %x, <{n} x i1> %m, ptr %to) {{
  call void @llvm.masked.store.v{n}f32.p0(<{n} x float> %x, ptr %to, i32 4, <{n} x i1> %m)
  {rest}
  ret void
}}
"""
TAKEN = "%bits = bitcast <8 x i1> %m to i8\n store i8 %bits, ptr %to"


@pytest.mark.parametrize(("n", "rest", "signs"), [(16, "", "-"), (8, "", "+-"), (8, TAKEN, "-")])
def test_parts_of_short_vectors_are_code_with_these_if_masks_stay_masks(n, rest, signs):
    if not Target.host().triple.startswith("x86_64"):
        pytest.skip("of x86-64")
    target = Target("x86_64-unknown-linux-gnu", "x86-64", "+avx512bw,+avx512dq,-avx512vl")
    text = MASKED.format(n=n, rest=rest)
    assert compiler.compiled(target, text, 3, lambda module: module.code())
    assert sorted(t.features[-9] for t, _ in compiler._idle) == sorted(signs)
