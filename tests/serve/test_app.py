"""The protocol: routes, JSON and bytes, errors; batches, queues; swaps."""

import asyncio
import json
import time

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export
from funcgrad.errors import ArgumentError, FormatError
from funcgrad.export.onnx import to_onnx
from funcgrad.serve import App, Batching, Model, Repository, load_model
from tests.serve.clients import call, get, infer_path, request, results

W = np.arange(6, dtype="f4").reshape(3, 2)


def mlp(version="1", scale=1.0):
    return Model("mlp", lambda x: fnp.tanh(x @ W) * scale, {"x": ("float32", (-1, 3))}, version)


def app_of(*models, **options):
    return App(Repository(models or [mlp()]), **options)


def post(app, body, path="/v2/models/mlp/infer", **more):
    return asyncio.run(call(app, "POST", path, body, **more))


X = np.random.default_rng(0).standard_normal((4, 3)).astype("f4")


def test_what_is_told():
    app = app_of(mlp("1"), mlp("2"))
    assert json.loads(get(app, "/v2")[2])["name"] == "funcgrad"
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/mlp/ready"):
        assert get(app, path)[0] == 200
    told = json.loads(get(app, "/v2/models/mlp/versions/1")[2])
    assert told["versions"] == ["1", "2"]
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert told["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, 2]}]
    status, _, body = asyncio.run(call(app, "POST", "/v2/repository/index"))
    assert (status, len(json.loads(body))) == (200, 2)


def test_json_and_bytes_give_the_same():
    app = app_of()
    status, _, body = post(app, request(x=X))
    assert (status, json.loads(body)["id"]) == (200, "7")
    np.testing.assert_allclose(results(body)["output"], np.tanh(X @ W), rtol=1e-5)
    item = {"name": "x", "datatype": "FP32", "shape": [4, 3],
            "parameters": {"binary_data_size": X.nbytes}}  # fmt: skip
    head = json.dumps({"inputs": [item], "parameters": {"binary_data_output": True}}).encode()
    headers = [("inference-header-content-length", str(len(head)))]
    status, told, body = post(app, head + X.tobytes(), headers=headers)
    length = int(told[b"inference-header-content-length"])
    got = np.frombuffer(body[length:], "f4").reshape(4, 2)
    np.testing.assert_allclose(got, np.tanh(X @ W), rtol=1e-5)


def test_each_dtype_goes_through():
    for name in ("bool", "uint8", "int64", "uint64", "float16", "float64", "int8"):
        app = app_of(Model("same", lambda x: x, {"x": (name, (-1,))}))
        x = np.array([0, 1, 1], name)
        if name == "uint64":
            x[1] = 2**64 - 1
        status, _, body = post(app, request(x=x), infer_path("same"))
        assert status == 200, body
        assert json.loads(body)["outputs"][0]["data"] == x.tolist()


def refused(app, status, match, body, path="/v2/models/mlp/infer", **more):
    got, _, text = post(app, body, path, **more)
    assert (got, match in json.loads(text)["error"]) == (status, True), text


def test_bad_requests_are_named():
    app = app_of(max_body=1000)
    refused(app, 400, "no JSON", b"{")
    refused(app, 400, "no JSON", b"[" * 900)
    refused(app, 400, "needs a list of inputs", b"{}")
    refused(app, 400, "needs the inputs ['x']", request(y=X))
    refused(app, 400, "must be FP32 of shape [-1, 3]", request(x=X.astype("f8")))
    refused(app, 400, "must be FP32 of shape [-1, 3]", request(x=X[:, :2]))
    refused(app, 404, "no model 'other'", request(x=X), infer_path("other"))
    refused(app, 404, "no version 9", request(x=X), "/v2/models/mlp/versions/9/infer")
    refused(app, 404, "nothing at", b"", "/v3")
    refused(app, 413, "more than 1000", b"x" * 1001)
    refused(app, 413, "more than 1000", b"", chunks=[b"x" * 600] * 2)
    refused(app, 413, "more than 1000", b"", headers=[("content-length", "9999")])
    refused(app, 400, "a header of 99 bytes", b"{}", headers=[("inference-header-content-length",
                                                              "99")])  # fmt: skip
    item = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 2]}
    refused(app, 400, "has 2 elements", json.dumps({"inputs": [item]}).encode())
    item["data"] = ["a"] * 6
    refused(app, 400, "are no FP32", json.dumps({"inputs": [item]}).encode())
    item["shape"] = [-2, 3]
    refused(app, 400, "has shape", json.dumps({"inputs": [item]}).encode())
    item = {**item, "shape": [1 << 40, 3], "parameters": {"binary_data_size": 12}}
    refused(app, 400, "has 12 bytes", json.dumps({"inputs": [item]}).encode())
    assert post(app, request(x=X[:1]))[0] == 200


