"""examples/native_gpt.py in small: programs in C, C++ and Rust write the text that Python does."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import random

EXAMPLES = Path(__file__).parent.parent / "examples"
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
ALPHABET, SEED, LENGTH = "\nabcß…", 7, 30
COMPILERS = {
    "gpt.c": ["gcc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-I."],
    "gpt.cpp": ["g++", "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-I."],
    "gpt.rs": ["rustc", "--edition=2021", "-Dwarnings", "-O", "-L.", "-lgpt",
               "-Clink-arg=-Wl,-rpath,."],
}  # fmt: skip


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(EXAMPLES))
    import native_gpt

    yield native_gpt
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def model(example):
    cfg = example.gpt.Config(len(ALPHABET), context=8, width=8, heads=2, layers=1)
    return example.gpt.init_params(random.key(1), cfg), cfg, ALPHABET


@pytest.fixture(scope="module")
def library(example, model, tmp_path_factory):
    return example.save(tmp_path_factory.mktemp("native"), *model)


@pytest.fixture(scope="module")
def text(example, model):
    """What Python writes."""
    step, (cache, *_) = example.step_of(*model)
    step, cache = fg.jit(step), np.zeros(cache.shape, cache.dtype)
    text, begin, fed = [ord("\n")], 0, 0
    while len(text) <= LENGTH:
        if fed - begin == 8:
            begin = fed = len(text) - 4
        given = np.array([text[fed], fed - begin, SEED + fed], "int32")
        cache, drawn = step(cache, *given)
        fed += 1
        if fed == len(text):
            text.append(int(drawn))
    return "".join(map(chr, text[1:])) + "\n"


@pytest.mark.parametrize("source", COMPILERS)
def test_programs_write_the_text_that_python_does(library, text, source):
    command, folder = COMPILERS[source], library.header.parent
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    linked = [] if source == "gpt.rs" else ["libgpt.so", "-Wl,-rpath,."]
    program = f"{source}.out"
    subprocess.run([*command, EXAMPLES / "native" / source, *linked, "-o", program], cwd=folder,
                   check=True)  # fmt: skip
    done = subprocess.run([folder / program, str(SEED), str(LENGTH)], cwd=folder, check=True,
                          capture_output=True)  # fmt: skip
    assert done.stdout.decode() == text
    assert len(set(text)) > 4
