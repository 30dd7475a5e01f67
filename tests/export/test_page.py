"""What docs/export.md shows is what happens, in Python and in C."""

import doctest
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_the_page():
    text = PAGE.read_text(encoding="utf-8")
    names: dict = {}
    blocks = "\n".join(re.findall(r"```pycon\n(.*?)```", text, re.DOTALL))
    test = doctest.DocTestParser().get_doctest(blocks, names, "export.md", str(PAGE), 0)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(test, clear_globs=False)
    assert runner.summarize(verbose=False).failed == 0
    folder = Path(test.globs["folder"])
    (program,) = re.findall(r"```c\n(.*?)```", text, re.DOTALL)
    (folder / "main.c").write_text(program)
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *strict, "main.c", "-L.", "-lmodel", "-Wl,-rpath,.", "-o", "main"],
                   cwd=folder, check=True)  # fmt: skip
    subprocess.run(["./main"], cwd=folder, check=True)
    shutil.rmtree(folder)
