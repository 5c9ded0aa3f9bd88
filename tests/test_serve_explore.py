"""`memformer explore` as a process: it says where it is, ends well, and loses nothing when it does not."""

import hashlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from memformer_torch.cli import main
from memformer_torch.runs import new_run, open_model
from memformer_torch.serve.store import Store
from memformer_torch.session import Session
from tests.serving import explore, until
from tests.test_talk import MODEL, TEXT, TRAIN


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explore")
    (folder / "data").mkdir()
    for split in ("train", "valid", "test"):
        (folder / "data" / f"{split}.txt").write_text(TEXT * 3, encoding="utf-8")
    data = {"name": "text", "path": str(folder / "data"), "cache": str(folder / "cache"), "tokenizer": "words"}
    new_run(folder / "run", MODEL, data, TRAIN, "cpu").fit()
    return folder / "run"


def test_killed_during_traffic_every_acknowledged_state_is_restored(run, tmp_path):
    """To the bit. A change whose answer was under way may have been saved too, but never half of one."""
    data = tmp_path / "sessions"
    with explore(run, "--data", str(data), "--dtype", "float64") as (process, client):
        acknowledged, positions = {}, {}

        def traffic(name):
            client("POST", "/sessions", {"name": name})
            for number in range(10_000):
                try:
                    if number % 2:
                        answer = client("POST", f"/sessions/{name}/generate", {"max_tokens": 5, "seed": number}).json
                    else:
                        answer = client("POST", f"/sessions/{name}/feed", {"text": "the cat sees a dog "}).json
                except (OSError, ValueError, http.client.HTTPException):
                    return
                assert answer["saved"]
                acknowledged[name] = answer["session"]["digest"]
                positions.setdefault(name, []).append(answer["session"]["position"])

        threads = [threading.Thread(target=traffic, args=(f"s{n}",)) for n in range(6)]
        for thread in threads:
            thread.start()
        until(lambda: len(acknowledged) == 6 and min(map(len, positions.values())) >= 4, 60)
        process.send_signal(signal.SIGKILL)
        for thread in threads:
            thread.join()
    model, tokenizer, _ = open_model(run, "cpu")
    with explore(run, "--data", str(data), "--dtype", "float64") as (process, client):
        exact = 0
        for name, digest in acknowledged.items():
            facts, content = client("GET", f"/sessions/{name}").json, client("GET", f"/sessions/{name}/file").content
            assert facts["digest"] == hashlib.sha256(content).hexdigest()
            last = positions[name][-1]
            if facts["digest"] == digest:
                exact += 1
                assert facts["position"] == last
            else:
                assert facts["position"] == last + 5
            (tmp_path / "file").write_bytes(content)
            local = Session.load(tmp_path / "file", model.double(), tokenizer)
            assert local.position == facts["position"]
            answer = client("POST", f"/sessions/{name}/generate", {"max_tokens": 20, "seed": 1}).json
            assert answer["text"] == "".join(local.generate(20, seed=1))
        assert exact >= 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_well_and_saves_what_is_being_written(run, tmp_path, number):
    data = tmp_path / "sessions"
    with explore(run, "--data", str(data)) as (process, client):
        client("POST", "/sessions", {"name": "a"})
        connection, response = client.open("POST", "/sessions/a/generate", {"max_tokens": 4000, "stream": True, "seed": 1})
        response.readline()
        process.send_signal(number)
        events = response.read().decode().split("\n\n")
        connection.close()
        assert '"finish_reason":"stopped"' in events[-3]
        assert events[-2] == "data: [DONE]"
        assert process.wait(20) == 0
        assert process.stderr.read() == f"Ended. Sessions are in {data}\n"
    store = Store(data)
    position = store.facts("a").position
    assert 0 < position < 4000
    assert f'"position":{position}' in events[-3]
    store.close()


def fails(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["explore", *map(str, arguments)])
    printed = capsys.readouterr()
    assert stopped.value.code == 2
    assert printed.err.startswith("memformer: ")
    assert printed.err.count("\n") == 1
    return printed.err


def test_errors_are_one_line(run, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("MEMFORMER_TOKEN", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port} cannot be listened at" in fails(capsys, run, "--port", port)
    assert "can be reached by others: give a --token" in fails(capsys, run, "--host", "0.0.0.0")
    assert "can be reached by others" in fails(capsys, run, "--host", "::")
    assert "--port is 70000" in fails(capsys, run, "--port", 70000)
    assert "is not an address" in fails(capsys, run, "--host", "no.such.host.invalid")
    assert "not the folder of a run" in fails(capsys, tmp_path)
    (tmp_path / "text").write_text("no database" * 100)
    assert "cannot hold sessions" in fails(capsys, run, "--port", 0, "--data", tmp_path / "text")
    assert "limits.max_batch is 0" in fails(capsys, run, "--limits.max_batch", 0)
    assert "float16" in fails(capsys, run, "--dtype", "float16")
    for missing in ("uvicorn", "fastapi"):
        with monkeypatch.context() as without:
            for name in [name for name in sys.modules if name.startswith("memformer_torch.serve.app")]:
                without.delitem(sys.modules, name)
            without.setitem(sys.modules, missing, None)
            assert "pip install 'memformer-torch[serve]'" in fails(capsys, run)


def test_a_token_from_the_environment_opens_other_addresses(run, tmp_path):
    with explore(run, "--data", str(tmp_path / "s"), "--host", "0.0.0.0", MEMFORMER_TOKEN="secret") as (_, client):
        assert client("GET", "/sessions", headers={"Host": "any.name"}).status == 401
        assert client("GET", "/sessions", headers={"Host": "any.name", "Authorization": "Bearer secret"}).status == 200


def test_help_needs_no_server(run):
    """Nothing of the extra is imported by the command line itself."""
    code = "import sys, memformer_torch.cli; sys.exit(any(name in sys.modules for name in ('fastapi', 'uvicorn', 'starlette')))"
    began = time.monotonic()
    assert subprocess.run([sys.executable, "-c", code], env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode == 0
    assert time.monotonic() - began < 60
