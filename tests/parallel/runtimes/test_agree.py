"""Programs that differ between ranks."""

import pytest

from funcgrad.errors import CollectiveError
from funcgrad.parallel.runtimes.agree import check_same_program
from tests.parallel.threads import Ranks


def check(texts):
    def run(rank, lookup):
        try:
            check_same_program(lookup(("i",)), texts[rank])
        except CollectiveError as error:
            return str(error)
        return None

    return Ranks(i=len(texts)).run(run)


def test_equal_programs():
    assert check(["a\nb", "a\nb", "a\nb"]) == [None] * 3


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["a\nb\nc", "a\nB\nc", "a\nb\nc"], "differ in line 2: ranks 0, 2: 'b'; rank 1: 'B'"),
        (["a", "a\nb"], "differ in line 2: rank 0: '(nothing)'; rank 1: 'b'"),
        (["", "é"], "differ in line 1: rank 0: ''; rank 1: 'é'"),
    ],
)
def test_all_ranks_learn_the_first_difference(texts, words):
    for text in check(texts):
        assert words in text
