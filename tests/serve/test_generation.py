"""Generators: results equal those of one sequence alone; slots, streams, limits, files."""

import asyncio
import json
import sys
import time
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn, random
from funcgrad.errors import ArgumentError, FormatError
from funcgrad.serve import App, Batching, Generator, Model, Repository, load_model, save_generator
from funcgrad.serve.generation import Options, sample
from tests.serve.clients import call, get

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import gpt
import serve_gpt

ALPHABET = "abcdefgh"
CFG = gpt.Config(len(ALPHABET), context=24, width=16, heads=2, layers=2)
SLOTS = 4


@lru_cache
def params():
    made = gpt.init_params(random.key(0), CFG)
    return fg.tree.map(lambda x: x * 12, made)  # so that letters vary


@lru_cache
def model():
    weights = params()

    def step(cache, tokens, positions):
        return serve_gpt.decode(weights, cache, tokens, positions, CFG)

    return Generator("gpt", step, serve_gpt.empty_cache(CFG, SLOTS), slots=SLOTS,
                     context=CFG.context, vocabulary=ALPHABET)  # fmt: skip


def alone(prompt, n, seed=0, temperature=0.0, top_k=0):
    """What the model without a cache makes of a prompt."""
    tokens, padded = [ALPHABET.index(c) for c in prompt], np.zeros((1, CFG.context), "i4")
    for _ in range(n):
        padded[0, : len(tokens)] = tokens
        logits = whole(params(), padded)[:, len(tokens) - 1]
        one = [np.array([v], d) for v, d in ((len(tokens) - 1, "i4"), (seed, "u4"),
                                             (temperature, "f4"), (top_k, "i4"))]  # fmt: skip
        tokens.append(int(drawn(logits, *one)[0]))
    return "".join(ALPHABET[t] for t in tokens[len(prompt) :])


whole = fg.jit(lambda params, tokens: gpt.logits_of(params, tokens, CFG))
drawn = fg.jit(sample)


def asked(app, prompt, stream=False, name="gpt", **parameters):
    path = f"/v2/models/{name}/generate{'_stream' if stream else ''}"
    body = json.dumps({"text_input": prompt, "parameters": parameters}).encode()
    return call(app, "POST", path, body)


CASES = [
    ("abc", {"max_tokens": 12}),
    ("h", {"max_tokens": 20, "temperature": 1.0, "seed": 7}),
    ("ghgh", {"max_tokens": 5, "temperature": 0.7, "top_k": 3, "seed": 1}),
    ("a", {"max_tokens": 1}),
    ("bad", {"max_tokens": 16, "temperature": 2.0, "top_k": 1}),
    ("feed", {"max_tokens": 9, "temperature": 1.5, "seed": 2**32 - 1}),
    ("cafe", {"max_tokens": 11, "temperature": 1.0, "seed": 7}),
]


def test_what_is_generated_side_by_side_is_what_each_gives_alone():
    app = App(Repository([model()]))

    async def every():
        return await asyncio.gather(*(asked(app, p, **o) for p, o in CASES))

    for (prompt, options), (status, _, body) in zip(CASES, asyncio.run(every()), strict=True):
        assert status == 200, body
        n = options["max_tokens"]
        rest = {k: v for k, v in options.items() if k != "max_tokens"}
        assert json.loads(body)["text_output"] == alone(prompt, n, **rest)
    text = get(app, "/metrics")[2].decode()
    total = sum(o["max_tokens"] for _, o in CASES)
    assert f'funcgrad_generated_tokens{{model="gpt",version="1"}} {total}' in text
    assert 'funcgrad_slots_used{model="gpt",version="1"} 0' in text
    steps = sum(len(p) + o["max_tokens"] - 1 for p, o in CASES)
    count = float(text.split("funcgrad_inference_exec_count{")[-1].split("} ")[1].split()[0])
    assert count <= steps / 2  # several sequences a step


