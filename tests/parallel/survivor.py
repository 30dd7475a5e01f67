"""A training job that is killed at random moments: survivor.py FOLDER KILLS STEPS.

In each of the first KILLS attempts one of the ranks kills itself, anywhere between its imports and
the end of its last save.
"""

import os
import random as chance
import signal
import sys
import threading
import time


def kill_later(attempt, kills):
    """Kill this process at a moment that depends on the attempt, if it is its turn."""
    rng = chance.Random(attempt)
    rank = int(os.environ.get("PMI_RANK", "0"))
    victim, delay = rng.randrange(int(os.environ.get("PMI_SIZE", "1"))), rng.uniform(0.3, 2.5)
    if attempt < kills and rank == victim:
        timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()


def main(folder, kills, steps):
    """Train, with a checkpoint after each step; print the last loss."""
    kill_later(int(os.environ.get("FUNCGRAD_ATTEMPT", "0")), int(kills))
    import funcgrad as fg
    import funcgrad.numpy as fnp
    from funcgrad import random, tree
    from funcgrad.io.checkpoints import Checkpointer
    from funcgrad.parallel import NamedSharding, P, fsdp, make_mesh, process_index

    mesh = make_mesh(-1, "data", devices=None)
    batch = NamedSharding(mesh, P("data"))

    def init(key):
        a, b = random.split(key)
        params = {"up": random.normal(a, (32, 128)) / 6, "down": random.normal(b, (128, 32)) / 12}
        return {"params": params, "moments": tree.map(fnp.zeros_like, params)}

    def loss(params, x):
        return fnp.mean((fnp.tanh(x @ params["up"]) @ params["down"] - fnp.sin(x)) ** 2)

    cut = fsdp(fg.eval_shape(init, random.key(0)), mesh)

    @fg.jit
    def step(state, key):
        x = fg.device_put(random.normal(key, (64, 32)), batch)
        value, grads = fg.value_and_grad(loss)(state["params"], x)
        moments = tree.map(lambda m, g: 0.9 * m + g, state["moments"], grads)
        params = tree.map(lambda p, m: p - 0.1 * m, state["params"], moments)
        return fg.device_put({"params": params, "moments": moments}, cut), value

    state, done, value = fg.jit(init, out_shardings=cut)(random.key(0)), 0, fnp.zeros(())
    with Checkpointer(folder, keep=2) as checkpoints:
        if checkpoints.latest() is not None:
            done = checkpoints.latest()
            state = checkpoints.restore(state, done)
            value = checkpoints.contents(done).metadata["loss"]
        for i in range(done, int(steps)):
            state, value = step(state, random.fold_in(random.key(1), i))
            checkpoints.save(i + 1, state, metadata={"loss": float(value)})
            # A step of a real job takes a while: the kills are to fall into all of them.
            time.sleep(0.02)
    if process_index() == 0:
        print(f"loss of step {steps}: {float(value).hex()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
