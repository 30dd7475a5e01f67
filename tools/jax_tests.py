"""JAX's own tests, and HIPS autograd's, run on funcgrad from a checkout of theirs.

    python tools/jax_tests.py run CHECKOUT RESULTS            # JAX's tests, on funcgrad
    python tools/jax_tests.py run CHECKOUT RESULTS --peer     # on the JAX that is installed
    python tools/jax_tests.py page RESULTS > docs/jax_tests.md

`--suite autograd` takes a checkout of autograd. It needs pytest, absl-py and pytest-timeout. Each
file runs by itself, and has in RESULTS a line of JSON on the run, then one for each test; imports
are renamed by `standin.py`.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from standin import plain

ROOT = Path(__file__).resolve().parent.parent
# Files of JAX's about what is not JAX's public interface on processors: internals, GPUs, TPUs,
# Pallas, XLA's texts, formats of exported programs, several processes, examples.
LEFT_OUT = re.compile(
    "gpu|tpu|mosaic|pallas|cudnn|magma|mock|export|shape_poly|cache|distributed|colocated|logging"
    "|profil|monitoring|pgle|backend|bridge|mlir|hlo|xla|metadata|notebook|roofline|layout|hijax"
    "|stateful|traceback|source|filecheck|custom_partition|jax_to_ir|jaxpr|deprecation|docum|ffi"
    "|memories|pmap|pjit|lazy|package|version|wheel|garbage|pretty|config_test|callback_test|debug"
    "|optimizers|stax|rnn|fused|pytorch|multi|hypothesis|sparse_|sparsify|state_test|string|harness"
    "|(^|api_)util_test|scheduling|control_deps|async|shard_alike|error_check|transfer|warnings|extend|aot"
    "|ragged|clear|jax_jit|numerics|name_stack|mesh_utils|heap|hardware|key_reuse|linalg_sharding"
    "|numpy_error|^stack_test|^errors_test"
)
ENVIRONMENT = {
    "JAX_NUM_GENERATED_CASES": "1",
    "JAX_SKIP_SLOW_TESTS": "1",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
}
REASONS = {
    "values": r"Not equal to tolerance|Arrays are not equal|Mismatched|not close",
    "internals of JAX": r"(_src|interpreters|\.core|extend|export|pallas|mosaic)\b.* is not there"
    r"|has no attribute '_|jax_internals|missing jax",
    "names that are not there": r"is not there",
    "keywords that are not there": r"unexpected keyword argument",
    "other words in an error": r"does not match|not found in",
    "an error that isn't raised": r"not raised",
    "texts and objects of XLA's compiler": r"compiler_ir|'(Lowered|Compiled|Executable|Jitted)'"
    r"|hlo|compiler_options",
    "shapes or dtypes": r"dtype|ShapeError|shapes",
    "kinds of keys that are not there": r"impl must be one of",
    "counts of compilations and calls": r"AssertionError: \d+ (!=|not) ",
    "attributes that are not there": r"has no attribute",
    "uses of Refs that are refused": r"RefError",
    "too slow here": r"Timeout",
}
WHY = {
    "values": "numbers of 64 bits that are asked for are honoured, where JAX's default is 32; sums "
    "are done in another order",
    "internals of JAX": "they test JAX's own machinery: its registries of rules, its tracers, how "
    "it cuts programs. Ours is of another make, and tested by our own tests",
    "names that are not there": "see [jax_names.md](jax_names.md)",
    "keywords that are not there": "what chooses among XLA's or cuDNN's algorithms, or newer than "
    "what is here",
    "other words in an error": "errors here name the user's argument, what it is and what to do. "
    "JAX's words stand in them where they fit; its sentences about JAX's own terms do not",
    "an error that isn't raised": "what JAX refuses and is allowed here: dtypes of 64 bits, "
    "conversions, closures over traced values in custom rules",
    "texts and objects of XLA's compiler": "there is no XLA: stages are jaxpr, loops, llvm and asm",
    "shapes or dtypes": "float64 and int64 that are asked for are honoured; float4, float6 and "
    "integers of 1 and 2 bits are not there",
    "kinds of keys that are not there": "Philox and Threefry of other widths, which JAX has beside "
    "its three",
    "counts of compilations and calls": "programs are cached by other keys, and traced at other "
    "times",
    "attributes that are not there": "of objects that JAX makes of devices, programs and functions",
    "uses of Refs that are refused": "rules' programs are made once for all calls, and have no "
    "effects; the differences page says which",
    "too slow here": "more than a minute, or what the run gave, on a shared machine",
    "other": "each for a reason of its own",
}
# Why tests fail that are of no kind, by their names without parameters.
OWN_REASONS = json.loads(Path(__file__).with_name("jax_tests_reasons.json").read_text())


class Row(NamedTuple):
    """What the page says of a file: of how many tests how many pass, whether the library itself
    says which count, each how manieth was run, and when."""

    passed: int
    total: int
    compared: bool
    every: int
    date: str


class Result(NamedTuple):
    """How one test went: "passed", "failed", "skipped" or "not collected", and its last words."""

    outcome: str
    text: str


def run(args: argparse.Namespace) -> None:
    """Run each file of tests by itself, as long as it may take."""
    checkout, tests = args.checkout.resolve(), args.checkout.resolve() / "tests"
    pattern = "test_*.py" if args.suite == "autograd" else "*_test.py"
    files = [tests / f"{name}.py" for name in args.files] or sorted(tests.glob(pattern))
    library = args.suite if args.peer else "funcgrad"
    folder = args.results.resolve() / args.suite / library
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        if args.suite == "jax" and not args.files and LEFT_OUT.search(file.stem):
            continue
        results = folder / f"{file.stem}.jsonl"
        about = {"every": args.every, "date": datetime.date.today().isoformat()}
        results.write_text(json.dumps(about) + "\n")
        names = {
            "EVERY": args.every,
            "LIBRARY": library,
            "FOR": args.suite,
            "CHECKOUT": checkout,
            "RESULTS": results,
        }
        env = {**ENVIRONMENT, **os.environ, **{f"STANDIN_{k}": str(v) for k, v in names.items()}}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tools")])
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "standin"]
        command += ["-c", os.devnull, "-p", "no:cacheprovider"]
        command += [f"--timeout={args.test_seconds}", str(file)]
        try:
            done = subprocess.run(
                command, cwd=tests, env=env, timeout=args.seconds, capture_output=True, text=True
            )
            last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        except subprocess.TimeoutExpired:
            last = f"stopped after {args.seconds} s"
        print(f"{file.stem}: {last}", flush=True)


def read(file: Path) -> dict[str, Result]:
    """The tests of one file by name; a test of several parts failed if one did."""
    found: dict[str, Result] = {}
    for line in file.read_text().splitlines()[1:] if file.exists() else ():
        row = json.loads(line)
        name = plain(row["test"])
        if name not in found or row["outcome"] != "passed":
            found[name] = Result(row["outcome"], row["text"])
    return found


def wanted(ours: dict[str, Result], theirs: dict[str, Result]) -> list[str]:
    """The tests that count: those that the library itself passes, if that is known."""
    if theirs:
        return [name for name, r in theirs.items() if r.outcome == "passed"]
    return [name for name, r in ours.items() if r.outcome != "skipped"]


def last_words(result: Result) -> str:
    """What a failure says: the first line of an AssertionError, the last one of others."""
    lines = [line[1:].strip() for line in result.text.splitlines() if line.startswith("E ")]
    if not lines:
        return result.text.strip().splitlines()[-1] if result.text.strip() else result.outcome
    return lines[0] if "AssertionError" in lines[0] and len(lines) > 1 else lines[-1]


def reason(result: Result) -> str:
    """Of which kind a failure is."""
    said = "\n".join(line for line in result.text.splitlines() if line.startswith("E "))
    found = (kind for kind, words in REASONS.items() if re.search(words, said or result.text))
    return next(found, "other")


def compare(results: Path, suite: str) -> tuple[dict[str, Row], dict[str, list]]:
    """By file: how many tests pass of how many; by kind of failure: (test, last words)."""
    table, failed = {}, collections.defaultdict(list)
    for file in sorted((results / suite / "funcgrad").glob("*.jsonl")):
        about = json.loads(file.read_text().splitlines()[0])
        ours, theirs = read(file), read(results / suite / suite / file.name)
        names = wanted(ours, theirs)
        passed = 0
        for name in names:
            result = ours.get(name, Result("not collected", ""))
            if result.outcome == "passed":
                passed += 1
            else:
                failed[reason(result)].append((name, last_words(result)))
        table[file.stem] = Row(passed, len(names), bool(theirs), about["every"], about["date"])
    return table, failed


INTRODUCTION = """# Tests of JAX and of autograd

