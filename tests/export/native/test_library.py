"""C libraries: programs in C give the bits that jit gives; what they say of faults."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, lax, nn, optim, random
from funcgrad.errors import ArgumentError, ExportError
from funcgrad.export.native.library import _FUNCTIONS
from tests.export.onnx.applications import APPLICATIONS
from tests.export.onnx.programs import PROGRAMS

MAIN = Path(__file__).parent / "main.c"
CC = shutil.which("gcc") or shutil.which("cc")
pytestmark = pytest.mark.skipif(CC is None, reason="needs a C compiler")
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1"]

RNG = np.random.default_rng(0)
W = RNG.normal(size=(16, 16)).astype("float32")
X = RNG.normal(size=(8, 16)).astype("float32")


def built(folder, library, *flags):
    """The test's program, linked with a library."""
    program = folder / "main"
    subprocess.run(
        [CC, *STRICT, *flags, f"-I{library.header.parent}", str(MAIN), str(library.library),
         "-lm", "-lpthread", f"-Wl,-rpath,{library.library.parent}", "-o", str(program)],
        check=True,
    )  # fmt: skip
    return program


def outputs(program, args, avals, threads=1, *weights):
    """What the program computes, in each of its threads."""
    folder = program.parent
    for i, x in enumerate(args):
        (folder / f"in{i}.bin").write_bytes(np.ascontiguousarray(x).tobytes())
    subprocess.run([program, str(threads), str(folder), *map(str, weights)], check=True)
    return [
        [np.fromfile(folder / f"out{t}_{i}.bin", a.dtype).reshape(a.shape)
         for i, a in enumerate(avals)]
        for t in range(threads)
    ]  # fmt: skip


def check(tmp_path, fun, *args, threads=1, samples=(), flags=(), **options):
    """A function's library gives what jit does, to the bit."""
    f = fg.jit(fun)
    e = export.export(f)(*args)
    e = export.deserialize(e.serialize(samples=samples))
    library = export.aot(e, tmp_path / "lib", name="net", **options)
    beside = [library.weights] if options.get("weights") == "beside" else []
    leaves = [np.asarray(x) for x in fg.tree.leaves((args, {}))]
    found = outputs(built(tmp_path, library, *flags), leaves, e.out_avals, threads, *beside)
    want = [np.asarray(y) for y in fg.tree.leaves(f(*args))]
    for got in found:
        for g, w in zip(got, want, strict=True):
            assert g.tobytes() == w.tobytes()
    return library


def network(x):
    h = nn.gelu(x @ W)
    loss = fnp.mean(nn.softmax(h @ h.T), axis=1)
    looped = lax.scan(lambda c, row: (fnp.tanh(c @ W + row), c.sum()), h[0], h)[1]
    half = h.astype("float16").sum()
    return {"loss": loss, "sorted": fnp.sort(h.reshape(-1)), "half": half, "looped": looped}


@pytest.mark.parametrize("weights", ["inside", "beside"])
@pytest.mark.parametrize("kind", ["shared", "static", "object"])
def test_libraries_of_all_kinds_give_the_bits_of_jit(tmp_path, kind, weights):
    library = check(tmp_path, network, X, kind=kind, weights=weights, threads=2)
    names = ["nm", "--defined-only", "-g", *(["-D"] if kind == "shared" else [])]
    shown = subprocess.run([*names, library.library], capture_output=True, text=True, check=True)
    found = set(re.findall(r" [A-Z] (\w+)", shown.stdout))
    public = {f"net_{name}" for name in _FUNCTIONS}
    assert public <= found
    assert all(n.startswith("net_fg_") for n in found - public - {"net_weights"})
    assert kind != "shared" or found == public


def test_a_shared_library_needs_libc_alone(tmp_path):
    library = check(tmp_path, network, X)
    told = subprocess.run(["readelf", "-d", library.library], capture_output=True, text=True,
                          check=True)  # fmt: skip
    needed = re.findall(r"NEEDED.*\[(.*)\]", told.stdout)
    assert all(n.startswith(("libc.", "libm.", "ld-linux")) for n in needed), needed
    shown = subprocess.run(["nm", "-D", "--undefined-only", library.library], capture_output=True,
                           text=True, check=True).stdout  # fmt: skip
    called = set(re.findall(r" U (\w+)", shown))
    assert not called & {"malloc", "calloc", "realloc", "posix_memalign", "mmap", "abort", "exit"}


