"""Writes jax_draws.json with JAX (`python tests/random/store_draws.py`, in an environment with
JAX, which the tests don't need): every 500th of 20,000 draws, and a few of the least likely."""

import json
from pathlib import Path

PARAMETERS = {
    "normal": (), "exponential": (), "gumbel": (), "laplace": (), "logistic": (),
    "truncated_normal": (-1.0, 2.0), "gamma": (2.0,), "beta": (2.0, 3.0), "t": (3.0,),
    "loggamma": (0.3,), "uniform": (),
}  # fmt: skip
SEED, COUNT, STRIDE = 42, 20_000, 500


def main():
    import numpy as np
    from jax import random

    table = {}
    for name, parameters in PARAMETERS.items():
        drawn = getattr(random, name)(random.key(SEED), *parameters, shape=(COUNT,))
        rare = np.argsort(np.abs(drawn))[[*range(8), *range(-8, 0)]].tolist()
        places = sorted({*range(0, COUNT, STRIDE), *rare})
        table[name] = [[i, float(drawn[i])] for i in places]
    Path(__file__).with_name("jax_draws.json").write_text(json.dumps(table) + "\n")


if __name__ == "__main__":
    main()
