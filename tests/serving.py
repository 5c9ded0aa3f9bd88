"""What the tests of the server share: a wild little model, a server in this process or in one of its own, and a client."""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import torch
import uvicorn

from memformer_torch.data.tokenizer import Bytes
from memformer_torch.serve.app import make_app
from memformer_torch.serve.limits import Limits
from memformer_torch.serve.served import Served
from memformer_torch.serve.store import Store
from memformer_torch.session import Session
from tests.conftest import tiny_memformer

LENGTH = 6


def wild_model(dtype=torch.float64, gain=3.0, **changes):
    """One whose texts differ, so that a mixed-up document shows."""
    torch.manual_seed(1)
    model = tiny_memformer(dtype, **({"vocab_size": 256} | changes)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embedding" not in name:
                weight *= gain
    return model


def alone(model, prompt, number, tokenizer=None, **options):
    """The text or ids that a session of its own gives."""
    session = Session(model, Bytes() if tokenizer is None else tokenizer)
    session.feed(prompt)
    return "".join(session.generate(number, **options))


class Answered:
    def __init__(self, response):
        self.status, self.headers, self.content = response.status, dict(response.headers), response.read()

    @property
    def json(self):
        return json.loads(self.content)

    @property
    def reason(self):
        """Of an error: that it is one line, in JSON."""
        error = self.json["error"]
        assert error["code"] == self.status
        assert error["message"]
        assert "\n" not in error["message"]
        return error["message"]


class Client:
    def __init__(self, port, token=None):
        self.port, self.headers = port, {} if token is None else {"Authorization": f"Bearer {token}"}

    def open(self, method, path, body=None, headers=None, timeout=60):
        """A connection on which an answer begins."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        if body is not None and not isinstance(body, bytes):
            body, headers = json.dumps(body).encode(), {"Content-Type": "application/json"} | (headers or {})
        connection.request(method, path, body, self.headers | (headers or {}))
        return connection, connection.getresponse()

    def __call__(self, method, path, body=None, headers=None):
        connection, response = self.open(method, path, body, headers)
        try:
            return Answered(response)
        finally:
            connection.close()

    def stream(self, path, body, headers=None):
        """The events of a stream that ends well."""
        connection, response = self.open("POST", path, body, headers)
        try:
            assert response.status == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            *events, done = [line[6:] for line in response.read().decode().split("\n\n") if line]
            assert done == "[DONE]"
            return [json.loads(event) for event in events]
        finally:
            connection.close()


@contextmanager
def server(model, store, tokenizer="bytes", limits=None, **options):
    """A server in this process; gives a client, whose `app` is the application."""
    served = Served(
        name="tiny",
        model=model,
        tokenizer=Bytes() if tokenizer == "bytes" else tokenizer,
        image_shape=options.pop("image_shape", None),
        store=store if isinstance(store, Store) else Store(store),
        limits=limits or Limits(),
        **({"hosts": {"127.0.0.1"}} | options),
    )
    app = make_app(served)
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", access_log=False, timeout_graceful_shutdown=5))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    until(lambda: running.started or not thread.is_alive())
    client = Client(running.servers[0].sockets[0].getsockname()[1], options.get("token"))
    client.app = app
    try:
        yield client
    finally:
        running.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def explore(run, *options, **environment):
    """`memformer explore` in a process of its own, at a free port: gives the process and a client."""
    command = [sys.executable, "-m", "memformer_torch", "explore", str(run), "--port", "0", "--device", "cpu", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            line = process.stdout.readline()
            assert " at http://" in line, process.stderr.read()
            yield process, Client(int(line.split("/ (")[0].rsplit(":", 1)[1]))
        finally:
            if process.poll() is None:
                process.kill()


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)
