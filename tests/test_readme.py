"""The code on the README's and the documentation's pages runs and prints what the pages show.

On each page, ```python blocks run in order in one namespace, and ```pycon blocks are checked as
doctests in the same. Other blocks are text. Links to files of the repository lead somewhere.
"""

import contextlib
import doctest
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
BLANK = re.compile(r"\n\n(?!>>>|$)")  # within printed text; doctest would end it there
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run_page(text: str, title: str) -> str:
    """Run the code of a page; the report of what fails, empty where nothing does."""
    names = {"__name__": "__main__"}
    report = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    for block in BLOCK.finditer(text):
        kind, code = block.groups()
        line = text[: block.start()].count("\n") + 1
        if kind == "python":
            # Line numbers of the page, so that a traceback points into it.
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * line + code, title, "exec"), names)
        elif kind == "pycon":
            code = BLANK.sub("\n<BLANKLINE>\n", code)
            test = doctest.DocTestParser().get_doctest(code, names, title, title, line)
            runner.run(test, out=report.write, clear_globs=False)
            names = test.globs
    return report.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_of_page_runs(page, tmp_path, monkeypatch):
    text = page.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    report = run_page(text, name(page))
    if report:
        pytest.fail(report, pytrace=False)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_of_page_lead_somewhere(page):
    targets = LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8")))
    local = [t for t in targets if not t.startswith(("http://", "https://", "mailto:"))]
    missing = [t for t in local if not (page.parent / t).exists()]
    assert not missing, f"{name(page)} links to what is not there: {missing}"


def test_a_wrong_page_is_reported():
    page = "```python\nx = 1\n```\ntext\n```pycon\n>>> x + 1\n3\n>>> x = 5\n```\n"
    report = run_page(page, "page.md")
    assert "line 6, in page.md" in report
    assert "Expected:\n    3" in report
    assert not run_page("```python\nx = 1\n```\n```pycon\n>>> x\n1\n```\n", "page.md")


def test_only_fenced_code_runs():
    assert not run_page("```sh\nexit 1\n```\n```\n1/0\n```\n", "page.md")
