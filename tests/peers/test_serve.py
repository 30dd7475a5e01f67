"""The server in a process of its own, asked by NVIDIA's client of the protocol."""

import os
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.export.onnx import to_onnx

pytest.importorskip("uvicorn")
client = pytest.importorskip("tritonclient.http")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def served(tmp_path):
    w = fnp.asarray(np.arange(6, dtype="f4").reshape(3, 2))
    to_onnx(lambda w, x: fnp.tanh(x @ w), tmp_path / "mlp.onnx", w, fnp.ones((2, 3)),
            stored_argnums=0, dynamic={"n": {"x": 0}})  # fmt: skip
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if k != "FUNCGRAD_TOKEN"}
    process = subprocess.Popen(
        [sys.executable, "-m", "funcgrad.serve", str(tmp_path), "--port", str(port)],
        env=environment,
    )
    asked = client.InferenceServerClient(f"127.0.0.1:{port}", concurrency=4)
    try:
        for _ in range(200):
            try:
                if asked.is_server_ready():
                    break
            except OSError:
                time.sleep(0.1)
        yield asked, np.asarray(w)
    finally:
        asked.close()
        process.terminate()
        process.wait(20)


def test_tritonclient(served):
    asked, w = served
    assert asked.is_server_live()
    assert asked.is_model_ready("mlp")
    assert asked.get_model_metadata("mlp")["inputs"][0]["shape"] == [-1, 3]
    x = np.random.default_rng(0).standard_normal((5, 3)).astype("f4")
    for binary in (True, False):
        given = client.InferInput("x", list(x.shape), "FP32")
        given.set_data_from_numpy(x, binary_data=binary)
        wanted = [client.InferRequestedOutput("output", binary_data=binary)]
        got = asked.infer("mlp", [given], outputs=wanted).as_numpy("output")
        np.testing.assert_allclose(got, np.tanh(x @ w), rtol=1e-5)
    waiting = [asked.async_infer("mlp", [given]) for _ in range(50)]
    for answer in waiting:
        np.testing.assert_allclose(answer.get_result().as_numpy("output"), np.tanh(x @ w),
                                   rtol=1e-5)  # fmt: skip
    with pytest.raises(Exception, match="there is no model 'none'"):
        asked.infer("none", [given])
