"""Files: their layout, other versions, and damage: a FormatError, or the function as it was."""

import io
import json
import zipfile

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, lax, nn
from funcgrad.errors import FormatError
from funcgrad.export.archive import pack, unpack
from tests.io.weights.test_fuzz import COUNTS, reads_damaged

TABLE = fnp.arange(6.0).reshape(2, 3)


def function(x):
    total = lax.scan(lambda c, row: (c + nn.relu(row @ x), None), 0.0, TABLE)[0]
    return {"total": fnp.where(total > 0, total, -fnp.inf), "float": x.astype("bfloat16")}


X = fnp.linspace(0.5, 1.0, 3)
BLOB = export.export(fg.jit(function))(X).serialize(samples=[(X,)])
ENTRIES = unpack(BLOB)
WANT = [np.asarray(y) for y in fg.tree.leaves(fg.jit(function)(X))]


def test_entries_lie_at_multiples_of_64_bytes_and_are_stored():
    with zipfile.ZipFile(io.BytesIO(BLOB)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [
            "manifest.json", "program.json", "weights.safetensors", "samples.safetensors",
        ]  # fmt: skip
        for info in archive.infolist():
            assert info.compress_type == zipfile.ZIP_STORED
            start = info.header_offset + 30 + len(info.filename) + len(info.extra)
            assert start % 64 == 0
            assert BLOB[start:][: info.file_size] == archive.read(info)
    n = int.from_bytes(ENTRIES["weights.safetensors"][:8], "little")
    assert (8 + n) % 64 == 0


def test_arrays_are_what_the_safetensors_library_reads():
    safetensors = pytest.importorskip("safetensors.numpy")
    found = safetensors.load(ENTRIES["weights.safetensors"])
    np.testing.assert_array_equal(found["w0"], TABLE)


def repacked(change):
    """The file with another program, whose checksums fit."""
    entries = dict(ENTRIES)
    program = json.loads(entries["program.json"])
    change(program)
    entries["program.json"] = json.dumps(program).encode()
    return pack(entries)


def of_manifest(**changes):
    with zipfile.ZipFile(io.BytesIO(BLOB)) as archive:
        texts = {name: archive.read(name) for name in archive.namelist()}
    texts["manifest.json"] = json.dumps(json.loads(texts["manifest.json"]) | changes).encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    return file.getvalue()


def test_newer_files_say_so():
    assert export.deserialize(of_manifest(version=[1, 7])).check_samples() == 0
    for needed in ([1, 1], [2, 0]):
        with pytest.raises(FormatError, match=rf"needs a reader of {needed[0]}.{needed[1]}; this"):
            export.deserialize(of_manifest(version=[2, 3], reader_needed=needed))

    def newer(program):
        program["tables"]["programs"][-1]["eqns"][0]["op"] = "scan@2"

    with pytest.raises(FormatError, match="scan@2, this funcgrad has scan@1.*newer"):
        export.deserialize(repacked(newer))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "another"}, "doesn't say so"),
        ({"version": "1.0"}, "lacks a version"),
        ({"entries": {}}, "differ in the entries"),
        ({"entries": []}, "lacks a version"),
    ],
)
def test_other_manifests(changes, words):
    with pytest.raises(FormatError, match=words):
        export.deserialize(of_manifest(**changes))


def test_entries_that_do_not_belong():
    for name, kind in (("run.py", zipfile.ZIP_STORED), ("program.json", zipfile.ZIP_DEFLATED)):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", kind) as archive:
            archive.writestr(name, b"0" * 100_000)
        with pytest.raises(FormatError, match="doesn't belong|isn't stored"):
            export.deserialize(file.getvalue())