def test_a_stream_has_an_event_a_token():
    app = App(Repository([model()]))
    status, headers, body = asyncio.run(asked(app, "abc", stream=True, max_tokens=5))
    assert (status, headers[b"content-type"]) == (200, b"text/event-stream")
    events = [json.loads(e.removeprefix("data: ")) for e in body.decode().split("\n\n") if e]
    assert len(events) == 5
    assert "".join(e["text_output"] for e in events) == alone("abc", 5)


def test_sampling_is_by_seed_and_among_the_likeliest():
    logits = np.tile(np.array([0.0, 3, 2, 1], "f4"), (500, 1))
    seeds, zeros = np.arange(500, dtype="u4"), np.zeros(500, "i4")
    ones = np.ones(500, "f4")
    got = np.asarray(drawn(logits, zeros, seeds, ones, zeros + 2))
    np.testing.assert_array_equal(got, drawn(logits, zeros, seeds, ones, zeros + 2))
    p = np.exp(1) / (1 + np.exp(1))
    assert set(got) == {1, 2}
    assert abs((got == 1).mean() - p) < 5 * (p * (1 - p) / 500) ** 0.5
    assert (np.asarray(drawn(logits, zeros, seeds, ones * 0, zeros)) == 1).all()
    assert set(np.asarray(drawn(logits, zeros, seeds, ones * 50, zeros))) == {0, 1, 2, 3}


def test_prompts_that_take_one_call_give_the_same():
    weights = params()
    steps, whole_prompts = [], []

    def step(cache, tokens, positions):
        return serve_gpt.decode(weights, cache, tokens, positions, CFG)

    made = Generator("gpt", step, serve_gpt.empty_cache(CFG, SLOTS), slots=SLOTS,
                     context=CFG.context, vocabulary=ALPHABET,
                     prefill=lambda *given: serve_gpt.prefill(weights, *given, CFG))  # fmt: skip
    begin, advance = made.begin, made.advance
    made.begin = lambda cache, slot, prompt, how: (
        whole_prompts.append(len(prompt)) or begin(cache, slot, prompt, how)
    )
    made.advance = lambda *state: steps.append(0) or advance(*state)
    app = App(Repository([made]))
    cases = [*CASES[1:5], ("abcdefghgfedcbaabcd", {"max_tokens": 3})]

    async def every():
        return await asyncio.gather(*(asked(app, p, **o) for p, o in cases))

    for (prompt, options), (status, _, body) in zip(cases, asyncio.run(every()), strict=True):
        assert status == 200, body
        rest = {k: v for k, v in options.items() if k != "max_tokens"}
        wanted = alone(prompt, options["max_tokens"], **rest)
        assert json.loads(body)["text_output"] == wanted
    assert sorted(whole_prompts) == sorted(len(p) for p, _ in cases)
    assert len(steps) <= 20  # as many as the longest result, or few more


def test_a_folder_has_the_weights_of_step_and_prefill_once(tmp_path, rng):
    table = rng.standard_normal((32, 64)).astype("f4")

    def step(cache, tokens, positions):
        h = fnp.asarray(table)[tokens] + cache["h"] * (positions > 0)[:, None]
        return h @ table.T, {"h": h}

    def prefill(cache, slot, tokens, length):
        counts = (fnp.arange(tokens.shape[0]) < length)[:, None]
        h = fnp.where(counts, fnp.asarray(table)[tokens], 0).sum(0)
        return h @ table.T, {"h": cache["h"].at[slot].set(h)}

    save_generator(tmp_path, step, {"h": np.zeros((2, 64), "f4")}, slots=2, context=16,
                   prefill=prefill)  # fmt: skip
    sizes = {p.name: p.stat().st_size for p in tmp_path.iterdir()}
    assert sizes["step.fg"] > table.nbytes > sizes["prefill.fg"]
    made = load_model(tmp_path, "shared")
    cache, how = {"h": fnp.zeros((2, 64))}, Options()
    _, cache = made.begin(cache, 1, [3, 5, 4], how)
    np.testing.assert_allclose(cache["h"][1], table[[3, 5, 4]].sum(0), rtol=1e-5, atol=1e-5)
    told = json.loads((tmp_path / "generation.json").read_text())
    (tmp_path / "generation.json").write_text(json.dumps(told | {"shared": ["odd"]}))
    with pytest.raises(FormatError, match="holds no generator"):
        load_model(tmp_path, "shared")


