"""Run each command of the README's ```sh blocks as a reader would: in a fresh copy of what is
committed and a fresh environment, so that what it needs must come from the README's own words.

    python tools/readme_commands.py

`make test` is left out, as it is what runs beside this; the demo takes a few steps only.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEPS = "--steps 60 --save-every 30"
SHORTER = {"make demo": f'make demo ARGS="{STEPS}"'}


def commands(page: str) -> list[str]:
    """The lines of a page's ```sh blocks without their comments, the demo's few steps long."""
    lines = [line.partition("#")[0].strip() for b in BLOCK.findall(page) for line in b.splitlines()]
    runs = (SHORTER.get(line, line) for line in lines if line not in ("", "make test"))
    return [f"{run} {STEPS}" if run.endswith("examples/gpt.py") else run for run in runs]


def main() -> None:
    """Run all commands; the first that fails ends it with its output."""
    with tempfile.TemporaryDirectory() as folder:
        copy, environment = Path(folder, "copy"), Path(folder, "environment")
        subprocess.run(["git", "clone", "--quiet", ROOT, copy], check=True)
        venv.create(environment, with_pip=True)
        path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        settings = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        for command in commands((copy / "README.md").read_text(encoding="utf-8")):
            start = time.perf_counter()
            done = subprocess.run(
                command, shell=True, cwd=copy, env=settings | {"PATH": path}, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            print(f"{time.perf_counter() - start:6.1f} s  {command}", flush=True)
            if done.returncode:
                sys.exit(f"{done.stdout[-6000:]}\nREADME: `{command}` ended with {done.returncode}")


if __name__ == "__main__":
    main()
