"""What docs/c_libraries.md shows is what happens, in Python, C and C++."""

import doctest
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "c_libraries.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs compilers for C and C++")
def test_the_page():
    text = PAGE.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```pycon\n(.*?)```", text, re.DOTALL))
    test = doctest.DocTestParser().get_doctest(blocks, {}, PAGE.name, str(PAGE), 0)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(test, clear_globs=False)
    assert runner.summarize(verbose=False).failed == 0
    folder = Path(test.globs["folder"])
    flags = ["-Wall", "-Wextra", "-Werror", "-L.", "-Wl,-rpath,."]
    for language, compiler in (("c", ["gcc", "-std=c11"]), ("cpp", ["g++", "-std=c++17"])):
        (program,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
        (folder / f"main.{language}").write_text(program)
        command = [*compiler, *flags, f"main.{language}", "-lmodel", "-o", "main"]
        subprocess.run(command, cwd=folder, check=True)
        subprocess.run(["./main"], cwd=folder, check=True)
    shutil.rmtree(folder)
