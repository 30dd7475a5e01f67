"""cuBLASLt's products: what it takes and refuses, whether values are right, and how fast they are
beside PyTorch's in the same run."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cuda.cublaslt import EPILOGUES, Lt, Product, Shape

torch: Any = None  # loaded by main: this machine may have none

TIMED = [
    ("float32", 4096), ("tf32", 4096), ("float16", 8192), ("bfloat16", 8192), ("float64", 4096),
    ("complex64", 2048), ("int8", 8192), ("float8_e4m3", 8192),
]  # fmt: skip
SHAPES = [
    (1024, 1024, 1024, 1), (4096, 4096, 4096, 1), (8192, 8192, 8192, 1), (65536, 256, 256, 1),
    (8, 4096, 4096, 1), (1, 14336, 4096, 1), (512, 512, 64, 96), (1023, 1023, 1023, 1),
]  # fmt: skip


class Bench:
    """The library, its workspace, and operands in PyTorch's tensors."""

    def __init__(self) -> None:
        self.lt = Lt()
        self.space = torch.empty(self.lt.workspace, dtype=torch.uint8, device="cuda")
        self.scale = torch.ones(2, device="cuda")
        self.types = {
            "float32": torch.float32, "tf32": torch.float32, "float64": torch.float64,
            "float16": torch.float16, "bfloat16": torch.bfloat16, "complex64": torch.complex64,
            "int8": torch.int8, "float8_e4m3": torch.float8_e4m3fn,
        }  # fmt: skip

    def draw(self, kind: str, *sizes: int) -> Any:
        """Random elements of a kind."""
        if kind == "int8":
            return torch.randint(-128, 128, sizes, dtype=torch.int8, device="cuda")
        wide = torch.float64 if kind == "float64" else torch.float32
        x = torch.randn(*sizes, dtype=wide, device="cuda")
        return torch.complex(x, x.flip(0)) if kind == "complex64" else x.to(self.types[kind])

    def operands(self, s: Shape) -> tuple[Any, Any, Any]:
        """A and B as they lie, and a result that nothing wrote."""
        lead = (s.batch,) if s.batch > 1 else ()
        a = self.draw(s.kind, *lead, *((s.k, s.m) if s.a_turned else (s.m, s.k)))
        b = self.draw(s.kind, *lead, *((s.n, s.k) if s.b_turned else (s.k, s.n)))
        narrow = {"int8": torch.int32, "float8_e4m3": torch.bfloat16}
        out = torch.empty(*lead, s.m, s.n, dtype=narrow.get(s.kind, a.dtype), device="cuda")
        out.fill_(7 if s.kind == "int8" else float("nan"))
        return a, b, out

    def made(self, s: Shape, count: int = 1, **extra: int) -> Product:
        """The product, with its heuristics asked."""
        scales = self.scale.data_ptr() if s.kind.startswith("float8") else 0
        product = self.lt.product(s, scales=scales, **extra)
        if not product.ask(count):
            raise RuntimeError("no algorithm")
        return product

    def run(self, product: Product, a: Any, b: Any, d: Any, which: int = 0, beta: int = 0) -> None:
        """Start it on the current stream."""
        product.run(a.data_ptr(), b.data_ptr(), d.data_ptr(), self.space.data_ptr(),
                    torch.cuda.current_stream().cuda_stream, which, beta)  # fmt: skip


def microseconds(run: Callable[[], object], inner: int = 5, repeats: int = 7) -> float:
    """The device's median time of run."""
    for _ in range(2):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(inner):
            run()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / inner)
    return statistics.median(times)