def test_a_token_is_asked_for():
    app = app_of(token="secret")
    refused(app, 401, "a token is needed", request(x=X))
    refused(app, 401, "a token is needed", request(x=X), headers=[("authorization", "Bearer x")])
    assert post(app, request(x=X), headers=[("authorization", "Bearer secret")])[0] == 200
    assert get(app, "/v2/health/live")[0] == 200


# ---- batches


def slow_model(seconds=0.02):
    model = mlp()
    run, sizes = model.run, []

    def slow(values):
        sizes.append(len(values[0]))
        time.sleep(seconds)
        return run(values)

    model.run = slow
    return model, sizes


async def many(app, n, body=lambda i: request(x=X[i % 4][None])):
    calls = [call(app, "POST", infer_path("mlp"), body(i)) for i in range(n)]
    return await asyncio.gather(*calls)


def test_requests_that_wait_run_together():
    model, sizes = slow_model()
    app = app_of(model, batching=Batching(max_batch_size=8))
    for i, (status, _, body) in enumerate(asyncio.run(many(app, 20))):
        assert status == 200
        np.testing.assert_allclose(results(body)["output"][0], np.tanh(X[i % 4] @ W), rtol=1e-5)
    assert max(sizes) == 8
    assert len(sizes) < 8
    text = get(app, "/metrics")[2].decode()
    assert 'funcgrad_inference_count{model="mlp",version="1"} 20' in text
    assert 'funcgrad_inference_pending{model="mlp",version="1"} 0' in text
    assert 'funcgrad_queue_seconds_count{model="mlp",version="1"} 20' in text


def test_a_delay_gathers_what_comes_later():
    model, sizes = slow_model(0)
    app = app_of(model, batching=Batching(max_batch_size=4, max_delay=0.5))

    async def apart():
        tasks = []
        for i in range(4):
            body = request(x=X[i][None])
            tasks.append(asyncio.create_task(call(app, "POST", infer_path("mlp"), body)))
            await asyncio.sleep(0.01)
        return await asyncio.gather(*tasks)

    assert all(status == 200 for status, *_ in asyncio.run(apart()))
    assert sizes == [4]


def test_a_full_queue_refuses_at_once_and_recovers():
    model, _ = slow_model(0.05)
    app = app_of(model, batching=Batching(max_batch_size=1, max_queue=3))
    found = [status for status, *_ in asyncio.run(many(app, 12))]
    assert set(found) == {200, 503}
    assert post(app, request(x=X))[0] == 200
    assert 'funcgrad_inference_failure{reason="queue_full"}' in get(app, "/metrics")[2].decode()


def test_what_waits_too_long_is_given_up():
    model, sizes = slow_model(0.2)
    app = app_of(model, batching=Batching(max_batch_size=1, timeout=0.05))
    found = asyncio.run(many(app, 3))
    assert [status for status, *_ in found] == [503] * 3
    assert len(sizes) == 1


