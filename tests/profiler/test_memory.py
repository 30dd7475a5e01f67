"""Profiles of memory, read back by a small reader of protocol buffers."""

import gzip

import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import profiler


def varint(data, at):
    n = shift = 0
    while True:
        byte = data[at]
        n |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return n, at


def fields(data):
    """(field, number or bytes) of a message."""
    at, found = 0, []
    while at < len(data):
        key, at = varint(data, at)
        n, at = varint(data, at)
        if key & 7 == 2:
            found.append((key >> 3, data[at : at + n]))
            at += n
        else:
            found.append((key >> 3, n))
    return found


def packed(data):
    at, found = 0, []
    while at < len(data):
        n, at = varint(data, at)
        found.append(n)
    return found


def read(profile):
    """{names from the innermost to the outermost: [count, bytes]}."""
    message = fields(gzip.decompress(profile))
    texts = [value.decode() for field, value in message if field == 6]
    assert texts[0] == ""
    kinds = [[texts[n] for _, n in fields(v)] for field, v in message if field == 1]
    assert kinds == [["allocations", "count"], ["space", "bytes"]]
    functions = {}
    for field, value in message:
        if field == 5:
            known = dict(fields(value))
            functions[known[1]] = texts[known[2]]
    places = {}
    for field, value in message:
        if field == 4:
            known = dict(fields(value))
            places[known[1]] = functions[dict(fields(known[4]))[1]]
    samples = [dict(fields(value)) for field, value in message if field == 2]
    return {tuple(places[i] for i in packed(s[1])): packed(s[2]) for s in samples}


def test_arrays_by_device_and_type(tmp_path):
    key = ("i16[7,300]", "cpu:0")
    before = read(profiler.device_memory_profile()).get(key, [0, 0])
    x = [fnp.ones((7, 300), "int16") for _ in range(3)]
    cut = fg.NamedSharding(fg.make_mesh((2,), "x"), fg.P("x"))
    y = fg.device_put(fnp.ones((6, 301), "int16"), cut)
    found = read(profiler.device_memory_profile())
    assert found[key] == [before[0] + 3, before[1] + 3 * 4200]
    assert found["i16[6,301]", "cpu:0, cpu:1"] == [1, 3612]
    profiler.save_device_memory_profile(tmp_path / "memory.prof", "cpu")
    assert read((tmp_path / "memory.prof").read_bytes())[key][0] >= 3
    assert read(profiler.device_memory_profile("cuda")) == {}
    del x, y


def test_bad_calls():
    with pytest.raises(TypeError, match="platform must be a text"):
        profiler.device_memory_profile(3)