def replayed(run: Callable[[int], object], calls: int = 8) -> float:
    """The device's median time of run(i), replayed by a graph: the host's calls don't count."""
    run(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            run(i)
    return microseconds(graph.replay, 1) / calls


def wide(x: Any, turned: bool) -> np.ndarray:
    """An operand in the CPU's highest precision, as its product reads it."""
    kind = torch.complex128 if x.is_complex() else torch.float64
    made = x.to(torch.float32 if x.dtype.itemsize == 1 else x.dtype).to(kind).cpu().numpy()
    return np.swapaxes(made, -1, -2) if turned else made


def error(got: Any, wanted: np.ndarray) -> float:
    """The relative error in the Frobenius norm."""
    return float(np.linalg.norm(wide(got, False) - wanted) / np.linalg.norm(wanted))


def layouts(bench: Bench) -> dict[str, Any]:
    """Kinds, operands' orders and batches: relative errors, or why it isn't taken."""
    found = {}
    for kind, _ in TIMED:
        for order in ("column", "row"):
            for turned in ((0, 0), (0, 1), (1, 0), (1, 1)):
                for batch in (1, 3):
                    s = Shape(kind, 96, 80, 64, batch, bool(turned[0]), bool(turned[1]), order)
                    name = f"{kind} {order} {'NT'[turned[0]]}{'NT'[turned[1]]} batch {batch}"
                    found[name] = attempt(lambda s=s: right(bench, s))
    return found


def attempt(measure: Callable[[], Any]) -> Any:
    """A measurement, or the text of its error."""
    try:
        return measure()
    except Exception as e:
        torch.cuda.synchronize()
        return f"{type(e).__name__}: {e}"[:160]


def right(bench: Bench, s: Shape) -> float:
    """A small product's relative error."""
    a, b, out = bench.operands(s)
    bench.run(bench.made(s), a, b, out)
    torch.cuda.synchronize()
    return error(out, wide(a, s.a_turned) @ wide(b, s.b_turned))


def speeds(bench: Bench) -> dict[str, Any]:
    """TFLOP/s of large products, beside PyTorch's where it has them.

    They take turns, since who comes first meets a cooler device with a higher clock.
    """
    found: dict[str, Any] = {}
    for kind, size in TIMED:
        turned = kind.startswith(("float8", "int8"))
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        s = Shape(kind, size, size, size, 1, False, turned)
        a, b, out = bench.operands(s)
        runs: dict[str, Callable[[], object]] = {}
        for order in ("column", "row"):
            product = attempt(partial(bench.made, s._replace(order=order)))
            if isinstance(product, str):
                found[f"{kind} {size} {order}"] = product
            else:
                runs[order] = partial(bench.run, product, a, b, out)
        if not turned:
            runs["torch"] = partial(torch.matmul, a, b, out=out)
        times: dict[str, list[Any]] = {name: [] for name in runs}
        for _ in range(3):
            for name, run in runs.items():
                times[name].append(attempt(partial(microseconds, run)))
        for name, taken in times.items():
            good = [t for t in taken if not isinstance(t, str)]
            middle = statistics.median(good) if good else taken[0]
            found[f"{kind} {size} {name}"] = flops(kind, size**3, middle)
    return found


def flops(kind: str, products: int, taken: Any) -> Any:
    """TFLOP/s of so many multiply-adds in microseconds."""
    return (
        taken
        if isinstance(taken, str)
        else (8 if kind == "complex64" else 2) * products / taken / 1e6
    )


def heuristics(bench: Bench) -> dict[str, Any]:
    """By shape in bfloat16: what the first 8 proposals are worth."""
    return {
        f"{batch} x {m}x{n}x{k}": attempt(
            partial(proposals, bench, Shape("bfloat16", m, n, k, batch))
        )
        for m, n, k, batch in SHAPES
    }


def proposals(bench: Bench, s: Shape) -> dict[str, Any]:
    """The first proposal's time, the best of 8, PyTorch's (microseconds).

    Replayed by graphs, and with operands in turns, so that they come from memory.
    """
    nbytes = 2 * s.batch * (s.m * s.k + s.k * s.n + s.m * s.n)
    sets = [bench.operands(s) for _ in range(1 + min(7, (200 << 20) // nbytes))]
    start = time.perf_counter()
    product = bench.made(s, 8)
    asked = 1e6 * (time.perf_counter() - start)

    def ours(which: int, i: int) -> None:
        bench.run(product, *sets[i % len(sets)], which)

    def theirs(i: int) -> None:
        a, b, out = sets[i % len(sets)]
        torch.matmul(a, b, out=out)

    times = [
        attempt(partial(replayed, partial(ours, which))) for which in range(len(product.found))
    ]
    good = [t for t in times if not isinstance(t, str)]
    return {
        "first": times[0], "best": min(good, default=None),
        "torch": attempt(partial(replayed, theirs)), "asking µs": asked,
        "workspace": product.found[0].workspace,
    }  # fmt: skip


def gelu_erf(x: np.ndarray) -> np.ndarray:
    """GELU by the error function."""
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """GELU by the hyperbolic tangent."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def epilogues(bench: Bench) -> dict[str, Any]:
    """By epilogue, kind and order: errors against what it could mean, and its cost at 4096."""
    found: dict[str, Any] = {}
    for kind in ("bfloat16", "float16", "float32"):
        for name in EPILOGUES:
            for order in ("column", "row"):
                key = f"{name} {kind} {order}"
                found[key] = attempt(lambda k=kind, n=name, o=order: epilogue(bench, k, n, o))
    return found


def epilogue(bench: Bench, kind: str, name: str, order: str) -> dict[str, Any]:
    """One epilogue's errors; for each it is told against which formula they are small."""
    result: dict[str, Any] = {}
    for size in (128, 4096) if order == "column" else (128,):
        s = Shape(kind, size, size, size, 1, False, False, order, name)
        a, b, out = bench.operands(s)
        a = a / math.sqrt(size)
        bias = bench.draw(kind, size)
        aux = bench.draw(kind, size, size)
        if "drelu" in name or "relu_aux" in name:
            aux = torch.randint(0, 256, (size, size // 8), dtype=torch.uint8, device="cuda")  # bits
        uses_aux = "aux" in name or name.startswith(("drelu", "dgelu"))
        uses_bias = "bias" in name or "bgrad" in name
        product = bench.made(s, bias=bias.data_ptr() if uses_bias else 0,
                             aux=aux.data_ptr() if uses_aux else 0)  # fmt: skip
        kept = aux.clone()
        bias_before = bias.clone()
        bench.run(product, a, b, out)
        torch.cuda.synchronize()
        if size == 128:
            plain = wide(a, False) @ wide(b, False)
            result["errors"] = meanings(name, plain, out, bias_before, bias, kept, aux)
            if name in ("bgrada", "bgradb"):
                sums = {"A": wide(a, False).sum(1), "B": wide(b, False).sum(0)}
                result["errors"] |= {f"sum of {x} over k": error(bias, y) for x, y in sums.items()}
        else:
            result["µs"] = microseconds(partial(bench.run, product, a, b, out))
            default = bench.made(s._replace(epilogue="default"))
            result["plain µs"] = microseconds(partial(bench.run, default, a, b, out))
    return result


def meanings(
    name: str, plain: np.ndarray, out: Any, bias_in: Any, bias_out: Any, aux_in: Any, aux_out: Any
) -> dict[str, float]:
    """Relative errors of the result (and of what else is written) against candidates."""
    b = wide(bias_in, False)
    found = {}
    sums = {"": plain}
    if "bias" in name:
        sums = {"last axis ": plain + b, "first axis ": plain + b[:, None]}
    for where, x in sums.items():
        formulas = {"": x}
        if "dgelu" in name:
            z = wide(aux_in, False)
            formulas = {n: plain * slope(f, z) for n, f in (("erf", gelu_erf), ("tanh", gelu_tanh))}
        elif "gelu" in name:
            formulas = {"erf": gelu_erf(x), "tanh": gelu_tanh(x)}
        elif "drelu" in name:
            formulas = {"masked": plain * bits(aux_in)}
        elif "relu" in name:
            formulas = {"relu": np.maximum(x, 0)}
        found |= {
            f"{where}{what}".strip() or "plain": error(out, y) for what, y in formulas.items()
        }
        if "relu_aux" in name:
            found[f"aux {where}bits that differ"] = float((bits(aux_out) != (x > 0)).mean())
        elif "gelu_aux" in name:
            found[f"aux {where}"] = error(aux_out, x)
    if name.endswith("bgrad"):
        got = wide(out, False)
        for axis in (0, 1):
            found[f"bgrad: sum of D over {axis}"] = error(bias_out, got.sum(axis))
    return found


def bits(aux: Any) -> np.ndarray:
    """ReLU's mask: a bit an element of the result, the first one the lowest of its byte."""
    return np.unpackbits(aux.cpu().numpy(), axis=1, bitorder="little")


def slope(f: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """A derivative by central differences in float64."""
    return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5


def running(bench: Bench) -> dict[str, Any]:
    """Workspaces, accumulation, capture, determinism, the host's time of a call."""
    found: dict[str, Any] = {}
    s = Shape("bfloat16", 4096, 4096, 4096)
    a, b, out = bench.operands(s)
    for size in (0, 4 << 20, 32 << 20):
        bench.lt.workspace = size
        product = bench.made(s)
        taken = microseconds(partial(bench.run, product, a, b, out))
        found[f"workspace {size >> 20} MiB: TFLOP/s"] = flops("bfloat16", 4096**3, taken)
    product = bench.made(s)
    bench.run(product, a, b, out)
    first = out.clone()
    same = []
    for _ in range(5):
        bench.run(product, a, b, out)
        same.append(bool(torch.equal(out, first)))
    found["equal bits in 5 runs"] = all(same)
    bench.run(product, a, b, out, 0, 1)
    torch.cuda.synchronize()
    found["beta = 1: error"] = error(out, 2 * wide(first, False))
    found["captured: equal bits"] = attempt(lambda: captured(bench, product, a, b, out, first))
    found["equal bits in a batch"] = attempt(partial(batched, bench))
    small = Shape("bfloat16", 64, 64, 64)
    x, y, z = bench.operands(small)
    p = bench.made(small)
    torch.cuda.synchronize()
    args = p.arguments(x.data_ptr(), y.data_ptr(), z.data_ptr(), bench.space.data_ptr(), 0)
    start = time.perf_counter()
    for _ in range(500):
        bench.lt.lib.cublasLtMatmul(*args)
    found["host µs a call, by ctypes"] = 1e6 * (time.perf_counter() - start) / 500
    torch.cuda.synchronize()
    found["host µs a call, native"] = attempt(partial(p.many, args, 500))
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(500):
        torch.matmul(x, y, out=z)
    found["host µs a call, torch.matmul"] = 1e6 * (time.perf_counter() - start) / 500
    torch.cuda.synchronize()
    return found


def batched(bench: Bench) -> bool:
    """Whether equal operands at 4 positions of a batch give equal bits."""
    s = Shape("bfloat16", 512, 512, 512, 4)
    a, b, out = bench.operands(s)
    for x in (a, b):
        x[1:] = x[:1]
    bench.run(bench.made(s), a, b, out)
    torch.cuda.synchronize()
    return all(bool(torch.equal(out[i], out[0])) for i in range(1, 4))


def captured(bench: Bench, product: Product, a: Any, b: Any, out: Any, wanted: Any) -> bool:
    """Whether a product that a graph replays has the bits of one that was called."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        bench.run(product, a, b, out)
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    return bool(torch.equal(out, wanted))


def main() -> None:
    """Measure all; a JSON file and a table."""
    global torch
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    import torch as loaded

    torch = loaded
    bench = Bench()
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "cuBLASLt": bench.lt.version}
    for measure in (layouts, speeds, heuristics, epilogues, running):
        found[measure.__name__] = attempt(lambda m=measure: m(bench))
        (options.out / "products.json").write_text(json.dumps(found, indent=1))
        print(measure.__name__)
        values = found[measure.__name__]
        for name, value in values.items() if isinstance(values, dict) else [("", values)]:
            print(f"  {name:36} {value}"[:200])


if __name__ == "__main__":
    main()
