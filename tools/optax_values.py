"""Writes what Optax's optimizers and schedules give on the cases of tests/optim/optax_cases.py.

Run it where JAX and Optax are: python tools/optax_values.py. It writes
tests/optim/optax_values.json, which the tests compare with, so that they need neither.
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

HERE = Path(__file__).parent.parent / "tests" / "optim"
sys.path.insert(0, str(HERE))
import optax_cases as cases  # noqa: E402 - it is found by the line above

jax.config.update("jax_enable_x64", True)


def rounded(x) -> float:
    """As far as the tests look."""
    return float(f"{float(x):.12g}")


def after_steps(make) -> list[list[float]]:
    """Parameters after each step, in one list."""
    opt, params = make(optax), jax.tree.map(jnp.asarray, cases.PARAMS)
    state, rows = opt.init(params), []
    for t in range(cases.STEPS):
        updates, state = opt.update(jax.tree.map(jnp.asarray, cases.grads(t)), state, params)
        params = optax.apply_updates(params, updates)
        rows.append([rounded(x) for leaf in jax.tree.leaves(params) for x in leaf.ravel()])
    return rows


def searched(make) -> list[list[float]]:
    """Parameters after each step of an optimizer that evaluates a function."""
    opt, x = make(optax), jnp.asarray(cases.START)
    state, rows = opt.init(x), []
    both = optax.value_and_grad_from_state(cases.rosenbrock)
    for _ in range(cases.SEARCH_STEPS):
        value, grad = both(x, state=state)
        updates, state = opt.update(
            grad, state, x, value=value, grad=grad, value_fn=cases.rosenbrock
        )
        x = optax.apply_updates(x, updates)
        rows.append([rounded(v) for v in x])
    return rows


def main() -> None:
    values = {
        "version": optax.__version__,
        "optimizers": {name: after_steps(make) for name, make in cases.OPTIMIZERS.items()},
        "searches": {name: searched(make) for name, make in cases.SEARCHES.items()},
        "schedules": {
            name: [rounded(make(optax)(n)) for n in cases.COUNTS]
            for name, make in cases.SCHEDULES.items()
        },
    }
    text = json.dumps(values, indent=0).replace(",\n", ", ").replace("[\n", "[")
    (HERE / "optax_values.json").write_text(text.replace("\n]", "]") + "\n")


if __name__ == "__main__":
    main()
