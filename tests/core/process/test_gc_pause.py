"""The collector of cycles rests while programs compile, and is on again whatever happens."""

import gc
import threading

import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.core.process.gc_pause import no_collections


def test_nested_blocks_and_errors():
    assert gc.isenabled()

    def fail():
        with no_collections():
            with no_collections():
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with no_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_blocks_of_threads_overlap():
    inside, leave = threading.Event(), threading.Event()

    def other():
        with no_collections():
            inside.set()
            leave.wait(240)

    thread = threading.Thread(target=other)
    with no_collections():
        thread.start()
        assert inside.wait(240)
    assert not gc.isenabled(), "the other thread is still within"
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_compiling_leaves_it_on():
    fg.jit(lambda x: fnp.sin(x) + 1.25)(fnp.ones(7))
    assert gc.isenabled()
