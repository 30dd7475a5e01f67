import importlib
import os
import re
import sys
from functools import partial

import pytest

from funcgrad.backends.llvm.attention import functions as attention
from funcgrad.backends.llvm.calls import direct_code, eager_code
from funcgrad.backends.llvm.emit import half_calls
from funcgrad.backends.llvm.gemm import functions as gemm
from funcgrad.backends.llvm.gemm import micro as gemm_micro
from funcgrad.backends.llvm.gemm import packers as gemm_packers
from funcgrad.backends.llvm.gemm.driver import PLAIN
from funcgrad.backends.llvm.gemm.gathered import TILED_WAYS
from funcgrad.backends.llvm.gemm.images import frames as gemm_frames
from funcgrad.backends.llvm.gemm.kernels import Micro
from funcgrad.backends.llvm.gemm.winograd.last_bytes import WinogradBytes
from funcgrad.backends.llvm.matrix import functions as matrix
from funcgrad.backends.llvm.native import sources
from funcgrad.backends.llvm.native.engine import Engine
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.routines import copies, elements, rows
from funcgrad.backends.llvm.sort import functions as sort

HERE = "funcgrad.backends.llvm"
LINKED = {f"{HERE}.native.{name}" for name in sources.LINKING}
# The modules whose digests are in keys.
KEYS = ("attention.functions", "calls.direct_code", "calls.eager_code", "emit.half_calls",
        "gemm.images.frames", "gemm.functions", "gemm.gathered", "gemm.micro", "gemm.packers",
        "matrix.functions",
        *sorted({f"matrix.{file}" for file in matrix.WRITERS.values()}),
        "routines.copies", "routines.elements", "routines.rows", "sort.functions")  # fmt: skip
TILED = [kind.name for kind in TILED_WAYS.values()]
ONE_WAY = ("packed", "direct", "strips", "placed", "lines", "columns", "windows", *TILED)
DTYPES = {WinogradBytes.name: ("int8", "int32")}


class Written(Exception):
    """The code is written; it needn't be compiled."""


class Writer(Engine):
    """Notes the files whose functions run as code is written, and its key."""

    def __init__(self, target):
        super().__init__(target)
        self.files, self.key = set(), ""

    def compile(self, module, level=3, key=None, links=None):
        self.key = key
        self.note(lambda: str(module()))
        raise Written

    def note(self, write):
        def called(frame, event, arg):
            if event == "call":
                self.files.add(frame.f_code.co_filename)

        before = sys.getprofile()
        sys.setprofile(called)
        try:
            write()
        finally:
            sys.setprofile(before)


def packer(writer):
    gemm_packers.provide_packers(writer, "float32")
    next(make for name, make in writer._symbols.items() if name.startswith("fg_pack_"))()


