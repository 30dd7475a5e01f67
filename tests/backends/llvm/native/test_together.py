"""Tasks done together: all of them, their errors, and those that wait for others."""

import pytest

from funcgrad.backends.llvm.native import together
from funcgrad.backends.llvm.native.together import Together


@pytest.fixture(params=[1, 2, 3])
def processors(request, monkeypatch):
    monkeypatch.setattr(together, "processors", lambda: request.param)
    return request.param


def test_all_are_done(processors):
    done = []
    with Together() as work:
        events = [work.add(lambda i=i: done.append(i)) for i in range(20)]
    assert sorted(done) == list(range(20))
    assert all(e.is_set() for e in events)
    assert processors > 1 or done == list(range(20))


def test_none_at_all(processors):
    with Together():
        pass


@pytest.mark.parametrize("waiting", range(1, 4))
def test_some_wait_for_those_before(processors, waiting):
    done = []
    with Together() as work:
        first = [work.add(lambda i=i: done.append(i)) for i in range(4)]

        def last():
            for event in first:
                assert event.wait(240)
            done.append("last")

        for _ in range(waiting):
            work.add(last)
    assert sorted(done[:4]) == list(range(4))
    assert done[4:] == ["last"] * waiting


def test_the_first_error_ends_it(processors):
    begun = []

    def bad():
        begun.append("bad")
        raise ValueError("bad task")

    def run():
        with Together() as work:
            error = work.add(bad)
            error.wait(0 if processors == 1 else 60)
            events.extend(work.add(lambda: begun.append("good")) for _ in range(5))

    events = []
    with pytest.raises(ValueError, match="bad task"):
        run()
    assert begun == ["bad"]
    assert all(e.is_set() for e in events)


def test_an_error_of_the_block_is_its_own(processors):
    done = []

    def run():
        with Together() as work:
            done.append(work.add(lambda: None))
            raise KeyError("block")

    with pytest.raises(KeyError, match="block"):
        run()
    assert done[0].is_set()


def test_without_threads_tasks_are_done_by_the_end(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(together, "processors", lambda: 4)
    monkeypatch.setattr(together.threading.Thread, "start", refuse)
    done = []
    with Together() as work:
        for i in range(3):
            work.add(lambda i=i: done.append(i))
        assert not done
    assert done == [0, 1, 2]