# ---- slots, with a model that counts


def counting(slots=1, gate=None, context=64, **more):
    """Each token is the one before and one more."""
    made = Generator(
        "count", lambda cache, tokens, positions: (nn.one_hot(tokens + 1, 64), cache),
        {"n": np.zeros(slots)}, slots=slots, context=context, **more,
    )  # fmt: skip
    advance = made.advance

    def gated(cache, *state):
        if gate:
            gate(state)
        return advance(cache, *state)

    made.advance = gated
    return made


def count(app, start, n, **more):
    body = {"tokens": [start], "parameters": {"max_tokens": n, **more}}
    return call(app, "POST", "/v2/models/count/generate", json.dumps(body).encode())


def tokens_of(answer):
    return json.loads(answer[2])["tokens"]


def test_the_end_token_ends():
    app = App(Repository([counting(end=5)]))
    assert tokens_of(asyncio.run(count(app, 1, 20))) == [2, 3, 4]
    assert tokens_of(asyncio.run(count(app, 4, 20))) == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_frees_its_slot(stream):
    steps: list = []
    app = App(Repository([counting(gate=steps_of(steps))]))

    async def goes():
        path = f"/v2/models/count/generate{'_stream' if stream else ''}"
        body = {"tokens": [1], "parameters": {"max_tokens": 60}}
        messages = [{"type": "http.request", "body": json.dumps(body).encode()}]

        async def receive():
            if messages:
                return messages.pop()
            while len(steps) < 3:
                await asyncio.sleep(0.001)
            return {"type": "http.disconnect"}

        async def send(message):
            pass

        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        await app(scope, receive, send)
        return await count(app, 30, 2)

    assert tokens_of(asyncio.run(goes())) == [31, 32]
    assert len(steps) < 30


def steps_of(seen):
    def gate(state):
        seen.append(state[0].tolist())

    return gate


def test_sequences_come_and_go_between_steps():
    app = App(Repository([counting(2, gate=steps_of(seen := []))]))

    async def every():
        return await asyncio.gather(count(app, 10, 6), count(app, 20, 2), count(app, 30, 3))

    found = [tokens_of(a) for a in asyncio.run(every())]
    assert found == [[11, 12, 13, 14, 15, 16], [21, 22], [31, 32, 33]]
    assert seen == [[10, 20], [11, 21], [12, 30], [13, 31], [14, 32], [15, 0]]


def test_lower_priorities_go_first_also_when_others_have_gone():
    seen: list = []

    def gate(state):
        seen.append(int(state[0][0]))
        time.sleep(0.01)

    app = App(Repository([counting(gate=gate)]))

    async def every():
        first = asyncio.create_task(count(app, 0, 20))
        await asyncio.sleep(0)
        gone, *tasks = [
            asyncio.create_task(count(app, 30 + p, 1, priority=p)) for p in (0, 5, 1, 6, 7, 2, 3)
        ]
        await asyncio.sleep(0.02)
        gone.cancel()
        await asyncio.gather(first, *tasks, count(app, 39, 1, priority=9))

    asyncio.run(every())
    assert [n - 30 for n in seen if n >= 30] == [1, 2, 3, 5, 6, 7, 9]


def test_a_full_queue_refuses_and_a_step_that_fails_fails_its_sequences_alone():
    def gate(state):
        if 13 in state[0]:
            raise ValueError("unlucky")

    app = App(Repository([counting(gate=gate)]), Batching(max_queue=2))

    async def every():
        return await asyncio.gather(*(count(app, s, 2) for s in (12, 20, 30)))

    found = asyncio.run(every())
    assert [a[0] for a in found] == [500, 200, 503]
    assert "count failed: unlucky" in json.loads(found[0][2])["error"]
    assert tokens_of(found[1]) == [21, 22]


