"""PyTorch's files: what they hold comes out, and what is no weights stays inert."""

import io
import os
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import pytest

from funcgrad.errors import FormatError
from funcgrad.io import load_pt

# ---- pickles, opcode by opcode


def name(module, attribute):
    return b"c" + module.encode() + b"\n" + attribute.encode() + b"\n"


def text(s):
    return b"X" + struct.pack("<I", len(s)) + s.encode()


def number(n):
    return b"J" + struct.pack("<i", n)


def group(*items):
    return b"(" + b"".join(items) + b"t"


def storage(key="0", n=6, kind="FloatStorage"):
    said = (text("storage"), name("torch", kind), text(key), text("cpu"), number(n))
    return group(*said) + b"Q"


def tensor(shape=(2, 3), strides=(3, 1), offset=0, **of):
    sizes = (group(*map(number, v)) for v in (shape, strides))
    nothing = name("collections", "OrderedDict") + b")R"
    args = group(storage(**of), number(offset), *sizes, b"\x89", nothing)
    return name("torch._utils", "_rebuild_tensor_v2") + args + b"R"


def pickled(value):
    return b"\x80\x02" + value + b"."


def written(path, body, data=None, **more):
    data = {"0": np.arange(6, dtype="f4").tobytes()} if data is None else data
    with zipfile.ZipFile(path, "w", **more) as archive:
        archive.writestr("archive/data.pkl", body)
        archive.writestr("archive/byteorder", "little")
        for key, value in data.items():
            archive.writestr(f"archive/data/{key}", value)
    return path


def test_tensors_are_views_of_their_storages(tmp_path):
    body = b"}(" + text("w") + tensor() + text("t") + tensor((3, 2), (1, 3))
    body += text("n") + number(3) + text("e") + tensor((0, 4), (4, 1)) + b"u"
    got = load_pt(written(tmp_path / "a.pt", pickled(body)))
    w = np.arange(6, dtype="f4").reshape(2, 3)
    np.testing.assert_array_equal(got["w"], w)
    np.testing.assert_array_equal(got["t"], w.T)
    assert (got["n"], got["e"].shape) == (3, (0, 4))
    with pytest.raises(ValueError, match="read-only"):
        got["w"][0] = 1


def refused(tmp_path, match, body, data=None, **more):
    path = written(tmp_path / "a.pt", body, data, **more)
    with pytest.raises(FormatError, match=match):
        load_pt(path)


class Evil:
    """What a pickle may ask for: it would leave a file."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


EXPLOITS = {
    "system": (os.system, "touch {}"),
    "eval": (eval, "open({!r}, 'w')"),
    "exec": (exec, "open({!r}, 'w')"),
    "open": (open, "{}", "w"),
    "mkdir": (os.mkdir, "{}"),
    "getattr": (getattr, os, "system"),
    "import": (__import__, "antigravity"),
}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", EXPLOITS)
def test_exploits_stay_inert(kind, protocol, tmp_path):
    mark = tmp_path / "mark"
    function, *args = EXPLOITS[kind]
    args = [a.format(str(mark)) if isinstance(a, str) else None for a in args]
    body = pickle.dumps({"w": Evil(function, *args)}, protocol)
    refused(tmp_path, "none of what weights|weights don't need|is damaged", body)
    assert not mark.exists()


def test_names_are_not_looked_up_by_path(tmp_path):
    for module, attribute in (
        ("torch._utils", "_rebuild_tensor_v2.__globals__"), ("torch", "load"),
        ("torch.hub", "load"), ("collections", "OrderedDict.__class__"), ("numpy", "load"),
    ):  # fmt: skip
        refused(tmp_path, "none of what weights", pickled(name(module, attribute) + b")R"))


def test_pickles_that_are_no_weights(tmp_path):
    refused(tmp_path, "has shape", pickled(tensor((-1,), (1,))))
    refused(tmp_path, "reads element 11", pickled(tensor(offset=6)))
    refused(tmp_path, "reads element", pickled(tensor((2, 3), (1 << 30, 1))))
    refused(tmp_path, "of a storage of", pickled(tensor((1 << 30, 1 << 20), (0, 0))))
    refused(tmp_path, "of 7 float32 has 24 bytes", pickled(tensor(n=7)))
    refused(tmp_path, "'9' is missing", pickled(tensor(key="9")))
    refused(tmp_path, "is no storage", pickled(group(text("module")) + b"Q"))
    refused(tmp_path, "empty stack|damaged", pickled(b"\x87"))
    refused(tmp_path, "never began", pickled(b"t"))
    refused(tmp_path, "no function", pickled(text("f") + b")R"))
    refused(tmp_path, "is damaged", pickled(name("torch", "Size") + group(number(3)) + b"R"))
    refused(tmp_path, "weights don't need", pickled(name("torch", "Size") + b")\x81"))
    refused(tmp_path, "no end|damaged", b"\x80\x02}")


def test_pickles_that_grow_are_refused(tmp_path):
    laughs = b"]q\x00" + b"".join(
        b"](" + b"h" + bytes([i]) + (b"h" + bytes([i])) * 9 + b"eq" + bytes([i + 1])
        for i in range(20)
    )
    refused(tmp_path, "more than 10000000 values|damaged", pickled(laughs + b"0" * 0 + b"\x85"))
    itself = b"]q\x00(h\x00e"
    refused(tmp_path, "holds itself", pickled(itself))
    refused(tmp_path, "nested too deeply", pickled(b")" + b"\x85" * 1000))


def test_zips_that_are_no_weights(tmp_path):
    path = tmp_path / "a.pt"
    for content in (b"", b"PK", b"\x80\x02}.", b"x" * 100):
        path.write_bytes(content)
        with pytest.raises(FormatError, match="no valid PyTorch file"):
            load_pt(path)
    refused(tmp_path, "compressed", pickled(b"}"), compression=zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/other", b"")
    with pytest.raises(FormatError, match=r"no data\.pkl"):
        load_pt(path)


def test_tars_of_old_are_refused_with_the_reason(tmp_path):
    path = tmp_path / "old.pt"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("storages"), io.BytesIO())
    with pytest.raises(FormatError, match="no zip archive .* PyTorch's older formats aren't read"):
        load_pt(path)
