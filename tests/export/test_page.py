"""What docs/export.md shows is what happens."""

import doctest
import re
import shutil
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def test_the_page():
    text = PAGE.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```pycon\n(.*?)```", text, re.DOTALL))
    test = doctest.DocTestParser().get_doctest(blocks, {}, "export.md", str(PAGE), 0)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(test, clear_globs=False)
    assert runner.summarize(verbose=False).failed == 0
    shutil.rmtree(test.globs["folder"])
