import os
import subprocess
import sys

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm import saved
from funcgrad.backends.llvm.native import objects
from funcgrad.core import context

# Programs of all kinds of steps; prints what they give, and whether a compiler was loaded.
PROGRAMS = """
import sys
import numpy as np
import funcgrad as fg, funcgrad.numpy as fnp
from funcgrad import lax

def image(x):
    return lax.conv(x, fnp.ones((4, 3, 3, 3), x.dtype), (1, 1), "SAME")

table = np.arange(20, dtype=np.float32)
rng = np.random.default_rng(0)
a = fnp.array(rng.normal(size=(40, 40)).astype(np.float32))
programs = [
    (lambda x: x + 1, a),
    (lambda x: fnp.tanh(x @ x.T + fnp.float32(2)), a),
    (fg.grad(lambda x: fnp.mean(fnp.exp(fnp.tanh(x) @ x))), a),
    (lambda x: lax.scan(lambda c, r: (c * r, c.sum()), x[0], x), a),
    (lambda x: lax.while_loop(lambda c: c.sum() < 1e4, lambda c: c * 2 + 1, abs(x)), a),
    (lambda x: fnp.sort(x, axis=-1), a),
    (lambda x: fnp.linalg.solve(x, x + 1), a),
    (lambda x: x[:, :20] * table + fnp.arange(40)[:, None], a),
    (lambda x: fg.nn.dot_product_attention(*[x.reshape(1, 40, 4, 10)] * 3), a),
    (lambda x: image(x.reshape(1, 1, 40, 40).repeat(3, 1)), a),
    (lambda x: (x.astype("float16") * 2).sum(0), a),
    (lambda x: fg.random.normal(fg.random.key(1), x.shape) + x, a),
    (lambda x: x.reshape(1600)[:0], a),
]
for fun, *args in programs:
    for leaf in fg.tree.leaves(fg.jit(fun)(*args)):
        print(np.asarray(leaf).tobytes().hex())
b = a + 0
print(np.asarray(fg.jit(lambda x: x * 3, donate_argnums=0)(b)).tobytes().hex(), b.is_deleted())
ours = {f"funcgrad.backends.llvm.{name}" for name in ("build", "compiler", "libllvm")}
loaded = {"llvmlite.binding", *ours} & set(sys.modules)
print("compiler" if loaded else "no compiler")
"""
ADD = """
import sys
import numpy as np
import funcgrad as fg
print(fg.jit(lambda x: x + 1)(np.arange(3.0)), "funcgrad.backends.llvm.build" in sys.modules)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


HOST = {"FUNCGRAD_TARGET": "host"}  # whatever the tests' own process generates code for


def run(text, **environment):
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=os.environ | HOST | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# A product that goes in bands of rows, whose loop is a function of its own.
BANDS = """
import hashlib
import numpy as np
import funcgrad as fg, funcgrad.numpy as fnp

def fun(x, w):
    return fnp.tanh(fnp.tanh(x @ w) @ w)

