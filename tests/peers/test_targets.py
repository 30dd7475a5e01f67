"""Libraries for other processors: what they compute under emulators, within the ops' bounds.

`make test-peers` runs them where zig or GNU's compilers, qemu and node are.
"""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, lax, nn, random
from funcgrad.errors import ExportError
from funcgrad.export.native.toolchain import toolchain

PROGRAMS = Path(__file__).parents[1] / "export" / "native"

pytestmark = pytest.mark.timeout(900)  # zig's first link for a target compiles a C library

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


def compiler(target):
    """What calls a C compiler for a target; without one the test is skipped, and says so."""
    try:
        return toolchain(target).cc
    except ExportError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("target", "machine"),
    [("aarch64-linux", "aarch64"), ("armv7-linux", "arm"), ("riscv64-linux", "riscv64")],
)
def test_other_processors_under_qemu(tmp_path, exported, target, machine):
    cc = compiler(target)
    emulator = shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")
    if emulator is None:
        pytest.skip(f"needs qemu-{machine} (apt install qemu-user-static)")
    made = export.aot(exported, tmp_path, name="net", target=target, kind="static")
    program = tmp_path / "main"
    subprocess.run(
        [*cc, "-static", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path}",
         str(PROGRAMS / "main.c"), str(made.library), "-lm", "-lpthread", "-o", str(program)],
        check=True,
    )  # fmt: skip
    write_inputs(tmp_path)
    subprocess.run([emulator, str(program), "2", str(tmp_path)], check=True)
    check(exported, tmp_path)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_webassembly_under_node(tmp_path, exported):
    compiler("wasm32")
    made = export.aot(exported, tmp_path, name="net", target="wasm32")
    write_inputs(tmp_path)
    command = ["node", PROGRAMS / "run.js", made.library, tmp_path, str(made.arena_bytes)]
    subprocess.run(command, check=True)
    check(exported, tmp_path)


@pytest.mark.parametrize("target", ["aarch64-macos", "x86-64-windows"])
def test_libraries_for_other_systems(tmp_path, target):
    compiler(target)
    e = export.export(fg.jit(lambda x: nn.gelu(x @ W)))(X)
    made = export.aot(e, tmp_path, name="net", target=target, kind="static")
    assert made.library.name == "libnet.a"
    assert made.library.read_bytes().startswith(b"!<arch>")
