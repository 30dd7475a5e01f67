"""The page of JAX's names is as its tool makes it, and gives a reason for each that is missing."""

import importlib.util
import json
from pathlib import Path

import pytest

import funcgrad as fg
from funcgrad import lax

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("jax_names", ROOT / "tools" / "jax_names.py")
jax_names = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(jax_names)
NAMES = json.loads((ROOT / "tests" / "jax_names.json").read_text())
MISSING = jax_names.missing(NAMES)


def test_the_page_is_up_to_date():
    page = (ROOT / "docs" / "jax_names.md").read_text(encoding="utf-8")
    assert page == jax_names.page(), "python tools/jax_names.py page > docs/jax_names.md"


def test_each_missing_name_has_a_reason():
    unsaid = [f"{m}.{n}" for m, names in MISSING.items() for n in names
              if not jax_names.reason(m, n)]  # fmt: skip
    assert not unsaid


def test_each_reason_is_of_a_missing_name():
    missing = {f"{m}.{n}" if m else n for m, names in MISSING.items() for n in names}
    own = [r for r in jax_names.REASONS if not r.endswith(".*")]
    assert not set(own) - missing
    for rest in set(jax_names.REASONS) - set(own):
        assert any(n.startswith(rest[:-1]) and n not in own for n in missing), rest


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        (fg, "config", "has no attribute 'config' as JAX has: settings are functions"),
        (lax, "with_sharding_constraint", "as JAX has: `funcgrad.parallel.with_sharding_constr"),
        (fg, "nothing", "module 'funcgrad' has no attribute 'nothing'$"),
    ],
)
def test_a_name_that_is_missing_tells_what_to_do(module, name, words):
    assert not hasattr(module, name)
    with pytest.raises(AttributeError, match=words):
        getattr(module, name)