def eqns(program):
    return program["tables"]["programs"][-1]["eqns"]


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p["signature"].update(main=99),
        lambda p: p["signature"].update(main=True),
        lambda p: p["signature"].update(main=0),
        lambda p: p["signature"]["inputs"].pop(),
        lambda p: p["signature"].update(captured=[]),
        lambda p: p["signature"].update(captured=["w9"]),
        lambda p: p["signature"].update(in_tree={"node": ["unheard.Of", "", []]}),
        lambda p: p["signature"].update(in_tree={"list": 3}),
        lambda p: p["signature"]["inputs"][0].update(type=["float32", 4]),
        lambda p: p["weights"].update(w0=["float32", 3, 3]),
        lambda p: p["weights"].update(w1=["float32", 3]),
        lambda p: p["tables"].pop("programs"),
        lambda p: p["tables"].update(sources=[["a", "b", "c"]]),
        lambda p: p["tables"].update(meshes=[{"axes": [["x", 0]], "abstract": False}]),
        lambda p: p["tables"].update(
            meshes=[{"axes": [["x", 1]], "abstract": False, "types": ["odd"]}]
        ),
        lambda p: p["tables"]["programs"].reverse(),
        lambda p: eqns(p)[0].update(op="print@1"),
        lambda p: eqns(p)[0].update({"in": [10**30]}),
        lambda p: eqns(p)[0].update({"in": [-1]}),
        lambda p: eqns(p)[0].update(out=[["float32", -1]]),
        lambda p: eqns(p)[0].update(out=[["float32", 1 << 70]]),
        lambda p: eqns(p)[0].update(out=[["object"]]),
        lambda p: eqns(p)[0].update(params={}),
        lambda p: eqns(p)[0].update(params={"jaxpr": {"program": len(p["tables"]["programs"])}}),
        lambda p: eqns(p)[0].update(params={"jaxpr": {"code": "import os"}}),
        lambda p: eqns(p)[-1].update(at=10**6),
        lambda p: eqns(p).reverse(),
        lambda p: p["tables"]["programs"][-1].update(names=["x"]),
        lambda p: p["tables"]["programs"][-1].update(out=[{"type": ["bool"], "bits": "07"}]),
        lambda p: p["tables"]["programs"][-1].update(out=[{"type": ["float32"], "bits": "zz"}]),
        lambda p: p.update(samples=10**9),
        lambda p: p.update(samples=[]),
        lambda p: p.update(samples=[{}] * 2),
    ],
)
def test_programs_that_are_none(change):
    with pytest.raises(FormatError):
        export.deserialize(repacked(change))


def test_json_that_is_none():
    for text in (b"", b"[]", b"{", b'{"signature": NaN}', b"[" * 100_000, b"\xff\xfe"):
        with pytest.raises(FormatError):
            export.deserialize(pack(ENTRIES | {"program.json": text}))


# ---- damage


def is_as_before(blob):
    """Whether a damaged file is refused, or gives the function."""
    try:
        loaded = export.deserialize(blob)
    except FormatError:
        return
    got = [np.asarray(y) for y in fg.tree.leaves(loaded.jaxpr(X))]
    for g, w in zip(got, WANT, strict=True):
        assert (g.dtype, g.tobytes()) == (w.dtype, w.tobytes())


def test_truncated_files():
    rng = np.random.default_rng(0)
    for n in {0, 1, 4, 22, len(BLOB) - 1, *rng.integers(0, len(BLOB), 60).tolist()}:
        with pytest.raises(FormatError):
            export.deserialize(BLOB[:n])


@COUNTS
def test_flipped_bytes(count):
    rng = np.random.default_rng(1)
    for _ in range(count):
        blob = bytearray(BLOB)
        for at in rng.integers(0, len(blob), rng.integers(1, 4)):
            blob[at] ^= int(rng.integers(1, 256))
        is_as_before(bytes(blob))


def mutated(rng, found):
    """JSON with one of its values changed."""
    values = [None, True, -1, 0, 3, 2**40, 0.5, "", "float32", "x" * 300, [], [0], {}, {"a": 0}]
    if type(found) is dict and found and rng.random() < 0.9:
        key = list(found)[rng.integers(len(found))]
        return found | {key: mutated(rng, found[key])}
    if type(found) is list and found and rng.random() < 0.9:
        i = int(rng.integers(len(found)))
        return [*found[:i], mutated(rng, found[i]), *found[i + 1 :]]
    if type(found) is int and rng.random() < 0.5:
        return found + int(rng.integers(-2, 3))
    return values[rng.integers(len(values))]


@COUNTS
def test_programs_changed_behind_checksums_that_fit(count):
    """What is refused is a FormatError; what isn't is a program that typechecks."""
    rng = np.random.default_rng(2)
    program = json.loads(ENTRIES["program.json"])
    refused = 0
    for _ in range(count):
        text = json.dumps(mutated(rng, program)).encode()
        try:
            export.deserialize(pack(ENTRIES | {"program.json": text}))
        except FormatError:
            refused += 1
    assert refused > count / 2


@COUNTS
@pytest.mark.parametrize("entry", ["program.json", "weights.safetensors", "samples.safetensors"])
def test_bytes_changed_behind_checksums_that_fit(entry, count, tmp_path):
    load = lambda path: export.deserialize(pack(ENTRIES | {entry: path.read_bytes()}))
    reads_damaged(load, ENTRIES[entry], count, tmp_path / "entry")


def test_the_same_function_gives_the_same_bytes():
    first, again = (export.export(fg.jit(function))(X).serialize() for _ in range(2))
    assert first == again