def test_bad_requests_are_named():
    app = App(Repository([counting(), model(), Model("x", lambda x: x, {"x": ("float32", (2,))})]))

    def refused(match, told, name="gpt", what="generate"):
        body = told if isinstance(told, bytes) else json.dumps(told).encode()
        for way in (what, what + "_stream") if what == "generate" else (what,):
            answer = asyncio.run(call(app, "POST", f"/v2/models/{name}/{way}", body))
            assert (answer[0], match in json.loads(answer[2])["error"]) == (400, True), answer

    refused("no JSON", b"{")
    refused("needs text_input or tokens", {})
    refused("needs text_input or tokens", [1])
    refused("must be a string", {"text_input": 5})
    refused("has no token for 'z', at 1", {"text_input": "az"})
    refused("needs a token at least", {"text_input": ""})
    refused("integers below 8", {"tokens": [8]})
    refused("has no vocabulary", {"text_input": "a"}, "count")
    refused("don't fit in the 24", {"text_input": "a", "parameters": {"max_tokens": 25}})
    for name, value in (("max_tokens", 0), ("max_tokens", True), ("top_k", -1), ("seed", 2**32),
                        ("temperature", -1), ("temperature", float("nan")),
                        ("temperature", "x"), ("priority", "x")):  # fmt: skip
        refused(name, {"text_input": "a", "parameters": {name: value}})
    refused("got ['heat']", {"text_input": "a", "parameters": {"heat": 1}})
    refused("doesn't generate", {"text_input": "a"}, "x")
    refused("ask generate", {"inputs": []}, what="infer")


# ---- files


def test_the_demo_s_gpt_in_a_folder(tmp_path):
    serve_gpt.save(tmp_path / "gpt", params(), CFG, ALPHABET, SLOTS)
    models = Repository()
    models.load(tmp_path)
    assert models.get("gpt").described(["1"])["parameters"] == {"slots": 4, "context": 24}
    answer = asyncio.run(asked(App(models), "abc", max_tokens=12))
    assert json.loads(answer[2])["text_output"] == alone("abc", 12)
    models.reload("gpt")
    (tmp_path / "gpt" / "generation.json").write_text('{"slots": 3}')
    with pytest.raises(FormatError, match="holds no generator"):
        load_model(tmp_path / "gpt")


def test_what_is_no_generator(tmp_path):
    def step(cache, tokens, positions):
        return nn.one_hot(tokens, 5), cache

    def make(step, **more):
        return Generator("g", step, {}, **{"slots": 2, "context": 4, **more})

    with pytest.raises(ArgumentError, match="slots must be a positive integer"):
        make(step, slots=0)
    with pytest.raises(ArgumentError, match="must give a cache like its own"):
        make(lambda c, t, p: (nn.one_hot(t, 5), {"x": t}))
    with pytest.raises(ArgumentError, match=r"floating logits of shape \(2, vocabulary\)"):
        make(lambda c, t, p: (t, c))
    with pytest.raises(ArgumentError, match=r"must give \(logits, cache\)"):
        make(lambda c, t, p: fnp.ones((2, 5)))
    with pytest.raises(ArgumentError, match="vocabulary doesn't fit 5 logits"):
        make(step, vocabulary="ab")
    with pytest.raises(ArgumentError, match="end doesn't fit 5 logits"):
        make(step, end=5)
    row = np.zeros(5, "f4")
    for bad, match in (
        (lambda *a: row, r"prefill must give \(logits, cache\)"),
        (lambda *a: (row[:2], {}), r"floating logits of shape \(5,\)"),
        (lambda *a: (row, {"x": row}), "prefill must give a cache like"),
    ):
        with pytest.raises(ArgumentError, match=match):
            make(step, prefill=bad)
    with pytest.raises(ArgumentError, match="context"):
        save_generator(tmp_path, step, {}, slots=2, context=-1)
