"""How results are cut over Explicit mesh axes: what the table says is what JAX does."""

import json
import os
import subprocess
import sys

from tests.parallel import explicit_programs


def test_the_table_is_as_jax_cuts():
    job = [sys.executable, explicit_programs.__file__]
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    told = subprocess.run(job, env=env, capture_output=True, text=True, check=True).stdout
    wanted = {name: spec for name, (_, spec) in explicit_programs.PROGRAMS.items()}
    assert {name: _trimmed(spec) for name, spec in json.loads(told).items()} == wanted


def _trimmed(spec):
    """A spec that came by JSON, without the axes at its end that are whole."""
    if spec is None:
        return None
    entries = [tuple(e) if isinstance(e, list) else e for e in spec]
    while entries and entries[-1] is None:
        entries.pop()
    return tuple(entries)