x = (np.arange(40_000 * 64, dtype=np.float32) % 97 / 97).reshape(40_000, 64)
f = fg.jit(fun)
print(hashlib.sha256(np.asarray(f(x, x[:64]))).hexdigest())
print("parallel t0" in f.lower(x, x[:64]).as_text("loops"))
"""


def test_bands_of_rows(folder):
    first = run(BANDS, FUNCGRAD_NUM_THREADS="2")
    assert first[1] == "True"
    assert run(BANDS, FUNCGRAD_NUM_THREADS="2") == run(BANDS, FUNCGRAD_NUM_THREADS="1") == first


def test_second_process_loads_no_compiler(folder):
    *first, how = run(PROGRAMS)
    assert how == "compiler"
    *second, how = run(PROGRAMS)
    assert how == "no compiler"
    assert first == second
    if os.uname().machine == "x86_64":
        *generic, how = run(PROGRAMS, FUNCGRAD_TARGET="generic")
        assert how == "compiler"
        assert len(generic) == len(first)
        assert run(PROGRAMS) == [*first, "no compiler"]


@pytest.mark.long
def test_damaged_files_are_made_again(folder):
    good = "[1. 2. 3.]"
    assert run(ADD) == [f"{good} True"]
    assert run(ADD) == [f"{good} False"]
    files = sorted(folder.iterdir())
    for harm in (
        lambda b: b[: len(b) // 2],
        lambda b: b"",
        lambda b: b[:-1] + bytes([b[-1] ^ 1]),
        lambda b: b.replace(b"code", b"edoc"),
    ):
        for path in files:
            path.write_bytes(harm(path.read_bytes()))
        assert run(ADD) == [f"{good} True"]
    for path in files:  # each of them alone
        path.unlink()
        assert run(ADD)[0].startswith(good)
    first, *others = [path.read_bytes() for path in files]
    for path, other in zip(files, [*others, first], strict=True):
        path.write_bytes(other)
    assert run(ADD) == [f"{good} True"]


def test_many_start_at_once(folder):
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", ADD], env=os.environ | HOST, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    assert {r.communicate()[0].split("]")[0] for r in runs} == {"[1. 2. 3."}
    assert run(ADD) == ["[1. 2. 3.] False"]


def test_nothing_is_kept_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", "")
    assert key(lambda x: x + 1) is None
    assert run(ADD, HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path)) == ["[1. 2. 3.] True"]
    assert not list(tmp_path.iterdir())


def key(fun, x=np.ones(3, np.float32), donated=False):  # noqa: B008
    return saved.key(fg.make_jaxpr(fun)(x).jaxpr, [donated])


def test_keys_differ_in_all_that_counts(folder):
    def f(x):
        return x * 2

    before = fg.num_threads()
    keys = [
        key(f),
        key(f, donated=True),
        key(f, np.ones(4, np.float32)),
        key(f, np.ones(3)),
        key(lambda x: x * 3),
    ]
    try:
        fg.set_num_threads(before + 1)
        keys.append(key(f))
    finally:
        fg.set_num_threads(before)
    with context.scoped(axes={"i": 2}):
        keys.append(key(f))
    with context.scoped(float_dtype=np.dtype("float64")):
        keys.append(key(f))
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert key(f) == keys[0]


def test_sharded_programs_differ(folder):
    mesh = fg.parallel.make_mesh((2,), ("i",))
    x = np.arange(8, dtype=np.float32)

    def total(x):
        return fnp.cumsum(x * 2)

    plain = fg.jit(total)(x)
    for spec in (fg.P(), fg.P("i")):
        cut = fg.device_put(x, fg.NamedSharding(mesh, spec))
        for _ in range(2):
            np.testing.assert_array_equal(fg.jit(lambda x: total(x))(cut), plain)


def test_changed_sources_keep_nothing(folder, monkeypatch):
    monkeypatch.setattr(saved, "_source", saved._Source())
    monkeypatch.setattr(saved.backend, "LOADED", 0)
    assert key(lambda x: x + 1) is None
    monkeypatch.setattr(saved.backend, "LOADED", 1 << 62)
    monkeypatch.setattr(saved, "_source", saved._Source())
    assert key(lambda x: x + 1) is not None
    executable = fg.jit(lambda x: x + 17).lower(1.0)._executable()
    saved.save("good", executable)
    assert objects.load("good") is not None
    # A module that is loaded after its file changed.
    monkeypatch.setitem(saved._source._files, os.path.join("backends", "late.py"), (1, 2))
    saved._source._checked.discard("funcgrad.backends.late")
    saved.save("k", executable)
    assert objects.load("k") is None
    assert key(lambda x: x + 1) is None
    monkeypatch.setattr(saved, "_source", saved._Source())
    assert key(lambda x: x + 1) is not None


def test_python_steps_are_not_kept(folder):
    called = []

    def mine(x):
        called.append(1)
        return np.sin(x)

    x = np.ones(3, np.float32)
    for _ in range(2):
        fg.jit(lambda x: fg.pure_callback(mine, x, x))(x)
    assert len(called) == 2
    # The impl of an op of this package, in Python: known by its name, but its code isn't native.
    for _ in range(2):
        out = fg.jit(lambda x: fnp.fft.fft(x))(x)
    np.testing.assert_allclose(out, np.fft.fft(x), atol=1e-6)


def test_loaded_programs_show_themselves(folder):
    x = np.ones((8, 8), np.float32)

    def make():
        return fg.jit(lambda x: fnp.tanh(x @ x) + 3).lower(x).compile()

    first, second = make(), make()
    assert "with its program" in str(second.compile_report())
    assert [s.name for s in second.compile_report().stages] == [
        s.name for s in first.compile_report().stages
    ]
    for stage in ("loops", "llvm", "asm"):
        assert first.as_text(stage) == second.as_text(stage)
    assert first.memory_analysis() == second.memory_analysis()
    assert first.cost_analysis() == second.cost_analysis()
    assert repr(second._executable) == repr(first._executable)
    np.testing.assert_array_equal(first(x), second(x))
    with pytest.raises(TypeError, match="takes arguments of types"):
        second(x[:4])
