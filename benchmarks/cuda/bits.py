"""Do the loop IR's scalar ops have the CPU's bits on the GPU? And how long does linking PTX take?

python -m benchmarks.cuda.bits --prepare DIR           # here: PTX, and what the CPU computes
python -m benchmarks.cuda.bits --ptx DIR --out DIR     # on the machine with the GPU
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from benchmarks.cuda import texts
from benchmarks.cuda.driver import Driver, Kernel
from benchmarks.cuda.scalars import (
    THREADS,
    Scalar,
    checksum_host,
    checksum_kernel,
    checksum_scalars,
    device_text,
    host_loop,
    inputs,
    kernel,
    scalars,
)
from funcgrad.backends.llvm.emit.text import BFLOAT16, BOOL, Definitions

COUNT = 16384  # elements an op
MODULE = 40  # kernels a module
BLOCK, EACH = 1 << 26, 256  # inputs a sum; inputs a thread


def as_dtype(name: str) -> np.dtype:
    """A dtype by its name."""
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def groups() -> dict[str, list[Scalar]]:
    """The modules' kernels, conversions apart from the rest."""
    found = list(scalars())
    return {
        f"scalars_{i // MODULE:02}": found[i : i + MODULE] for i in range(0, len(found), MODULE)
    }


def saved_groups(folder: Path) -> dict[str, list[Scalar]]:
    """The same as they were prepared: an older LLVM may know fewer ops."""
    found = json.loads((folder / "scalars.json").read_text())
    return {
        name: [Scalar(op, as_dtype(dtype), as_dtype(out), n) for op, dtype, out, n in members]
        for name, members in found.items()
    }


def prepare(folder: Path) -> None:
    """Write the PTX texts, the CPU's results, and its sums over all inputs."""
    expected: dict[str, np.ndarray] = {}
    modules = groups()
    listed = {name: [(s.op, s.dtype.name, s.out.name, s.arity) for s in members]
              for name, members in modules.items()}  # fmt: skip
    (folder / "scalars.json").write_text(json.dumps(listed))
    for name, members in modules.items():
        module = Definitions()
        made = [kernel(module, s) for s in members]
        (folder / f"{name}.ptx").write_text(texts.ptx(device_text(module.text(made))))
        module = Definitions()
        with _Host(module.text([host_loop(module, s) for s in members])) as host:
            for s in members:
                expected[s.name] = host.run(s)
    np.savez_compressed(folder / "expected.npz", **expected)
    for s in checksum_scalars():
        module = Definitions()
        made = [kernel(module, s), checksum_kernel(module, s, EACH)]
        (folder / f"one_{s.op}.ptx").write_text(texts.ptx(device_text(module.text(made))))
    _prepare_sums(folder / "sums.json")


