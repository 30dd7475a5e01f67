"""What tests of pipelines run on ranks, and on virtual devices."""

import functools

import numpy as np

import funcgrad as fg
from funcgrad import tree
from funcgrad.errors import ScheduleError
from funcgrad.parallel import (
    NamedSharding,
    P,
    device_put,
    make_mesh,
    moe,
    pipeline_value_and_grad,
    ring_attention,
    shard_map,
)
from funcgrad.parallel.pipelines import Schedule
from tests.parallel.pipelines import unlike
from tests.parallel.pipelines.models import (
    embed,
    entropy,
    head,
    language_loss,
    layer,
    params,
    shared,
    texts,
)

SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"]
STAGES, STEPS, GRID_STEPS, RATE = 8, 20, 3, 0.02
IDS, WORDS = texts()
WHOLE, ALONG = P(), P("pp")
LAYOUTS = {
    "fsdp": ({"w": P("pp", "x"), "b": P("pp", "x")}, P("x")),
    "tp": ({"w": P("pp", None, "x"), "b": P("pp", "x")}, P()),
}


def descended(model, grads):
    return tree.map(lambda p, g: p - RATE * g, model, grads)


@functools.cache
def losses_alone():
    """The losses of a model that one device trains."""

    @fg.jit
    def step(model):
        value, grads = fg.value_and_grad(language_loss)(model, IDS, WORDS)
        return descended(model, grads), value

    return run(step, (params(STAGES), shared()), STEPS)


def run(step, model, steps):
    found = []
    for _ in range(steps):
        model, value = step(model)
        found.append(float(np.asarray(value)))
    return found


def losses(schedule, mesh, steps=STEPS, cuts=ALONG, batch=WHOLE):
    """The losses of the model in a pipeline."""
    f = pipeline_value_and_grad(
        layer, entropy, mesh=mesh, microbatches=4, schedule=schedule, first=embed, last=head
    )
    ids, words = (device_put(x, NamedSharding(mesh, batch)) for x in (IDS, WORDS))
    cut = lambda spec: NamedSharding(mesh, spec)
    own = tree.map(cut, cuts) if isinstance(cuts, dict) else cut(cuts)
    stages = params(STAGES)
    own = own if isinstance(cuts, dict) else tree.map(lambda _: own, stages)
    everywhere = tree.map(lambda _: cut(P()), shared())
    model = device_put((stages, shared()), (own, everywhere))

    @functools.partial(fg.jit, out_shardings=((own, everywhere), cut(P())))
    def step(model):
        value, grads = f(model, ids, words)
        return descended(model, grads), value

    return run(step, model, steps)


# Stages placed anyhow, and a whole backward pass beside one in halves.
MINE = Schedule(
    "mine",
    [
        [("F", s, 0), ("F", s, 1), ("B", s, 0), ("F", s, 2), ("I", s, 1), ("W", s, 1),
         ("F", s, 3), ("B", s, 2), ("B", s, 3)]
        for s in (2, 0, 3, 1)
    ],
)  # fmt: skip


def losses_of_all(names):
    """The losses by schedules, on all ranks."""
    mesh = make_mesh(4, "pp")
    return {name: losses(MINE if name == "mine" else name, mesh) for name in names}


def losses_of_grids(steps=STEPS, layouts=LAYOUTS, schedule="1f1b"):
    """The losses with stages that are cut over another axis."""
    mesh = make_mesh((2, 2), ("pp", "x"))
    return {k: losses(schedule, mesh, steps, *LAYOUTS[k]) for k in layouts}


def deadlock():
    """The error for a schedule whose ranks wait for each other."""
    rows = [
        [(k, stage, i) for k, i in [("F", 0), ("B", 0), ("F", 1), ("B", 1)]] for stage in range(4)
    ]
    rows[3] = rows[3][2:] + rows[3][:2]
    try:
        pipeline_value_and_grad(
            layer, entropy, mesh=make_mesh(4, "pp"), microbatches=2, schedule=Schedule("mine", rows)
        )(params(4), IDS, WORDS)
    except ScheduleError as error:
        return str(error)
    return None


def unlike_stages():
    """A loss and its gradient by four stages that have nothing in common, one of them without
    weights."""
    first, second, last = unlike.params()
    stages = [unlike.embed, unlike.widened, lambda p, h: h, unlike.head]
    f = pipeline_value_and_grad(stages, entropy, mesh=make_mesh(4, "pp"), microbatches=4)
    value, grads = fg.jit(f, out_shardings=NamedSharding(make_mesh(4, "pp"), P()))(
        [first, second, None, last], unlike.IDS, unlike.TARGETS
    )
    return tree.map(np.asarray, (value, [*grads[:2], grads[3]]))


def refused():
    """The errors for what can't be, each of which all ranks must raise and go on."""
    mesh, x = make_mesh(4, "pp"), np.ones((8, 6), np.float32)
    trained = functools.partial(pipeline_value_and_grad, layer, lambda y, t: fg.numpy.mean(y - t))
    whole = NamedSharding(mesh, P())
    router, experts = np.ones((6, 4)), {"up": np.ones((4, 6, 6)), "down": np.ones((4, 6, 6))}

    def mixture(**options):
        f = functools.partial(moe, top_k=1, **options)
        specs = {"in_specs": (P("pp"), P(), P("pp")), "out_specs": (P("pp"), P())}
        return lambda: shard_map(f, mesh=mesh, **specs)(x, router, experts)

    cases = {
        "stages": lambda: trained(mesh=mesh, microbatches=4)(params(6), x, x),
        "microbatches": lambda: trained(mesh=mesh, microbatches=3)(params(4), x, x),
        "list": lambda: pipeline_value_and_grad([layer] * 3, entropy, mesh=mesh, microbatches=4)(
            [params(1)] * 3, x, x
        ),
        "axis": mixture(axis="ep"),
        "capacity": mixture(axis="pp", capacity_factor=0),
        "ring": lambda: shard_map(
            lambda x: ring_attention(x, x, x, axis="cp"), mesh=mesh, in_specs=P(), out_specs=P()
        )(np.ones((4, 2, 2), np.float32)),
    }
    found = {}
    for name, case in cases.items():
        try:
            case()
        except Exception as error:
            found[name] = type(error).__name__, str(error)
    # All are still together.
    total = fg.jit(lambda x: x + 1, out_shardings=whole)(np.ones(3))
    return found, float(np.asarray(total).sum())
