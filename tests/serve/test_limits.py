"""Settings and types that a server can't have say so, as they are given."""

import sys

import pytest

from funcgrad import nn
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
        ({"max_delay": -0.1}, "max_delay is in seconds and must not be negative, got -0.1"),
        ({"max_delay": float("nan")}, "max_delay is in seconds and must not be negative, got nan"),
        ({"timeout": 0}, "timeout is in seconds and must be positive, got 0"),
        ({"timeout": None}, "timeout is in seconds and must be positive, got None"),
    ],
)
def test_batching(given, words):
    with pytest.raises(ArgumentError, match=f"Batching: {words}"):
        Batching(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"inputs": {"x": "float32"}}, r"the input 'x' must be \(dtype, shape\).*got 'float32'"),
        ({"inputs": {"x": ("float32", 4)}}, r"the input 'x' must be \(dtype, shape\)"),
        ({"inputs": {"x": ("nothing", (4,))}}, r"the input 'x' must be \(dtype, shape\)"),
        ({"inputs": {"x": ("float32", (-2,))}}, r"the input 'x' must be \(dtype, shape\)"),
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
    with pytest.raises(ArgumentError, match="App: body_timeout is in seconds and must be positive"):
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
