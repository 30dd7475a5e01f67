"""The page at /: its headers, and what a real browser makes of it, where there is one."""

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
import urllib.request

import pytest

import funcgrad.numpy as fnp
from funcgrad import nn
from funcgrad.serve import App, Generator, Model, Repository, heads
from tests.serve.clients import get

BROWSER = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def app(**options):
    def following(cache, tokens, positions):
        return nn.one_hot((tokens + 1) % 3, 3), cache

    return App(Repository([
        Model("<b>sums", lambda x: {"y": fnp.sum(x, 1)}, {"x": ("float32", (-1, 3))}),
        Generator("abc", following, {}, slots=1, context=32, vocabulary="abc"),
    ]), **options)  # fmt: skip


def test_the_page_needs_no_token_and_allows_no_other_host():
    for path in ("/", "/page.js", "/page.css"):
        status, headers, body = get(app(token="secret"), path)
        assert status == 200
        assert b"default-src 'none'" in headers[b"content-security-policy"]
        assert b"://" not in body
    assert get(app(token="secret"), "/v2")[0] == 401
    assert get(app(), "/page.txt")[0] == 404


class Browser:
    """A page of a headless browser, by its debugging protocol."""

    def __init__(self, socket):
        self.socket, self.count = socket, 0

    def run(self, code):
        """What an expression gives, awaited."""
        self.count += 1
        how = {"expression": code, "awaitPromise": True, "returnByValue": True}
        self.socket.send(
            json.dumps({"id": self.count, "method": "Runtime.evaluate", "params": how})
        )
        while (told := json.loads(self.socket.recv(30))).get("id") != self.count:
            pass
        assert "exceptionDetails" not in told["result"], told
        return told["result"]["result"].get("value")

    def until(self, code):
        """Wait for something to be true."""
        for _ in range(300):
            if self.run(code):
                return
            time.sleep(0.1)
        raise AssertionError(f"{code}: {self.run('document.documentElement.outerHTML')}")


@contextlib.contextmanager
def served(application, head_timeout=30.0, **options):
    uvicorn = pytest.importorskip("uvicorn")
    options = {**options, "port": 0, "log_level": "critical"}
    server = heads.server(uvicorn, application, head_timeout, **options)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def opened(url, folder):
    client = pytest.importorskip("websockets.sync.client")
    call = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
            f"--user-data-dir={folder}", url]  # fmt: skip
    process = subprocess.Popen(call, stderr=subprocess.DEVNULL)
    try:
        told = folder / "DevToolsActivePort"
        for _ in range(300):
            if told.exists() and "\n" in told.read_text():
                break
            time.sleep(0.1)
        port = told.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            pages = [p for p in json.load(answer) if p["type"] == "page"]
        with client.connect(pages[0]["webSocketDebuggerUrl"], max_size=None) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt-get install chromium")
def test_a_browser_shows_the_models_and_tries_them(tmp_path):
    with (
        served(app(token="secret")) as port,
        opened(f"http://127.0.0.1:{port}/", tmp_path) as browser,
    ):
        browser.until("document.querySelector('#trouble')?.textContent.includes('a token')")
        browser.run("at('token').value = 'secret'; at('again').click()")
        browser.until("document.querySelectorAll('section').length == 2")
        assert "<b>sums, version 1" in browser.run("document.querySelectorAll('h2')[0].textContent")
        assert browser.run("document.querySelector('table').textContent") == (
            "inxFP32[-1,3]outoutput.yFP32[-1]"
        )
        form = "document.forms[0]"
        browser.run(
            f"{form}[0].value = '[[1,2,3],[4,5,6]]'; {form}.querySelector('button').click()"
        )
        browser.until(f"{form}.querySelector('pre').textContent.includes('[6,15]')")
        browser.run(f"{form}[0].value = '[[1,2]]'; {form}.querySelector('button').click()")
        browser.until(f"{form}.querySelector('pre').textContent.includes('400: the input')")
        form = "document.forms[1]"
        browser.run(f"{form}[0].value = 'b'; {form}[1].value = 4;"
                    f"{form}.querySelector('button').click()")  # fmt: skip
        browser.until(f"{form}.querySelector('pre').textContent == 'bcabc'")
        browser.until("at('metrics').textContent.includes('generated_tokens')")