def test_clients_that_send_slowly_are_given_up_and_others_served_meanwhile():
    model, _ = slow_model(0)
    model.warm_up((4,))
    app = App(Repository([model]), body_timeout=0.5)
    sent, whole = [], request(x=X)

    async def trickles():
        parts = iter(whole[i : i + 1] for i in range(len(whole)))

        async def receive():
            await asyncio.sleep(0.02)
            return {"type": "http.request", "body": next(parts), "more_body": True}

        async def send(message):
            sent.append(message)

        path = infer_path(model.name)
        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        await app(scope, receive, send)

    async def both():
        slow = asyncio.create_task(trickles())
        answer = await call(app, "POST", infer_path(model.name), whole)
        assert not slow.done()
        await slow
        return answer

    assert asyncio.run(both())[0] == 200
    assert sent[0]["status"] == 408
    assert b"didn't come in time" in sent[1]["body"]


def test_clients_that_go_are_dropped():
    model, sizes = slow_model(0.05)
    app = app_of(model, batching=Batching(max_batch_size=1))

    async def going():
        tasks = [
            asyncio.create_task(call(app, "POST", infer_path("mlp"), request(x=X[:1])))
            for _ in range(5)
        ]
        await asyncio.sleep(0.02)
        for task in tasks[1:]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, *others = asyncio.run(going())
    assert first[0] == 200
    assert all(isinstance(o, asyncio.CancelledError) for o in others)
    assert len(sizes) == 1


