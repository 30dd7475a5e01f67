"""Libraries for the web: their JavaScript modules under Node, and a page in a browser.

They need a compiler for WebAssembly (zig), Node and Chromium; without them tests are skipped.
"""

import functools
import http.server
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, random
from funcgrad.errors import ExportError
from funcgrad.export.native.toolchain import toolchain
from tests.serve.test_page import BROWSER, opened

ROOT = Path(__file__).parents[2]
ALPHABET = "\nabcß…"
NODE = shutil.which("node")
pytestmark = pytest.mark.timeout(900)  # zig's first link compiles a C library
needs_node = pytest.mark.skipif(NODE is None, reason="needs node")


@pytest.fixture(scope="module", autouse=True)
def compiler():
    try:
        toolchain("wasm32")
    except ExportError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The folder of the demo's page, and the text that Python writes."""
    sys.path.insert(0, str(ROOT / "examples"))
    import native_gpt

    cfg = native_gpt.gpt.Config(len(ALPHABET), context=8, width=8, heads=2, layers=1)
    model = native_gpt.gpt.init_params(random.key(1), cfg), cfg, ALPHABET
    folder = tmp_path_factory.mktemp("web")
    native_gpt.save_web(folder, *model)
    step, (cache, *_) = native_gpt.step_of(*model)
    yield folder, written(fg.jit(step), np.zeros(cache.shape, cache.dtype), 7, 400)
    sys.path.remove(str(ROOT / "examples"))


def written(step, cache, seed, length):
    text, begin, fed = [ord("\n")], 0, 0
    while len(text) <= length:
        if fed - begin == 8:
            begin = fed = len(text) - 4
        cache, drawn = step(cache, *np.array([text[fed], fed - begin, seed + fed], "int32"))
        fed += 1
        if fed == len(text):
            text.append(int(drawn))
    return "".join(map(chr, text[1:]))


W = np.arange(16, dtype="float32").reshape(4, 4)


def fun(x, n):
    return fnp.sin(x) @ W, n * 2, fnp.any(x > 1)


@needs_node
@pytest.mark.parametrize("weights", ["inside", "beside"])
def test_a_module_under_node(tmp_path, weights):
    x = (np.arange(12, dtype="float32") / 4 - 1).reshape(3, 4)
    n = np.arange(1, 4, dtype="int64")
    exported = export.export(fg.jit(fun))(x, n)
    made = export.aot(exported, tmp_path, name="net", target="wasm32", weights=weights)
    script = ROOT / "tests/export/native/module.mjs"
    done = subprocess.run([NODE, script, made.library.with_suffix(".mjs"), tmp_path], check=True,
                          capture_output=True, text=True)  # fmt: skip
    told = json.loads(done.stdout)
    assert told["inputs"] == [
        {"name": "x", "dtype": "float32", "dims": [3, 4]},
        {"name": "n", "dtype": "int64", "dims": [3]},
    ]
    assert told["kinds"] == ["Float32Array", "BigInt64Array", "Uint8Array"]
    first = exported.call(x, n)
    second = exported.call(first[0], n)
    for found, wanted in ((told["first"], first), (told["second"], second)):
        for got, want in zip(found.values(), map(np.asarray, wanted), strict=True):
            np.testing.assert_allclose(np.reshape(got, want.shape), want, rtol=1e-5, atol=1e-5)
    bad_weights = "net: weights must be the file net.safetensors, aligned to 64 bytes"
    assert told["faults"] == [
        [True, 1, "net: there is no input y"],
        [True, 1, "net: n must be numbers of int64, got nothing"],
        [True, 1, "net: x must be numbers of float32, got Float64Array"],
        [True, 1, "net: x has 12 numbers, got 2"],
        [True, 3, bad_weights],
        [True, 3, bad_weights],
    ]


@needs_node
def test_a_module_computes_any_number_of_rows(tmp_path):
    shape = export.symbolic_shape("b, 4", constraints=["b <= 100"])
    exported = export.export(fg.jit(lambda x, n: (fnp.sin(x) @ W, x[:, 0] > n)))(
        fg.ShapeDtypeStruct(shape, "float32"), fg.ShapeDtypeStruct((), "float32")
    )
    export.aot(exported, tmp_path, name="net", target="wasm32")
    code = """
        import { load } from "./net.mjs";
        const f = await load(), found = [];
        for (const rows of [1, 75, 3]) {
          const x = Float32Array.from({ length: 4 * rows }, (_, i) => i);
          found.push(Object.values(f.run({ x, n: 9 })).map((y) => [...y]));
        }
        for (const x of [[1, 2, 3], new Float32Array(404), []])
          try { f.run({ x, n: 9 }); } catch (error) { found.push(error.message); }
        console.log(JSON.stringify(found));
    """
    done = subprocess.run([NODE, "--input-type=module", "-e", code], cwd=tmp_path, check=True,
                          capture_output=True, text=True)  # fmt: skip
    *found, ragged, many, none = json.loads(done.stdout)
    for rows, got in zip((1, 75, 3), found, strict=True):
        x = np.arange(4 * rows, dtype="float32").reshape(rows, 4)
        products, above = exported.call(x, np.float32(9))
        np.testing.assert_allclose(np.reshape(got[0], (rows, 4)), products, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(got[1], above)
    assert ragged == "net: x has rows of 4 numbers, got 3"
    assert many == "net: the size has to be: b <= 100"
    assert none == "net: the size has to be at least 1, and below 2^40"


@needs_node
def test_a_gpt_writes_under_node(page):
    folder, text = page
    code = (
        "import { load } from './gpt.mjs'; import { characters } from './text.mjs';"
        "console.log([...characters(await load(), 7, 400)].join(''));"
    )
    done = subprocess.run([NODE, "--input-type=module", "-e", code], cwd=folder, check=True,
                          capture_output=True, text=True)  # fmt: skip
    assert done.stdout == text + "\n"


@pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt-get install chromium")
def test_a_gpt_writes_in_a_page(page, tmp_path):
    folder, text = page
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            with opened(f"http://127.0.0.1:{server.server_port}/", tmp_path) as browser:
                browser.until("document.body?.dataset.done")
                assert browser.run("document.querySelector('pre').textContent") == text
        finally:
            server.shutdown()
