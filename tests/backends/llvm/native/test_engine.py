import ctypes
import gc
import os
import subprocess
import sys
import threading
import weakref

import llvmlite.binding as llvm
import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.builder import IRBuilder
from funcgrad.backends.llvm.native.compiler import InvalidIR
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.native.target import LEVELS, Target, default_target

I64 = ctypes.c_int64

SUM = """
define float @{name}(ptr noalias %a, ptr noalias %b, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %p = getelementptr float, ptr %a, i64 %i
  %x = load float, ptr %p
  %y = fadd float %x, {addend}
  %q = getelementptr float, ptr %b, i64 %i
  store float %y, ptr %q
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret float %y
}}
"""


def builder_module():
    module = ir.Module("m")
    i64 = ir.IntType(64)
    f = ir.Function(module, ir.FunctionType(i64, [i64]), "triple")
    b = IRBuilder(f.append_basic_block())
    b.ret(b.mul(f.args[0], i64(3)))
    return module


def test_builder_and_text_compile():
    lib = engine().compile(builder_module())
    assert ctypes.CFUNCTYPE(I64, I64)(lib.address("triple"))(14) == 42
    assert "@triple" in lib.llvm_text
    assert "triple:" in lib.asm()
    assert lib.size > 0


def test_same_text_compiles_once():
    assert engine().compile(builder_module()) is engine().compile(str(builder_module()))
    assert engine() is engine(default_target())


def test_vectorizes_for_the_host_width():
    target = Target.host()
    text = engine(target).compile(SUM.format(name="wide", addend="1.0")).llvm_text
    assert f"<{target.vector_bits // 32} x float>" in text


def test_levels_below_three_do_not_vectorize():
    source = SUM.format(name="narrow", addend="1.0")
    assert " x float>" not in engine().compile(source, level=1).llvm_text
    assert " x float>" in engine().compile(source).llvm_text


@pytest.mark.parametrize("level", range(4))
def test_all_levels_run(level):
    source = (
        SUM.format(name="sum", addend="3.0")
        + """
define internal float @one() alwaysinline {
  ret float 1.0
}
define float @{name}() {
  %slot = alloca float
  %one = call float @one()
  store float %one, ptr %slot
  %x = load float, ptr %slot
  ret float %x
}
""".replace("{name}", "one_by_frame")
    )
    library = engine().compile(source, level)
    f = ctypes.CFUNCTYPE(ctypes.c_float)(library.address("one_by_frame"))
    assert f() == 1.0
    assert ("alloca" in library.llvm_text) == (level == 0)


def test_compiled_by_key():
    e = engine()
    assert not e.compiled("test_compiled_by_key", 1)
    library = e.compile("define i32 @eight() { ret i32 8 }", 1, "test_compiled_by_key")
    assert e.compiled("test_compiled_by_key", 1)
    assert not e.compiled("test_compiled_by_key", 0)
    assert ctypes.CFUNCTYPE(ctypes.c_int)(library.address("eight"))() == 8


def test_generic_target_runs():
    generic = engine(Target.host().generic())
    assert generic is not engine(Target.host())
    lib = generic.compile(SUM.format(name="g", addend="2.0"))
    a, b = (ctypes.c_float * 20)(*range(20)), (ctypes.c_float * 20)()
    f = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p, I64)(lib.address("g"))
    assert f(ctypes.addressof(a), ctypes.addressof(b), 20) == 21.0
    assert list(b) == [i + 2.0 for i in range(20)]
    assert "zmm" not in lib.asm()


def test_targets_by_name():
    assert Target.named("host") == Target.host()
    assert Target.named("generic") == Target.host().generic()
    with pytest.raises(ValueError, match="one of host, generic.*got 'pentium'"):
        Target.named("pentium")


@pytest.mark.skipif(not Target.host().triple.startswith("x86_64"), reason="levels of x86-64")
def test_levels_of_x86():
    assert Target.named("x86-64") == Target.host().generic()
    features = llvm.get_host_cpu_features()
    lacking = False
    for (name, added), bits in zip(LEVELS.items(), (128, 128, 256, 512), strict=True):
        lacking = lacking or not all(features.get(feature) for feature in added)
        if lacking:
            with pytest.raises(ValueError, match=f"FUNCGRAD_TARGET={name}: this processor"):
                Target.named(name)
            continue
        target = Target.named(name)
        assert (target.cpu, target.vector_bits) == (name, bits)
        library = engine(target).compile("define i32 @level() { ret i32 5 }")
        assert ctypes.CFUNCTYPE(ctypes.c_int)(library.address("level"))() == 5


def test_target_from_the_environment():
    program = "from funcgrad.backends.llvm.native.engine import engine; print(engine().target.cpu)"
    generic = Target.host().generic().cpu
    for given, out, err in (("generic", generic, ""), ("386", "", "FUNCGRAD_TARGET must be one")):
        run = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "FUNCGRAD_TARGET": given},
            capture_output=True,
            text=True,
        )
        assert run.stdout.strip() == out
        assert err in run.stderr


