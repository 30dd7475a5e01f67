"""Libraries for other processors: what they compute under emulators, within the ops' bounds."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, lax, nn, random
from funcgrad.backends.llvm.native.foreign import FOREIGN
from funcgrad.backends.llvm.native.libllvm import Machine, Module
from funcgrad.backends.llvm.native.target import LEVELS, Target
from funcgrad.errors import CompileError, ExportError

HERE = Path(__file__).parent
ZIG = (shutil.which("zig"),) if shutil.which("zig") else (sys.executable, "-m", "ziglang")
HAS_ZIG = bool(shutil.which("zig") or importlib.util.find_spec("ziglang"))
needs_zig = pytest.mark.skipif(not HAS_ZIG, reason="needs zig (pip install ziglang)")

RNG = np.random.default_rng(0)
W = RNG.normal(size=(16, 16)).astype("float32")
X = RNG.normal(size=(8, 16)).astype("float32")
KERNEL = RNG.normal(size=(4, 3, 3, 3)).astype("float32")
IMAGES = RNG.normal(size=(1, 3, 8, 8)).astype("float32")
KEY = np.array([3, 4], "uint32")


def many(x, images, key):
    """Operations of many kinds in one program, as each program has to be compiled."""
    h = nn.gelu(x @ W)
    spd = h @ h.T + 8 * fnp.eye(8)
    p, q = x[None, :, None], h[None, :, None]
    return {
        "attention": nn.dot_product_attention(p, q, q, is_causal=True),
        "bits": random.bits(random.wrap_key_data(key), (5,)),
        "cholesky": fnp.linalg.cholesky(spd),
        "conv": nn.relu(lax.conv(images, KERNEL, (1, 1), "SAME")).max(axis=(2, 3)),
        "doubles": fnp.exp(x[0].astype("float64")) @ W.astype("float64"),
        "grad": fg.grad(lambda w: fnp.sum(nn.softplus(x @ w)))(fnp.asarray(W)),
        "half": h.astype("float16").sum(),
        "ints": (key * 3) // 2 + x[0, 0].astype("int64"),
        "scan": lax.scan(lambda c, r: (fnp.tanh(c @ W + r), c.sum()), h[0], h)[1],
        "softmax": fnp.mean(nn.softmax(h @ h.T), axis=1),
        "sorted": fnp.sort(h.reshape(-1)),
        "special": (lax.erf(x), fnp.log1p(x * x), fnp.sin(x), fnp.arctan2(x, h), x**2.5),
        "while": lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 1.5), (0, x))[1],
    }


ARGS = (X, IMAGES, KEY)


@pytest.mark.parametrize("name", FOREIGN)
def test_objects_of_all_targets(name):
    target = Target.named(name)
    text = "define <4 x float> @f(<4 x float> %x, <4 x float> %y) { ret <4 x float> %y }"
    with Machine(target.triple, target.cpu, target.features, 3) as machine:
        with Module(text, machine) as module:
            code = module.code()
    magic = {"x86-64-windows": b"\x64\x86", "aarch64-windows": b"\x64\xaa", "wasm32": b"\0asm"}
    known = b"\xcf\xfa\xed\xfe" if name.endswith(("macos", "ios")) else b"\x7fELF"
    assert code.startswith(magic.get(name, known))
    assert not target.runs_here


def test_levels_are_other_processors_where_they_are_not_reached():
    target = Target.named("x86-64-v4-linux")
    assert target.has("avx512f")
    assert not target.runs_here
    assert [Target.named(f"{level}-linux").vector_bits for level in LEVELS] == [128, 128, 256, 512]


def test_programs_for_other_processors_are_not_run_here():
    code = (
        "import funcgrad as fg\nprint((fg.numpy.ones(3) + 1).sum())\nfg.jit(lambda x: x * 2)(1.0)"
    )
    environment = {"FUNCGRAD_TARGET": "riscv64-linux", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.stdout == "6.0\n"
    assert f"{CompileError.__name__}: FUNCGRAD_TARGET is riscv64-unknown-linux-gnu" in done.stderr


# ---- under emulators


@pytest.fixture(scope="module")
def exported():
    return export.export(fg.jit(many))(*ARGS)


def check(exported, folder):
    """What was written is what jit computes, within the bounds of ops."""
    wanted = fg.tree.leaves(exported.call(*ARGS))
    for i, w in enumerate(map(np.asarray, wanted)):
        got = np.fromfile(folder / f"out0_{i}.bin", w.dtype).reshape(w.shape)
        rtol = 2e-3 if w.dtype == np.float16 else 1e-5 if w.dtype == np.float32 else 1e-13
        if w.dtype.kind == "f":
            np.testing.assert_allclose(got, w, rtol=rtol, atol=rtol * np.abs(w).max(), err_msg=i)
        else:
            np.testing.assert_array_equal(got, w, err_msg=i)


def write_inputs(folder):
    for i, x in enumerate(ARGS):
        (folder / f"in{i}.bin").write_bytes(x.tobytes())


@needs_zig
@pytest.mark.parametrize(
    ("target", "machine", "system"),
    [
        ("aarch64-linux", "aarch64", "aarch64-linux-musl"),
        ("armv7-linux", "arm", "arm-linux-musleabihf"),
        ("riscv64-linux", "riscv64", "riscv64-linux-musl"),
    ],
)
def test_other_processors_under_qemu(tmp_path, exported, target, machine, system):
    emulator = shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")
    if emulator is None:
        pytest.skip(f"needs qemu-{machine} (apt install qemu-user-static)")
    made = export.aot(exported, tmp_path, name="net", target=target, kind="static")
    program = tmp_path / "main"
    subprocess.run(
        [*ZIG, "cc", "-target", system, "-static", "-O1", "-Wall", "-Wextra", "-Werror",
         f"-I{tmp_path}", str(HERE / "main.c"), str(made.library), "-lm", "-o", str(program)],
        check=True,
    )  # fmt: skip
    write_inputs(tmp_path)
    subprocess.run([emulator, str(program), "2", str(tmp_path)], check=True)
    check(exported, tmp_path)


@needs_zig
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_webassembly_under_node(tmp_path, exported):
    made = export.aot(exported, tmp_path, name="net", target="wasm32")
    write_inputs(tmp_path)
    command = ["node", HERE / "run.js", made.library, tmp_path, str(made.arena_bytes)]
    subprocess.run(command, check=True)
    check(exported, tmp_path)


@needs_zig
@pytest.mark.parametrize(
    ("target", "kind", "file"),
    [("aarch64-macos", "static", "libnet.a"), ("x86-64-windows", "static", "libnet.a")],
)
def test_objects_for_other_systems(tmp_path, target, kind, file):
    e = export.export(fg.jit(lambda x: nn.gelu(x @ W)))(X)
    made = export.aot(e, tmp_path, name="net", target=target, kind=kind)
    assert made.library.name == file
    assert made.library.read_bytes().startswith(b"!<arch>")


# ---- refusals


def test_kinds_that_a_system_lacks(tmp_path):
    e = export.export(fg.jit(fnp.sin))(X)
    with pytest.raises(ExportError, match="no kind='object' for windows"):
        export.aot(e, tmp_path, target="x86-64-windows", kind="object")


def test_targets_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    e = export.export(fg.jit(fnp.sin))(X)
    with pytest.raises(ExportError, match="target='aarch64-ios' needs a C compiler for it: set CC"):
        export.aot(e, tmp_path, target="aarch64-ios", kind="static")