WRITERS = [
    *[
        (
            "gemm.functions" if way in PLAIN else "gemm.gathered",
            partial(gemm.way_library, *DTYPES.get(way, ("float32", "float32")), way=way),
        )
        for way in ONE_WAY
    ],
    ("gemm.gathered", lambda w: gemm.way_library("bfloat16", "bfloat16", w, "")),
    ("gemm.micro", lambda w: gemm_micro.library(w, "float32", Micro("packed", 4, 2))),
    ("gemm.packers", packer),
    ("gemm.images.frames", lambda w: gemm_frames.install.__wrapped__(4, w)),
    ("emit.half_calls", half_calls.library),
    ("routines.copies", lambda w: copies.install.__wrapped__(w)),
    (
        "routines.elements",
        lambda w: elements.install.__wrapped__("fg_elements_add_float32_1_wrap", w),
    ),
    ("routines.rows", lambda w: rows.install.__wrapped__(w)),
    ("sort.functions", lambda w: sort.install.__wrapped__("fg_sort_float32__", w)),
    ("sort.functions", lambda w: sort.install.__wrapped__("fg_sort_float32__4_8", w)),
    ("sort.functions", lambda w: sort.install.__wrapped__("fg_top_float32", w)),
    ("sort.functions", lambda w: sort.install.__wrapped__("fg_few_float32", w)),
    ("sort.functions", lambda w: sort.install.__wrapped__("fg_shuffle_4", w)),
    *[
        (
            f"matrix.{file}",
            lambda w, x=x, own=own: matrix.install.__wrapped__(x, "float32", own, target=w),
        )
        for x, file in matrix.WRITERS.items()
        for own in {False, x in matrix._MULTIPLY}
    ],
    *[
        (
            "attention.functions",
            lambda w, op=op: attention.install.__wrapped__("float32", op, target=w),
        )
        for op in attention._NAMES
    ],
    ("calls.direct_code", lambda w: w.note(direct_code.module)),
    ("calls.eager_code", lambda w: w.note(eager_code.module)),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("generic", [False, True], ids=["host", "generic"])
@pytest.mark.parametrize("which", range(len(WRITERS)))
def test_keys_know_all_that_code_is_written_by(which, generic, monkeypatch):
    """Else code on disk would be taken for what another version of the package writes."""
    monkeypatch.setattr(gemm, "install", lambda *args: 4096)
    module, write = WRITERS[which]
    writer = Writer(Target.host().generic() if generic else Target.host())
    if not module.endswith("code"):
        with pytest.raises(Written):
            write(writer)
        assert writer.key.endswith(sources.generator(module))
    else:
        write(writer)
    package = sources.__name__.partition(".")[0]
    root = os.path.dirname(sys.modules[package].__file__)
    ran = {os.path.relpath(f, root)[:-3].replace(os.sep, ".") for f in writer.files
           if f.startswith(root + os.sep)}  # fmt: skip
    ran = {f"{package}.{name}".removesuffix(".__init__") for name in ran}
    assert ran
    names = set(sources.written_with(module))
    if module.startswith(("matrix.", "gemm.gathered")):  # keys have both
        names |= set(sources.written_with(f"{module.partition('.')[0]}.functions"))
    assert ran - LINKED <= names


def test_what_decides_of_other_layers_is_known():
    """Constants are read where a module is loaded, which no call shows."""
    names = {module: sources.written_with(module) for module in KEYS}
    assert "funcgrad.backends.llvm.rewrites.tiles" in names["gemm.gathered"]
    assert f"{HERE}.gemm.words" in names["matrix.lu"]
    assert "funcgrad.backends.llvm.drafts.cuts" in names["attention.functions"]
    assert "funcgrad.ops.random" in names["sort.functions"]
    assert f"{HERE}.native.caches" in names["gemm.functions"]
    # What doesn't write them has no say: a small change needn't compile all products anew.
    assert not {n for n in names["gemm.micro"] if "packed" in n or "driver" in n}


@pytest.mark.parametrize("module", KEYS)
def test_a_change_of_any_source_makes_other_keys(module, monkeypatch):
    read, key = sources._read, sources.generator.__wrapped__
    before, names = key(module), sources.written_with(module)
    for changed in (*names, "funcgrad.numpy"):
        monkeypatch.setattr(
            sources, "_read", lambda name, c=changed: read(name) + b"#" * (name == c)
        )
        assert (key(module) != before) == (changed in names)


@pytest.mark.parametrize("module", KEYS)
def test_nothing_that_writes_code_is_imported_in_functions(module):
    """Only imports of whole modules are followed."""
    for name in sources.written_with(module):
        if not name.startswith(HERE):
            continue
        text = sources._read(name).decode()
        inside = re.findall(r"^if TYPE_CHECKING:\n((?:    .*\n|\n)+)", text, re.M)
        for block in inside:
            text = text.replace(block, "")
        code = re.sub(r'"""(.|\n)*?"""', "", text)
        hidden = re.findall(r"^[ \t]+(?:from|import) +(funcgrad\S*)", code, re.M)
        assert not hidden, name
        late = re.findall(r'Late\("([\w.]+)"\)|import_module\("([\w.]+)"\)', code)
        # Products have keys of their own.
        products = {f"{HERE}.gemm.{name}" for name in ("functions", "gathered")}
        assert {*sum(late, ())} <= {*LINKED, *products, ""}, name


def test_imports_of_all_forms_are_found(monkeypatch):
    text = b"""
from funcgrad.core.process import fork
from funcgrad.core import record as r
from funcgrad.core.ir import (
    Eqn,  # tree
    Jaxpr,
)
from funcgrad.backends.llvm.runtime import (  # fmt: skip
    pool,
)
from funcgrad import dtypes
import os
if TYPE_CHECKING:
    from funcgrad.core.array import Array
"""
    monkeypatch.setattr(sources, "_read", lambda name: text)
    assert sorted(sources._imported.__wrapped__("x")) == [
        f"{HERE}.runtime.pool", "funcgrad.core.ir", "funcgrad.core.process.fork",
        "funcgrad.core.record", "funcgrad.dtypes",
    ]  # fmt: skip


def test_modules_are_where_python_finds_them():
    for module in KEYS:
        for name in sources.written_with(module):
            assert sources._path(name).startswith(
                os.path.dirname(importlib.import_module(name).__file__)
            )
