"""Settings and types that a server can't have say so, as they are given."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import export, nn
from funcgrad.errors import ArgumentError
from funcgrad.serve import App, Batching, Generator, Model, Repository
from funcgrad.serve.__main__ import main, parse_args

X = {"x": ("float32", (-1, 4))}


def model(**more):
    return Model(**{"name": "double", "fun": lambda x: 2 * x, "inputs": X, **more})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_batch_size": 0}, "max_batch_size must be a positive integer, got 0"),
        ({"max_batch_size": 2.5}, "max_batch_size must be a positive integer, got 2.5"),
        ({"max_queue": -1}, "max_queue must be a positive integer, got -1"),
        (
            {"max_delay": -0.1},
            "max_delay is in seconds and must be finite and not negative, got -0.1",
        ),
        (
            {"max_delay": float("nan")},
            "max_delay is in seconds and must be finite and not negative, got nan",
        ),
        ({"timeout": 0}, "timeout is in seconds and must be finite and positive, got 0"),
        ({"timeout": float("inf")}, "in seconds and must be finite and positive, got inf"),
        ({"timeout": None}, "timeout is in seconds and must be finite and positive, got None"),
    ],
)
def test_batching(given, words):
    with pytest.raises(ArgumentError, match=f"Batching: .*{words}"):
        Batching(**given)


def test_batching_in_numbers_of_numpy():
    assert Batching(np.int64(4), np.float32(0), np.int32(9), np.float64(1)).max_batch_size == 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"inputs": {"x": "float32"}}, r"the input 'x' must be \(dtype, shape\).*got 'float32'"),
        ({"inputs": {"x": ("float32", 4)}}, r"the input 'x' must be \(dtype, shape\)"),
        ({"inputs": {"x": ("nothing", (4,))}}, r"the input 'x' must be \(dtype, shape\)"),
        ({"inputs": {"x": ("float32", (-2,))}}, r"the input 'x' must be \(dtype, shape\)"),
        ({"inputs": {"x": (None, (4,))}}, r"the input 'x' must be \(dtype, shape\)"),
        ({"inputs": {1: ("float32", (4,))}}, r"the input 1 must be .*, and its name a text"),
        ({"inputs": [("x", "float32")]}, r"inputs are \{name: \(dtype, shape\)\}"),
        ({"name": "a/b"}, "name must be a text without '/', got 'a/b'"),
        ({"version": 2}, "version must be a text without '/', got 2"),
    ],
)
def test_models(given, words):
    with pytest.raises(ArgumentError, match=words):
        model(**given)


def test_applications():
    models = Repository([model()])
    with pytest.raises(ArgumentError, match="App takes a Repository of models"):
        App([model()])
    with pytest.raises(ArgumentError, match="App: threads must be a positive integer, got 0"):
        App(models, threads=0)
    with pytest.raises(
        ArgumentError, match="App: body_timeout is in seconds and must be finite and positive"
    ):
        App(models, body_timeout=-1)
    with pytest.raises(ArgumentError, match="App: token must be a text, and not an empty one"):
        App(models, token="")
    with pytest.raises(ArgumentError, match="App: batching is a Batching, got 3"):
        App(models, batching=3)
    with pytest.raises(ArgumentError, match="models are Model or Generator, got 3"):
        Repository([3])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--max-batch-size", "0"], "max_batch_size must be a positive integer"),
        (["--max-delay", "-1"], "max_delay is in seconds"),
        (["--max-body", "0"], "--max-body: it must be a positive integer"),
        (["--body-timeout", "nan"], "--body-timeout: it is in seconds"),
        (["--key", "key.pem"], "--certificate and --key go together"),
        (["--key", "none.pem", "--certificate", "none.pem"], "there is no file none.pem"),
        (["--key", __file__, "--certificate", __file__], f"--certificate {__file__}, --key"),
        (["--port", "99999"], "--port must be from 0 to 65535, got 99999"),
    ],
)
def test_the_command(given, words, capsys):
    with pytest.raises(SystemExit) as told:
        parse_args(["models", *given])
    assert told.value.code == 2
    assert words in capsys.readouterr().err


def test_the_command_says_what_it_cannot_serve(tmp_path, monkeypatch):
    pytest.importorskip("uvicorn")
    (tmp_path / "model.fg").write_text("nothing")
    monkeypatch.setattr(sys, "argv", ["serve"])
    for path, words in ((tmp_path / "none", "there are no models"), (tmp_path / "model.fg", "no")):
        with pytest.raises(SystemExit, match=f"{path} can't be served: .*{words}"):
            main([str(path)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="one process, of which uvicorn tells")
def test_a_port_that_is_taken(tmp_path):
    pytest.importorskip("uvicorn")
    export.export(fg.jit(lambda x: 2 * x))(fg.ShapeDtypeStruct((3,), "float32")).save(
        tmp_path / "double.fg"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "funcgrad.serve", tmp_path, "--processes", "2"]
        run = subprocess.run([*command, "--port", port], capture_output=True, text=True)
    assert run.returncode == 1
    assert f"--port {port}: " in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"slots": 0}, "slots must be a positive integer, got 0"),
        ({"cache": {"a": "text"}}, "cache is a tree of arrays"),
        ({"vocabulary": [1, 2, 3]}, r"vocabulary must be texts, got \[1, 2, 3\]"),
        ({"end": -1}, "end must be a token's number, got -1"),
    ],
)
def test_generators(given, words):
    def same(cache, tokens, positions):
        return nn.one_hot(tokens, 3), cache

    with pytest.raises(ArgumentError, match=f"Generator: g: {words}"):
        Generator("g", same, **{"cache": {}, "slots": 2, "context": 8, **given})