@pytest.mark.parametrize("target", ["generic", "x86-64-v3"])
def test_libraries_for_other_processors(tmp_path, target):
    e = export.export(fg.jit(network))(X)
    try:
        library = export.aot(e, tmp_path / "lib", name="net", target=target)
    except ExportError as error:  # a processor that doesn't reach the level
        if "this processor" not in str(error):
            raise
        pytest.skip(f"{target} can't be run here")
    (found,) = outputs(built(tmp_path, library), [X], e.out_avals)
    for g, w in zip(found, fg.tree.leaves(e.call(X)), strict=True):
        np.testing.assert_allclose(g.astype("float32"), np.asarray(w).astype("float32"), rtol=2e-3)
    symbols = subprocess.run(["objdump", "-d", library.library], capture_output=True, text=True,
                             check=True).stdout  # fmt: skip
    assert "%zmm" not in symbols
    assert ("%ymm" in symbols) == (target == "x86-64-v3")


def test_refusals_of_other_processes_are_errors_here(tmp_path):
    e = export.export(fg.jit(lambda x: fnp.linalg.eig(x)[0]))(X[:8, :8])
    with pytest.raises(ExportError, match=r"for generic: .*eig at test_library.py:\d+"):
        export.aot(e, tmp_path, name="net", target="generic")


def loop(n, x):
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, fnp.sin(s[1]) + x), (0, x))[1]


def branches(p, x):
    return lax.cond(p, lambda x: fnp.cumsum(x, axis=0) * 2, lambda x: fnp.sort(x, axis=0), x)


def convolved(x):
    kernel = fnp.asarray(RNG.normal(size=(4, 3, 3, 3)).astype("float32"))
    return nn.relu(lax.conv(x, kernel, (1, 1), "SAME")).max(axis=(2, 3))


def drawn(key):
    return random.normal(random.wrap_key_data(key), (5,)), random.bits(random.wrap_key_data(key))


def attended(q):
    return nn.dot_product_attention(q, q, q, is_causal=True)


SPD = X[:, :8] @ X[:, :8].T + 8 * np.eye(8, dtype="float32")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (loop, (np.int32(5), X)),
        (branches, (np.bool_(True), X)),
        (branches, (np.bool_(False), X)),
        (convolved, (RNG.normal(size=(2, 3, 8, 8)).astype("float32"),)),
        (drawn, (np.array([3, 4], "uint32"),)),
        (attended, (RNG.normal(size=(1, 32, 2, 16)).astype("float32"),)),
        (lambda x: fnp.fft.fft(x), (X.astype("complex64"),)),
        (lambda a: (fnp.linalg.cholesky(a), fnp.linalg.solve(a, a[0])), (SPD,)),
        (fg.value_and_grad(lambda w: fnp.sum(nn.softplus(X @ w))), (W,)),
        (lambda x: (x + 1, x > 0, x.astype("bfloat16"), x[:0]), (X.astype("float64"),)),
    ],
    ids=["while", "cond", "cond else", "conv", "random", "attention", "fft", "linalg", "grad",
         "dtypes"],
)  # fmt: skip
def test_programs_of_many_kinds(tmp_path, fun, args):
    check(tmp_path, fun, *args, samples=[args])


def test_a_step_of_training(tmp_path):
    optimizer = optim.adam(0.1)

    def step(w, state, x):
        loss, g = fg.value_and_grad(lambda w: fnp.mean((nn.relu(x @ w) - 1) ** 2))(w)
        updates, state = optimizer.update(g, state, w)
        return optim.apply_updates(w, updates), state, loss

    check(tmp_path, step, W, optimizer.init(W), X)


