"""A pipelined FSDP job, a rank of which is killed once: survivor_pipelined.py FOLDER KILLS STEPS.

Four ranks: two stages, each cut over two. In each of the first KILLS attempts a rank kills itself
half way, while the others wait for its messages.
"""

import os
import signal
import sys


def main(folder, kills, steps):
    """Train, with a checkpoint after each step; print the last loss."""
    import funcgrad as fg
    import funcgrad.numpy as fnp
    from funcgrad import random
    from funcgrad.io.checkpoints import Checkpointer
    from funcgrad.parallel import NamedSharding, P, make_mesh, pipeline, process_index

    mesh, steps = make_mesh((2, 2), ("pp", "fsdp")), int(steps)
    doomed = process_index() == 1 and int(os.environ.get("FUNCGRAD_ATTEMPT", "0")) < int(kills)
    cut, batch = NamedSharding(mesh, P("pp", "fsdp")), NamedSharding(mesh, P("fsdp"))

    def loss(w, x):
        y = pipeline(lambda w, h: fnp.tanh(h @ w), w, x, mesh=mesh, microbatches=2)
        return fnp.mean((y - fnp.sin(x)) ** 2)

    @fg.jit
    def step(w, key):
        x = fg.device_put(random.normal(key, (16, 8)), batch)
        value, grad = fg.value_and_grad(loss)(w, x)
        return fg.device_put(w - 0.1 * grad, cut), value

    w, done = fg.device_put(random.normal(random.key(0), (2, 8, 8)) / 3, cut), 0
    with Checkpointer(folder, keep=2) as checkpoints:
        if checkpoints.latest() is not None:
            done = checkpoints.latest()
            w = checkpoints.restore(w, done)
        for i in range(done, steps):
            if doomed and i == steps // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            w, value = step(w, random.fold_in(random.key(1), i))
            checkpoints.save(i + 1, w)
    if process_index() == 0:
        print(f"loss of step {steps}: {float(value).hex()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