def _prepare_sums(path: Path) -> None:
    found = json.loads(path.read_text()) if path.exists() else {}
    for s in checksum_scalars():
        if s.op in found:
            continue
        module, start = Definitions(), time.perf_counter()
        with _Host(module.text([checksum_host(module, s)])) as host:
            function = host.function(f"sum_{s.name}", ctypes.c_uint64, [ctypes.c_uint32] * 2)
            found[s.op] = [function(i * BLOCK, BLOCK) for i in range((1 << 32) // BLOCK)]
        path.write_text(json.dumps(found))
        print(f"{s.op:10} {time.perf_counter() - start:6.1f} s", flush=True)


class _Host:
    """A module's text compiled for this processor."""

    def __init__(self, text: str) -> None:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_default_triple()
        features = llvm.get_host_cpu_features().flatten()
        machine = target.create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=features, opt=3
        )
        module = llvm.parse_assembly(text)
        module.triple, module.data_layout = llvm.get_default_triple(), str(machine.target_data)
        module.verify()
        tuning = llvm.create_pipeline_tuning_options(speed_level=3)
        tuning.loop_vectorization = True
        llvm.create_pass_builder(machine, tuning).getModulePassManager().run(
            module, llvm.create_pass_builder(machine, tuning)
        )
        self.engine = llvm.create_mcjit_compiler(module, machine)
        self.engine.finalize_object()

    def __enter__(self) -> _Host:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.close()

    def function(self, name: str, result: Any, args: Sequence[Any]) -> Callable:
        """A function by ctypes."""
        return ctypes.CFUNCTYPE(result, *args)(self.engine.get_function_address(name))

    def run(self, scalar: Scalar) -> np.ndarray:
        """The op's results at its inputs, as they lie in memory."""
        given = inputs(scalar, COUNT)
        out = np.zeros(COUNT, scalar.out)
        pointers = [x.ctypes.data for x in (*given, out)]
        run = self.function(scalar.name, None, [ctypes.c_void_p] * len(pointers) + [ctypes.c_int64])
        run(*pointers, COUNT)
        return out.view(np.uint8)


# ---- on the device


def compare(driver: Driver, folder: Path) -> tuple[dict, dict]:
    """By op: how many results differ from the CPU's, the largest difference in units of the last
    place, the first of them; by module: milliseconds of linking and loading."""
    expected, differing, linking = np.load(folder / "expected.npz"), {}, {}
    for name, members in saved_groups(folder).items():
        ptx = (folder / f"{name}.ptx").read_text()
        try:
            linked = driver.link(ptx)
            start = time.perf_counter()
            module = driver.load(linked.image)
            load = 1e3 * (time.perf_counter() - start)
        except Exception as e:
            linking[name] = {"error": str(e)[:500]}
            continue
        linking[name] = {
            "kernels": len(members), "kilobytes": len(ptx) / 1e3,
            "link ms": linked.milliseconds, "load ms": load,
        }  # fmt: skip
        for s in members:
            try:
                differing[s.name] = _compared(driver, driver.kernel(module, s.name), s, expected)
            except Exception as e:
                differing[s.name] = {"error": str(e)[:300]}
    return differing, linking


def _compared(driver: Driver, made: Kernel, scalar: Scalar, expected: Any) -> dict[str, Any]:
    given = inputs(scalar, COUNT)
    memory = [driver.put(x) for x in given]
    size = COUNT * scalar.out.itemsize
    out = driver.allocate(size)
    driver.fill(out, size)
    driver.launch(made, [COUNT // THREADS], [THREADS], [*memory, out, ctypes.c_int(COUNT)])
    driver.synchronize()
    got = driver.get(out, [COUNT], scalar.out)
    driver.free(*memory, out)
    wanted = expected[scalar.name].view(scalar.out)
    kind = np.uint8 if scalar.out == BOOL else f"i{scalar.out.itemsize}"
    other = got.view(kind) != wanted.view(kind)
    if scalar.out.kind in "fV":
        other &= ~(np.isnan(got) & np.isnan(wanted))
    result: dict[str, Any] = {"differ": int(other.sum()), "registers": made.registers}
    if other.any():
        at = np.flatnonzero(other)
        ulps = np.abs(got.view(kind)[at].astype(float) - wanted.view(kind)[at].astype(float))
        result["ulps"] = float(ulps.max())
        result["first"] = [
            [*(str(x[i]) for x in given), str(got[i]), str(wanted[i])] for i in at[:4]
        ]
    return result


def all_inputs(driver: Driver, folder: Path) -> dict[str, Any]:
    """By function of one float32: blocks of 2²⁶ inputs whose sums of results' bits differ."""
    path, found = folder / "sums.json", {}
    wanted = json.loads(path.read_text()) if path.exists() else {}
    totals = driver.allocate(8)
    for op, sums in wanted.items():
        try:
            module = driver.load(driver.link((folder / f"one_{op}.ptx").read_text()).image)
            made, got, start = driver.kernel(module, f"sum_{op}_float32"), [], time.perf_counter()
            for block in range(len(sums)):
                driver.fill(totals, 8, 0)
                first = ctypes.c_uint(block * BLOCK)
                driver.launch(made, [BLOCK // EACH // THREADS], [THREADS], [totals, first])
                got.append(int(driver.get(totals, [1], np.uint64)[0]))
            pairs = enumerate(zip(got, sums, strict=True))
            found[op] = {
                "blocks that differ": [i for i, (a, b) in pairs if a != b],
                "G inputs a second": len(sums) * BLOCK / (time.perf_counter() - start) / 1e9,
            }  # fmt: skip
        except Exception as e:
            found[op] = {"error": str(e)[:300]}
    return found


def linking_alone(driver: Driver, folder: Path) -> dict[str, float]:
    """Milliseconds to link 20 kernels: one after another, in 8 threads, and from PTX by loading."""
    ptx = [p.read_text() for p in sorted(folder.glob("one_*.ptx"))[:20]]
    alone = [driver.link(p).milliseconds for p in ptx]
    images = [driver.link(p).image for p in ptx]
    turn = iter(ptx)
    lock = threading.Lock()

    def work() -> None:
        driver.check("cuCtxSetCurrent", driver.context)
        while True:
            with lock:
                text = next(turn, None)
            if text is None:
                return
            driver.link(text)

    start = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    together = 1e3 * (time.perf_counter() - start)
    start = time.perf_counter()
    for image in images:
        driver.load(image)
    loading = 1e3 * (time.perf_counter() - start)
    start = time.perf_counter()
    for p in ptx[:5]:
        driver.load(p.encode() + b"\0")
    return {
        "median of one": statistics.median(alone), "sum of 20": sum(alone),
        "20 in 8 threads": together, "loading 20 cubins": loading,
        "loading a PTX": 200 * (time.perf_counter() - start),
    }  # fmt: skip


def measure(folder: Path, out: Path) -> None:
    """Run all on the device; a JSON file and a table."""
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    driver = Driver()
    found: dict[str, Any] = {"device": driver.name, "driver": driver.version}
    path = out / "bits.json"

    def keep(name: str, measure: Callable[[], Any]) -> None:
        try:
            found[name] = measure()
        except Exception as e:
            found[name] = {"error": str(e)[:500]}
        path.write_text(json.dumps(found, indent=1))

    keep("linking alone", lambda: linking_alone(driver, folder))
    keep("ops", lambda: dict(zip(("differing", "modules"), compare(driver, folder), strict=True)))
    keep("all inputs", lambda: all_inputs(driver, folder))
    show(found)


def show(found: dict[str, Any]) -> None:
    """What differs, and the times."""
    print(found["device"], found["driver"], found["linking alone"])
    ops = found["ops"].get("differing", {})
    print(len(ops), "ops,", sum(1 for r in ops.values() if not r.get("differ", 1)), "of equal bits")
    for name, r in ops.items():
        if r.get("differ", 1):
            print(f"  {name:24} {r}"[:240])
    for name, r in found["ops"].get("modules", {}).items():
        print(f"  {name} {r}")
    for name, r in found["all inputs"].items():
        print(f"  {name:10} {r}"[:200])


def main() -> None:
    """Measure all; a JSON file and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ptx", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    measure(options.ptx, options.out)


if __name__ == "__main__":
    main()