Made by `tools/jax_tests.py`, which runs JAX's public tests, and HIPS autograd's, on funcgrad under
their names. What counts are the tests that the library itself passes where it was run beside ("by
itself"), else all that aren't skipped: of the first 70 that fail here, JAX 0.10.2 passes all. Of
long files a part of the tests was run, one in as many as the tables say; the estimate for the whole
counts each file by all of its tests. After mends, tests that had failed were run again, those that
had passed were not: the part that was run is kinder than the rest. The tables are of that run: what
has come since, as `smap` and `args_info` have, fails in them still. Files that the tables lack
weren't run: those of JAX about internals, other machines and compilers' texts (`LEFT_OUT` in the
tool), and what no time was left for.
"""


def page(results: Path) -> str:
    """The page of what passes, and why what fails does."""
    lines = [INTRODUCTION.rstrip()]
    for suite, title in (("jax", "JAX"), ("autograd", "HIPS autograd")):
        table, failed = compare(results, suite)
        if not table:
            continue
        lines += ["", f"## {title}", "", _summary(table), ""]
        lines += ["| File | Passed | Of | One in | Which count |", "|---|---|---|---|---|"]
        lines += [
            f"| `{name}` | {row.passed} | {row.total} | {row.every} | "
            f"{'by itself' if row.compared else 'all'} |"
            for name, row in table.items()
        ]
        lines += ["", "| What fails | Tests | Why | Such as |", "|---|---|---|---|"]
        for kind, rows in sorted(failed.items(), key=lambda item: -len(item[1])):
            common = collections.Counter(re.sub(r"\d+", "N", words) for _, words in rows)
            shown = "; ".join(_cell(words) for words, _ in common.most_common(3))
            lines.append(f"| {kind} | {len(rows)} | {WHY[kind]} | {shown} |")
        lines += _one_by_one(failed.get("other", ()), suite)
    return "\n".join(lines) + "\n"


def _one_by_one(rows: Iterable[tuple[str, str]], suite: str) -> list[str]:
    """The tests that fail for a reason of their own, each with it."""
    if suite != "jax" or not rows:
        return []
    lines = ["", "| Of the others | Why it fails |", "|---|---|"]
    for name in sorted({_bare(name) for name, _ in rows}):
        why = OWN_REASONS.get(name, "not looked at yet")
        lines.append(f"| `{name}` | {why} |")
    return lines


def _bare(test: str) -> str:
    """A test's name without its class and parameters: testX of file.py::Class::testX12_a=1, and
    test_x of test_x_a=1, where no number says that a parameter's name begins."""
    found = re.match(r"\w+?(?=\d*$|\d+_\w*=|_[^\W_]*=|\[)", test.split("::")[-1])
    return found.group() if found else test


def _summary(table: dict[str, Row]) -> str:
    """How many tests pass of those that were run, of all by estimate, and when that was."""
    rows = table.values()
    passed, total = (sum(getattr(r, column) for r in rows) for column in ("passed", "total"))
    said = f"{passed} of {total} pass ({100 * passed / max(total, 1):.1f} %"
    if any(r.every > 1 for r in rows):
        whole = sum(r.total * r.every for r in rows)
        part = sum(r.passed * r.every for r in rows)
        said += f"; {100 * part / max(whole, 1):.1f} % of the whole, by estimate"
    first, last = min(r.date for r in rows), max(r.date for r in rows)
    return f"{said}), run {'on ' + first if first == last else f'from {first} to {last}'}."


def _cell(words: str) -> str:
    words = words.replace("|", "\\|").replace("`", "'")
    words = re.sub(r"/\S*/", "", words)  # no places of this machine
    return f"`{words[:100]}`"


def main() -> None:
    """Read the command line, and do what it says."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("checkout", type=Path)
    running.add_argument("results", type=Path)
    running.add_argument("--suite", choices=["jax", "autograd"], default="jax")
    running.add_argument("--peer", action="store_true", help="the library itself, not funcgrad")
    running.add_argument("--files", nargs="*", default=[], help="names of files, without .py")
    running.add_argument("--every", type=int, default=1, help="each so manieth test alone")
    running.add_argument("--seconds", type=int, default=1800, help="for a file")
    running.add_argument("--test-seconds", type=int, default=60, help="for a test")
    commands.add_parser("page").add_argument("results", type=Path)
    args = parser.parse_args()
    if args.command == "run":
        run(args)
    else:
        sys.stdout.write(page(args.results))


if __name__ == "__main__":
    main()