# Not what LAPACK computes, nor what takes quantized parameters: a file has no name for their class.
WHOLE = {
    name: program for name, program in (PROGRAMS | APPLICATIONS).items()
    if name != "principal_components" and not name.startswith("quantized")
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", WHOLE)
def test_whole_programs_through_a_file_and_c(tmp_path, name):
    program = WHOLE[name]()
    check(tmp_path, program.fun, *program.args, samples=[program.args])


# ---- faults


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    e = export.export(fg.jit(network))(X)
    made = export.aot(e, tmp_path_factory.mktemp("lib"), name="net", weights="beside")
    lib = ctypes.CDLL(str(made.library))
    lib.net_message.restype = ctypes.c_char_p
    return made, lib


def aligned(nbytes):
    buffer = ctypes.create_string_buffer(nbytes + 64)
    return buffer, ctypes.addressof(buffer) + -ctypes.addressof(buffer) % 64


class Session:
    """A context of the library."""

    def __init__(self, library):
        made, self.lib = library
        self.context = ctypes.create_string_buffer(256)
        data = made.weights.read_bytes()
        self.size = ctypes.c_size_t(len(data))
        self.kept, self.weights = aligned(len(data))
        ctypes.memmove(self.weights, data, len(data))
        self.arena_kept, self.arena = aligned(made.arena_bytes)
        self.arena_bytes = made.arena_bytes
        shapes = [(8,), (8,), (), (128,)]
        self.outs = [aligned(4 * int(np.prod(s)) + 64) for s in shapes]
        self.x = np.require(X, requirements=["C", "A"])

    def init(self, weights=None, size=None):
        at = ctypes.c_void_p(self.weights if weights is None else weights)
        return self.lib.net_init(self.context, ctypes.c_size_t(256), at, size or self.size)

    def run(self, x=None, arena=None, nbytes=None):
        ins = (ctypes.c_void_p * 1)(self.x.ctypes.data if x is None else x)
        outs = (ctypes.c_void_p * 4)(*(place for _, place in self.outs))
        at = ctypes.c_void_p(self.arena if arena is None else arena)
        size = ctypes.c_size_t(self.arena_bytes if nbytes is None else nbytes)
        return self.lib.net_run(self.context, ins, outs, at, size)

    def message(self):
        return self.lib.net_message(self.context).decode()


OK, BAD_ARGUMENT, SMALL_ARENA, BAD_WEIGHTS = range(4)


def test_faults_are_statuses_with_messages(library):
    s = Session(library)
    assert s.run() == BAD_ARGUMENT  # before init
    assert s.init(size=ctypes.c_size_t(12)) == BAD_WEIGHTS
    assert "weights must be the file net.safetensors" in s.message()
    ctypes.memset(s.weights + 20, 0, 1)
    assert s.init() == BAD_WEIGHTS
    s = Session(library)
    assert s.init(weights=s.weights + 4) == BAD_WEIGHTS
    assert s.init() == OK
    assert s.run(x=0) == BAD_ARGUMENT
    assert s.message() == "net: input 0 (x) is NULL or not aligned to its dtype"
    assert s.run(x=s.x.ctypes.data + 1) == BAD_ARGUMENT
    assert s.run(arena=s.arena + 8) == BAD_ARGUMENT
    assert s.run(nbytes=0) == SMALL_ARENA
    assert re.search("the arena has 0 bytes, needed are [1-9]", s.message())
    assert s.run() == OK
    assert s.message() == ""
    assert 0 < s.lib.net_arena_used(s.context) <= s.arena_bytes


def test_tasks_without_memory_end_the_run_alone(library):
    s = Session(library)
    assert s.init() == OK
    assert s.run(nbytes=s.arena_bytes - 64) in (OK, SMALL_ARENA)
    assert s.run() == OK


def test_the_header_is_c99_and_cxx(tmp_path, library):
    made, _ = library
    for compiler, language in ((CC, "c"), (shutil.which("g++"), "c++")):
        if compiler is None:
            continue
        std = "-std=c99" if language == "c" else "-std=c++11"
        subprocess.run([compiler, std, "-Wall", "-Wextra", "-Wpedantic", "-Werror",
                        "-fsyntax-only", "-x", language, str(made.header)], check=True)  # fmt: skip


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
@pytest.mark.parametrize("kind", ["shared", "static"])
def test_cmake_finds_a_library(tmp_path, kind):
    library = export.aot(export.export(fg.jit(fnp.sin))(X), tmp_path / "lib", name="net", kind=kind)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.12)\nproject(test C)\n"
        f"find_package(net REQUIRED PATHS {library.header.parent} NO_DEFAULT_PATH)\n"
        "find_package(Threads REQUIRED)\n"
        f"add_executable(main {MAIN})\n"
        "target_link_libraries(main net::net Threads::Threads)\n"
    )
    for command in (["cmake", "-S", ".", "-B", "."], ["cmake", "--build", "."]):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (found,) = outputs(tmp_path / "main", [X], [fg.eval_shape(fnp.sin, X).aval])
    np.testing.assert_array_equal(found[0], fg.jit(fnp.sin)(X))


# ---- refusals


@pytest.mark.parametrize("op", ["eig", "svd"])
def test_what_numpy_would_compute_is_refused_by_name_and_line(tmp_path, op):
    e = export.export(fg.jit(lambda x: getattr(fnp.linalg, op)(x)))(X[:8, :8])
    with pytest.raises(ExportError, match=rf"export.aot of .*: {op} at test_library.py:\d+"):
        export.aot(e, tmp_path, name="net")


def test_wrong_arguments(tmp_path):
    e = export.export(fg.jit(fnp.sin))(X)
    with pytest.raises(ArgumentError, match="'no name' can't begin names in C"):
        export.aot(e, tmp_path, name="no name")
    with pytest.raises(ArgumentError, match="kind must be one of .*'shared'.*got 'dll'"):
        export.aot(e, tmp_path, kind="dll")
    with pytest.raises(ArgumentError, match="export.aot takes an Exported"):
        export.aot(fg.jit(fnp.sin), tmp_path)
    with pytest.raises(ArgumentError, match="target must be one of"):
        export.aot(e, tmp_path, target="z80")


def test_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ExportError, match="needs no-such-compiler, which is not on PATH"):
        export.aot(export.export(fg.jit(fnp.sin))(X), tmp_path)
