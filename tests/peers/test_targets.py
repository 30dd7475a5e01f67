"""Libraries for other processors: what they compute under emulators, within the ops' bounds.

`make test-peers` runs them where zig or GNU's compilers, qemu and node are.
"""

import itertools
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, lax, nn, random
from funcgrad.dtypes import ALL, COMPLEX, bfloat16
from funcgrad.errors import ExportError
from funcgrad.export.native import library
from funcgrad.export.native.toolchain import toolchain
from tests.export.golden_files import golden
from tests.export.native.all_ops import HELD, NARROW, unlike
from tests.op_checks import typical

PROGRAMS = Path(__file__).parents[1] / "export" / "native"

# zig's first link for a target compiles a C library, and all ops are thousands of kernels.
pytestmark = pytest.mark.timeout(1800)

# What runs the programs of targets: qemu for a processor, node for WebAssembly.
EMULATORS = {"aarch64-linux": "aarch64", "armv7-linux": "arm", "riscv64-linux": "riscv64",
             "wasm32": ""}  # fmt: skip

# Dtypes whose samples are in one library.
FAMILIES = {
    "narrow": (np.dtype(bool), *NARROW),
    "signed": tuple(map(np.dtype, ("int8", "int16", "int32", "int64"))),
    "unsigned": tuple(map(np.dtype, ("uint8", "uint16", "uint32", "uint64"))),
    "half": (np.dtype("float16"), np.dtype(bfloat16)),
    "floats": (np.dtype("float32"), np.dtype("float64")),
    "complex": COMPLEX,
}

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


def compiler(target):
    """What calls a C compiler for a target; without one the test is skipped, and says so."""
    try:
        return toolchain(target).cc
    except ExportError as error:
        pytest.skip(str(error))


def run(exported, args, folder, target):
    """The bytes of the results of a function's library for a target, from an emulator of it."""
    cc = compiler(target)
    for i, x in enumerate(args):
        (folder / f"in{i}.bin").write_bytes(np.asarray(x).tobytes())
    command = under_node if target == "wasm32" else under_qemu
    subprocess.run(command(exported, folder, target, cc), check=True)
    return [(folder / f"out0_{i}.bin").read_bytes() for i in range(len(exported.out_avals))]


def under_qemu(exported, folder, target, cc):
    name = f"qemu-{EMULATORS[target]}"
    emulator = shutil.which(f"{name}-static") or shutil.which(name)
    if emulator is None:
        pytest.skip(f"needs {name} (apt install qemu-user-static)")
    made = export.aot(exported, folder, name="net", target=target, kind="static")
    program = folder / "main"
    subprocess.run(
        [*cc, "-static", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{folder}",
         str(PROGRAMS / "main.c"), str(made.library), "-lm", "-lpthread", "-o", str(program)],
        check=True,
    )  # fmt: skip
    return [emulator, str(program), "2", str(folder)]


def under_node(exported, folder, target, _):
    if shutil.which("node") is None:
        pytest.skip("needs node")
    made = export.aot(exported, folder, name="net", target=target)
    return ["node", PROGRAMS / "run.js", made.library, folder, str(made.arena_bytes)]


@pytest.mark.parametrize("target", EMULATORS)
def test_a_program_of_many_kinds(tmp_path, target):
    exported = export.export(fg.jit(many))(*ARGS)
    wanted = fg.tree.leaves(exported.call(*ARGS))
    for i, (data, w) in enumerate(zip(run(exported, ARGS, tmp_path, target), wanted, strict=True)):
        w = np.asarray(w)
        got = np.frombuffer(data, w.dtype).reshape(w.shape)
        rtol = 2e-3 if w.dtype == np.float16 else 1e-5 if w.dtype == np.float32 else 1e-13
        if w.dtype.kind == "f":
            np.testing.assert_allclose(got, w, rtol=rtol, atol=rtol * np.abs(w).max(), err_msg=i)
        else:
            np.testing.assert_array_equal(got, w, err_msg=i)


@pytest.mark.parametrize("target", EMULATORS)
def test_all_ops_within_their_bounds(tmp_path, target):
    check_ops(tmp_path, target, [(row, d) for row, d in HELD if d == typical(row)])


@pytest.mark.slow
@pytest.mark.parametrize("dtypes", FAMILIES)
@pytest.mark.parametrize("target", EMULATORS)
def test_all_ops_in_all_dtypes(tmp_path, monkeypatch, target, dtypes):
    # Else a library for this processor would measure it, in as long as the other takes.
    monkeypatch.setattr(library, "_scratch", lambda *_: 1 << 24)
    check_ops(tmp_path, target, [(row, d) for row, d in HELD if d in FAMILIES[dtypes]])


def test_the_families_have_all_dtypes():
    assert sorted(map(str, itertools.chain(*FAMILIES.values()))) == sorted(map(str, ALL))


def check_ops(tmp_path, target, chosen):
    fun, args = golden(chosen)
    exported = export.export(fg.jit(fun), rule_order=0)(*args)
    results = run(exported, fg.tree.leaves(args), tmp_path, target)
    assert unlike(chosen, results) == []


@pytest.mark.parametrize("target", ["aarch64-macos", "x86-64-windows"])
def test_libraries_for_other_systems(tmp_path, target):
    compiler(target)
    e = export.export(fg.jit(lambda x: nn.gelu(x @ W)))(X)
    made = export.aot(e, tmp_path, name="net", target=target, kind="static")
    assert made.library.name == "libnet.a"
    assert made.library.read_bytes().startswith(b"!<arch>")
