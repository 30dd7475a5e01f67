"""The same work on funcgrad, JAX, PyTorch and NumPy, side by side in one run.

python -m benchmarks                                    # everything: more than an hour
python -m benchmarks --only gemm,conv --seconds 0.3     # cases whose name contains a word
python -m benchmarks --libraries funcgrad,jax --list
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks import cases, limits, plot, report
from benchmarks.case import Case
from benchmarks.libraries import LABELS, OURS, missing
from benchmarks.runner import Outcome, Runner, Settings

BUSY = 0.3  # of a core: more load than this before the run is worth a warning


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, or other arguments."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--only",
        type=_words,
        default=[],
        metavar="WORDS",
        help="cases with one of these in family/name",
    )
    add("--libraries", type=_words, default=list(LABELS), metavar="NAMES", help=", ".join(LABELS))
    add("--seconds", type=float, default=2.0, help="to time a case on a library (2)")
    add("--rounds", type=int, default=5, help="bursts that makes (5)")
    add("--timeout", type=float, default=300.0, help="seconds a library may take to prepare (300)")
    add("--threads", type=int, default=2, help="for each library (2)")
    add("--size", choices=cases.SIZES, default="full", help="tiny: does all work?")
    add("--out", type=Path, help="folder for results.json, results.md and the plots")
    add("--list", action="store_true", help="name the cases, and do nothing")
    args = parser.parse_args(arguments)
    unknown = [name for name in args.libraries if name not in LABELS]
    if unknown:
        parser.error(f"--libraries {','.join(unknown)}: there are {', '.join(LABELS)}")
    for name in ("seconds", "rounds", "timeout", "threads"):
        if getattr(args, name) <= 0:
            parser.error(f"--{name} must be more than 0, not {getattr(args, name)}")
    try:
        args.cases = cases.chosen(args.only, args.size)
    except ValueError as error:
        parser.error(f"--only: {error}")
    return args


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write. Returns 1 if a case failed on funcgrad."""
    args = parse_args(arguments)
    if args.list:
        for case in args.cases:
            print(case.key)
        return 0
    libraries = [name for name in LABELS if name in args.libraries]
    for name in list(libraries):
        if reason := missing(name):
            print(f"{LABELS[name]} is skipped: {reason}")
            libraries.remove(name)
    settings = Settings(args.seconds, args.rounds, args.timeout, args.threads, args.size)
    _warn_if_busy()
    most = limits.measure(settings.threads)
    facts = report.about(settings, libraries, most)
    outcomes: list[Outcome] = []
    try:
        with Runner(libraries, settings) as runner:
            for case in _progress(args.cases):
                outcomes.append(runner.measure(case))
                _say(report.line(outcomes[-1], most))
    except KeyboardInterrupt:
        print("interrupted: what follows is of the cases so far")
    _say_summary(outcomes)
    if args.out is not None:
        write(outcomes, args.out, libraries, facts, most)
    return int(any(OURS in outcome.failures for outcome in outcomes))


def write(
    outcomes: Sequence[Outcome],
    folder: Path,
    libraries: Sequence[str],
    facts: dict,
    most: limits.Limits,
) -> None:
    """Write the tables and, where matplotlib is installed, the plots."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(report.to_json(outcomes, facts, most), encoding="utf-8")
    text = report.to_markdown(outcomes, facts, most, libraries)
    (folder / "results.md").write_text(text, encoding="utf-8")
    details = [
        f"{o.case.key} on {LABELS[name]}\n{text}"
        for o in outcomes
        for name, text in o.details.items()
        if text
    ]
    (folder / "failures.txt").write_text("\n\n".join(details), encoding="utf-8")
    try:
        plot.save(outcomes, folder, f"{facts['processor']}, {facts['threads']} threads")
    except ImportError:
        print("no plots: matplotlib is not installed (pip install matplotlib)")
    print(f"wrote {folder}/results.md, results.json, failures.txt and the plots")


def _say_summary(outcomes: Sequence[Outcome]) -> None:
    print(f"\n{'family':16}{'cases':>6}{'best peer / funcgrad':>22}{'JAX / funcgrad':>16}")
    for name, count, best, against_jax in report.summary(outcomes):
        print(f"{name:16}{count:6}{report.times(best):>22}{report.times(against_jax):>16}")


def _warn_if_busy() -> None:
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > BUSY:
        print(f"other programs are running (load {os.getloadavg()[0]:.1f}): times will be off")


def _progress(all_cases: Sequence[Case]) -> Iterable[Case]:
    try:
        from tqdm import tqdm
    except ImportError:
        return _counted(all_cases)
    return tqdm(all_cases, unit="case", disable=None, dynamic_ncols=True)


def _counted(all_cases: Sequence[Case]) -> Iterator[Case]:
    for i, case in enumerate(all_cases):
        print(f"{i + 1} of {len(all_cases)}: {case.key}", file=sys.stderr)
        yield case


def _say(text: str) -> None:
    """Print above the progress bar."""
    if "tqdm" in sys.modules:
        sys.modules["tqdm"].tqdm.write(text)
    else:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