def test_bind_by_address_and_from_the_process():
    e = engine()
    callback = ctypes.CFUNCTYPE(I64, I64)(lambda x: x * 7)
    e.bind("fg_test_callback", ctypes.cast(callback, ctypes.c_void_p).value)
    lib = e.compile(
        "declare i64 @fg_test_callback(i64)\ndeclare double @exp2(double)\n"
        "define i64 @call(i64 %x) { %y = call i64 @fg_test_callback(i64 %x) ret i64 %y }\n"
        "define double @libm(double %x) { %y = call double @exp2(double %x) ret double %y }\n"
    )
    assert ctypes.CFUNCTYPE(I64, I64)(lib.address("call"))(6) == 42
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(lib.address("libm"))(5.0) == 32.0
    with pytest.raises(ValueError, match="'fg_test_callback' is already bound"):
        e.bind("fg_test_callback", 4096)
    with pytest.raises(ValueError, match="'fg_test_null' is null"):
        e.bind("fg_test_null", 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("define i32 @f( {", "cannot parse"),
        (
            "define i32 @f(i32 %x) {\n %y = add i32 %z, 1\n %z = add i32 %x, 1\n ret i32 %y }",
            "does not dominate",
        ),
        ("define i32 @f() {\nentry:\n br label %entry }", "Entry block"),
    ],
)
def test_invalid_module_raises_and_never_reaches_the_passes(text, words):
    for _ in range(2):
        with pytest.raises(InvalidIR, match=words):
            engine().compile(text)


def test_unknown_symbols_are_named():
    with pytest.raises(RuntimeError, match="symbol 'fg_no_such_symbol' is neither bound"):
        engine().compile(
            "declare void @fg_no_such_symbol()\n"
            "define void @f() { call void @fg_no_such_symbol() ret void }"
        )
    with pytest.raises(KeyError, match="exports no symbol 'nope'"):
        engine().compile(builder_module()).address("nope")


def test_threads_compile_together():
    texts = [SUM.format(name=f"t{i % 4}", addend=f"{i % 4}.0") for i in range(8)]
    libraries = [None] * 8

    def work(i):
        libraries[i] = engine().compile(texts[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(libraries[i] is libraries[i + 4] for i in range(4))
    assert all(libraries[i].address(f"t{i % 4}") for i in range(8))


def test_globals_have_addresses():
    lib = engine().compile("@table = global [3 x i32] [i32 5, i32 6, i32 7]\n")
    assert list((ctypes.c_int32 * 3).from_address(lib.address("table"))) == [5, 6, 7]


def test_sign_masks_of_short_vectors_do_not_read_other_registers():
    """LLVM 22 with AVX-512VL: rows of three, whose sines need all registers, were wrong."""
    x = np.random.default_rng(0).uniform(-1, 0, (2, 3))
    assert not Target.host().has("avx512vl") or llvm.llvm_version_info < (22,)
    np.testing.assert_allclose(fg.jit(lambda x: fnp.sin(x.min(1)))(x), np.sin(x.min(1)))


def test_code_with_links_goes_with_its_library():
    e = engine()
    leaf = e.compile("define i32 @fg_leaf() { ret i32 11 }", links={})
    text = "declare i32 @fg_leaf()\ndefine i32 @fg_root() { %x = call i32 @fg_leaf() ret i32 %x }"
    root = e.compile(text, links={"fg_leaf": leaf})
    assert e.compile(text, links={"fg_leaf": leaf}) is root
    alive = weakref.ref(leaf)
    del leaf
    gc.collect()
    e.compile("define i32 @fg_other() { ret i32 12 }", links={})
    assert alive() is not None, "the root calls it"
    assert ctypes.CFUNCTYPE(ctypes.c_int)(root.address("fg_root"))() == 11
    del root
    gc.collect()
    assert alive() is None
    e.compile("define i32 @fg_another() { ret i32 13 }", links={})
    assert not e._dead
    with pytest.raises(RuntimeError, match="symbol 'fg_leaf' is neither bound"):
        e.compile(text + "\n", links={})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_forked_while_a_thread_compiles_the_same():
    code = """
import os, signal, threading
from funcgrad.backends.llvm.native.engine import engine

reached, forked = threading.Event(), threading.Event()
text = "define i32 @forked() { ret i32 7 }"

def module():
    reached.set()
    forked.wait()
    return text

def compile(module):
    return engine().compile(module, key="forked while it was compiled")

thread = threading.Thread(target=compile, args=(module,))
thread.start()
reached.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)
    os._exit(0 if compile(text).address("forked") else 1)
status = os.waitpid(child, 0)[1]
forked.set()
thread.join()
assert status == 0, status
"""
    env = {**os.environ, "FUNCGRAD_CACHE_DIR": ""}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240, env=env)