def test_clients_that_hang_up_are_dropped():
    # A server of the protocol ends no task then: it tells who receives.
    model, sizes = slow_model(0.15)
    app = app_of(model, batching=Batching(max_batch_size=1))
    sent = []

    async def hangs_up():
        told = [{"type": "http.request", "body": request(x=X)}]

        async def receive():
            if not told:
                await asyncio.sleep(0.06)
            return told.pop() if told else {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": infer_path("mlp"), "headers": []}
        await app(scope, receive, send)

    async def every():
        await asyncio.gather(*(hangs_up() for _ in range(4)))
        return await call(app, "POST", infer_path("mlp"), request(x=X))

    assert asyncio.run(every())[0] == 200
    assert {m["status"] for m in sent if "status" in m} == {499}
    assert len(sizes) == 2
    assert 'funcgrad_inference_failure{reason="cancelled"} 4' in get(app, "/metrics")[2].decode()


def test_lower_priorities_go_first():
    model, _ = slow_model(0.02)
    app = app_of(model, batching=Batching(max_batch_size=1))
    order = []

    async def one(priority):
        told = json.loads(request(x=X[:1])) | {"parameters": {"priority": priority}}
        await call(app, "POST", infer_path("mlp"), json.dumps(told).encode())
        order.append(priority)

    async def every():
        await asyncio.gather(*map(one, (9, 5, 1, 3)))

    asyncio.run(every())
    assert order == [1, 3, 5, 9]


def test_a_model_that_raises_fails_its_requests_alone():
    model = mlp()
    run = model.run

    def sometimes(values):
        if (values[0] > 100).any():
            raise ValueError("too hot")
        return run(values)

    model.run = sometimes
    app = app_of(model)
    refused(app, 500, "mlp failed: too hot", request(x=X + 1000))
    assert post(app, request(x=X))[0] == 200


def test_models_without_a_batch_axis():
    app = app_of(Model("sum", lambda x, y: {"s": x + y[0]}, {"x": ("float32", (3,)),
                                                             "y": ("float32", (2,))}))  # fmt: skip
    body = request(x=X[0], y=X[0, :2])
    got = results(post(app, body, infer_path("sum"))[2])
    np.testing.assert_allclose(got["output.s"], X[0] + X[0, 0])


# ---- files, swaps


def written(path, scale):
    to_onnx(lambda w, x: x @ w, path, fnp.asarray(W * scale), fnp.ones((2, 3)),
            stored_argnums=0, dynamic={"n": {"x": 0}})  # fmt: skip
    return path


def test_a_folder_of_models(tmp_path):
    written(tmp_path / "linear.onnx", 1)
    (tmp_path / "other" / "3").mkdir(parents=True)
    written(tmp_path / "other" / "3" / "model.onnx", 2)
    models = Repository()
    models.load(tmp_path)
    assert (models.names(), models.versions("other")) == (["linear", "other"], ["3"])
    app = App(models)
    got = results(post(app, request(x=X), infer_path("other"))[2])
    np.testing.assert_allclose(got["output"], X @ W * 2, rtol=1e-5)


def test_exported_functions_are_models(tmp_path):
    rows = fg.ShapeDtypeStruct(export.symbolic_shape("b, 3"), "float32")
    f = export.export(fg.jit(lambda x: {"y": x @ W, "sum": x.sum(1)}))(rows)
    f.save(tmp_path / "linear.fg")
    models = Repository()
    models.load(tmp_path)
    assert models.get("linear").is_batched
    got = results(post(App(models), request(x=X), infer_path("linear"))[2])
    np.testing.assert_allclose(got["output.y"], X @ W, rtol=1e-5)
    np.testing.assert_allclose(got["output.sum"], X.sum(1), rtol=1e-5)


def test_samples_of_a_file_are_tried_before_it_is_served(tmp_path):
    f = export.export(fg.jit(lambda x: x @ W))(fg.ShapeDtypeStruct((4, 3), "float32"))
    path = tmp_path / "linear.fg"
    f.save(path, [(X,)])
    models = Repository()
    models.load(path)
    good = load_model(path)
    good.warm_up()

    sample = export.load(path).samples[0]
    other = sample._replace(results=tuple(np.asarray(r) + 1 for r in sample.results))
    export.Exported(f._content, [other]).save(path)
    with pytest.raises(FormatError, match="differ from its samples' by"):
        models.reload("linear")
    got = results(post(App(models), request(x=X), infer_path("linear"))[2])
    np.testing.assert_allclose(got["output"], X @ W, rtol=1e-5)


def test_a_swap_has_no_error_and_a_failed_one_keeps_the_old(tmp_path):
    path = written(tmp_path / "linear.onnx", 1)
    models = Repository()
    models.load(path)
    app, load = App(models), "/v2/repository/models/linear/load"

    async def swapped():
        stop, seen = False, []

        async def ask():
            while not stop:
                status, _, body = await call(app, "POST", infer_path("linear"), request(x=X))
                assert status == 200
                seen.append(float(results(body)["output"][0, 0] / (X @ W)[0, 0]))

        async def more():
            wanted = len(seen) + 20
            while len(seen) < wanted:
                await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(ask()) for _ in range(4)]
        await more()
        written(path, 2)
        assert (await call(app, "POST", load))[0] == 200
        await more()
        path.write_bytes(b"no model")
        assert (await call(app, "POST", load))[0] == 400
        stop = True
        await asyncio.gather(*tasks)
        return seen

    seen = np.round(asyncio.run(swapped())).astype(int).tolist()
    assert set(seen) == {1, 2}
    assert sorted(seen) == seen


def test_what_is_no_model(tmp_path):
    with pytest.raises(FormatError, match=r"is no \.fg or \.onnx file"):
        load_model(tmp_path / "a.pkl")
    with pytest.raises(FormatError, match="there are no models"):
        Repository().load(tmp_path)
    with pytest.raises(ArgumentError, match="which the protocol doesn't have"):
        Model("c", lambda x: x, {"x": ("complex64", (2,))})
    assert fg.Array is not None


def test_sizes_of_batches_are_compiled_first(tmp_path):
    assert Batching(max_batch_size=1).sizes == (1,)
    assert Batching(max_batch_size=9).sizes == (1, 2, 4, 8, 16)
    models, seen = Repository(sizes=Batching(max_batch_size=4).sizes), []
    model = load_model(written(tmp_path / "linear.onnx", 1))
    model.run = lambda values: seen.append(len(values[0]))
    model.warm_up(models.sizes)
    assert seen == [1, 2, 4]
