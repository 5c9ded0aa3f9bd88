"""The server over HTTP: completions, sessions, and the right answer to what is wrong."""

import http.client
import json
import threading
import time

import numpy as np
import pytest
import torch

from memformer_torch.data.bpe import BPE
from memformer_torch.data.corpus import Documents
from memformer_torch.data.tokenizer import Bytes, Words
from memformer_torch.serve.limits import Limits
from memformer_torch.serve.store import Store
from memformer_torch.session import Session
from tests.serving import alone, server, until, wild_model

MODEL = wild_model()
LIMITS = Limits(max_input=2000, max_output=500, max_body=10_000, max_wait=5.0)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with server(MODEL, tmp_path_factory.mktemp("serve") / "s", limits=LIMITS) as client:
        yield client


def text_of(events):
    return "".join(choice["text"] for event in events for choice in event["choices"])


def test_completions(client):
    answer = client("POST", "/v1/completions", {"prompt": "the cat", "max_tokens": 30, "seed": 5, "temperature": 0.8}).json
    assert answer["choices"][0]["text"] == alone(MODEL, "the cat", 30, seed=5, temperature=0.8)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 7, "completion_tokens": 30, "total_tokens": 37}
    assert answer["object"] == "text_completion"
    body = {"prompt": "the cat", "max_tokens": 30, "seed": 5, "temperature": 0.8, "stream": True}
    *pieces, last, usage = client.stream("/v1/completions", body | {"stream_options": {"include_usage": True}})
    assert text_of(pieces) == answer["choices"][0]["text"]
    assert len(pieces) == 30
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["usage"] == answer["usage"]
    assert client("GET", "/v1/models").json["data"][0]["id"] == answer["model"] == "tiny"


def test_a_seed_is_told_where_none_is_given(client):
    body = {"prompt": "a", "max_tokens": 9}
    one, other = (client("POST", "/v1/completions", body).json for _ in range(2))
    assert one["seed"] != other["seed"]
    again = client("POST", "/v1/completions", body | {"seed": one["seed"]}).json
    assert again["choices"][0]["text"] == one["choices"][0]["text"]


def test_stops(client):
    whole = alone(MODEL, "x", 40, seed=2)
    body = {"prompt": "x", "max_tokens": 40, "seed": 2, "stop": [whole[9:11], "none"]}
    answer = client("POST", "/v1/completions", body).json["choices"][0]
    assert answer["text"] == whole[: whole.index(whole[9:11])]
    assert answer["finish_reason"] == "stop"


def test_64_clients_at_once(client):
    """Streams of all kinds, side by side: each is what it is alone, and all are decoded together."""
    engine, found = client.app.state.service.engine, {}
    steps, written = engine.steps, engine.tokens_written

    def ask(n):
        body = {"prompt": "p" * (n % 20), "max_tokens": 20 + n % 30, "seed": n, "stream": True, "top_k": [None, 5][n % 2]}
        found[n] = text_of(client.stream("/v1/completions", body))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(64):
        assert found[n] == alone(MODEL, "p" * (n % 20), 20 + n % 30, seed=n, top_k=[None, 5][n % 2])
    assert (engine.tokens_written - written) / (engine.steps - steps) > 8  # documents a step


def test_a_session_is_read_and_goes_on(client):
    made = client("POST", "/sessions", {"name": "book"})
    assert (made.status, made.json["position"], made.json["usable"]) == (201, 0, True)
    local = Session(MODEL, Bytes())
    fed = client("POST", "/sessions/book/feed", {"text": "it was a dark night"}).json
    assert fed["log_probability"] == pytest.approx(local.feed("it was a dark night"), abs=1e-8)
    assert fed["saved"]
    assert fed["session"]["position"] == 19
    fed = client("POST", "/sessions/book/feed", " and süß".encode(), {"Content-Type": "text/plain"}).json
    assert fed["log_probability"] == pytest.approx(local.feed(" and süß"), abs=1e-8)
    written = client("POST", "/sessions/book/generate", {"max_tokens": 25, "seed": 1}).json
    assert written["text"] == "".join(local.generate(25, seed=1))
    *pieces, last = client.stream("/sessions/book/generate", {"max_tokens": 25, "seed": 2, "stream": True})
    assert "".join(piece["text"] for piece in pieces) == "".join(local.generate(25, seed=2))
    assert last["session"]["position"] == local.position == client("GET", "/sessions/book").json["position"]
    assert last["session"]["digest"] == client("GET", "/sessions/book").json["digest"]
    assert "book" in [facts["name"] for facts in client("GET", "/sessions").json["sessions"]]


def test_a_word_may_come_in_pieces(tmp_path):
    """Its beginning waits, on the disk too, and is scored anew when the rest comes."""
    words = Words.from_counts({"the": 9, "cat": 3, "sat": 2, "dog": 1, "on": 1, "mat": 1})
    model, pieces = wild_model(vocab_size=words.vocab_size), ("the ca", "", "t", "s", " sat on\nth", "e mat")
    local = Session(model, words)
    for piece in pieces:
        with server(model, tmp_path / "s", tokenizer=words) as client:
            client("POST", "/sessions", {"name": "a"})
            fed = client("POST", "/sessions/a/feed", {"text": piece}).json
            assert fed["log_probability"] == pytest.approx(local.feed(piece), abs=1e-8)
            assert fed["session"]["position"] == local.position
    with server(model, tmp_path / "s", tokenizer=words) as client:
        answer = client("POST", "/sessions/a/generate", {"max_tokens": 20, "seed": 1}).json
        assert answer["text"] == "".join(local.generate(20, seed=1))
        whole = {"prompt": "".join(pieces), "max_tokens": 20, "seed": 1}
        assert client("POST", "/v1/completions", whole).json["choices"][0]["text"] == answer["text"]


def test_reading_is_told_as_it_goes(client):
    client("POST", "/sessions", {"name": "long"})
    *pieces, last = client.stream("/sessions/long/feed?stream=true", {"text": "a b " * 300})
    reads = [piece["read"] for piece in pieces]
    assert reads == sorted(reads)
    assert reads[-1] == last["usage"]["prompt_tokens"] == 1200
    assert all(piece["total"] == 1200 for piece in pieces)
    assert any("slots" in piece for piece in pieces)


def test_a_fork_goes_its_own_way(client):
    client("POST", "/sessions", {"name": "one"})
    client("POST", "/sessions/one/feed", {"text": "some words"})
    fork = client("POST", "/sessions/one/fork", {"name": "two"})
    assert (fork.status, fork.json["position"]) == (201, 10)
    options = {"max_tokens": 12, "seed": 3}
    first = client("POST", "/sessions/two/generate", options).json
    assert client("POST", "/sessions/one/generate", options).json["text"] == first["text"]
    client("POST", "/sessions/two/feed", {"text": "x"})
    assert [client("GET", f"/sessions/{name}").json["position"] for name in ("one", "two")] == [22, 23]
    assert client("POST", "/sessions/one/fork", {"name": "two"}).status == 409
    replaced = client("POST", "/sessions/one/fork", {"name": "two", "replace": True})
    assert (replaced.status, replaced.json["position"]) == (201, 22)
    assert client("POST", "/sessions/two/generate", options).json["session"]["position"] == 34
    assert client("POST", "/sessions/one/fork", {"name": "one", "replace": True}).status == 409
    assert client("DELETE", "/sessions/two").status == 204
    assert client("DELETE", "/sessions/two").status == 404


def test_the_history_of_the_slots(client):
    client("POST", "/sessions", {"name": "seen"})
    client("POST", "/sessions/seen/feed", {"text": "the cat sat on the mat"})
    client("POST", "/sessions/seen/generate", {"max_tokens": 10, "seed": 0})
    found = client("GET", "/sessions/seen/slots").json
    assert (found["first"], found["last"]) == (0, 32 // 6 - 1)
    assert [record["segment"] for record in found["segments"]] == [0, 1, 2, 3, 4]
    assert "".join(text for record in found["segments"][:3] for text in record["tokens"]) == "the cat sat on the"
    part = client("GET", "/sessions/seen/slots?first=2&limit=2").json["segments"]
    assert part == found["segments"][2:4]
    life = client("GET", "/sessions/seen/slots/3").json["segments"]
    assert [each["moved"] for each in life] == [record["moved"][3] for record in found["segments"]]
    assert all(type(text) is str for each in life for text, _ in each["took"])
    assert client("GET", "/sessions/seen/slots/5").status == 404
    client("POST", "/sessions/seen/fork", {"name": "seen-too"})
    assert client("GET", "/sessions/seen-too/slots").json == found


def test_a_session_is_a_file_too(client, tmp_path):
    client("POST", "/sessions", {"name": "file"})
    client("POST", "/sessions/file/feed", {"text": "words"})
    content = client("GET", "/sessions/file/file").content
    (tmp_path / "saved").write_bytes(content)
    loaded = Session.load(tmp_path / "saved", MODEL, Bytes())
    assert client("POST", "/sessions/file/generate", {"max_tokens": 20, "seed": 1}).json["text"] == "".join(
        loaded.generate(20, seed=1)
    )


def test_a_session_is_stopped_where_it_is(client):
    client("POST", "/sessions", {"name": "endless"})
    connection, response = client.open("POST", "/sessions/endless/generate", {"max_tokens": 500, "stream": True})
    assert response.readline().startswith(b"data: ")
    assert client("POST", "/sessions/endless/stop").json == {"stopped": True}
    *_, last, done = [event for event in response.read().decode().split("\n\n") if event]
    connection.close()
    assert done == "data: [DONE]"
    last = json.loads(last[6:])
    assert last["finish_reason"] == "stopped"
    assert client("GET", "/sessions/endless").json["position"] == last["usage"]["completion_tokens"] < 500
    assert client("POST", "/sessions/endless/stop").json == {"stopped": False}


GOES_ON = {"generate": {"max_tokens": 9}, "feed": {"text": "klm and so on, and so on"}, "feed?ids": {"ids": [97] * 20}}


@pytest.mark.parametrize(("path", "segments"), [(path, 1) for path in GOES_ON] + [("feed", 8)])
def test_what_waits_is_not_lost_by_a_stop(tmp_path, monkeypatch, path, segments):
    """A stop while it is read leaves the session as it was; after that, what was read counts."""
    bpe, model = BPE.train(["a b c"], 256), wild_model(segment_length=2)
    local = Session(model, bpe)
    local.feed("hello abcdefghij")
    with server(model, tmp_path / "s", tokenizer=bpe) as client:
        client("POST", "/sessions", {"name": "a"})
        before = client("POST", "/sessions/a/feed", {"text": "hello abcdefghij"}).json["session"]
        service, left = client.app.state.service, iter(range(segments, 0, -1))
        read = service.engine._read
        with monkeypatch.context() as patched:
            patched.setattr(service.engine, "_read", lambda: (read(), next(left, 0) == 1 and service.stop("a")))
            stopped = client("POST", f"/sessions/a/{path}", GOES_ON[path]).json
        assert stopped["finish_reason"] == "stopped"
        if segments == 1:
            assert (stopped["session"], stopped["usage"]["total_tokens"], stopped["log_probability"]) == (before, 0, 0)
        else:
            local.feed(bpe.encode("klm "))
            assert stopped["usage"]["prompt_tokens"] == 1 + 7 * 2
        answer = client("POST", "/sessions/a/generate", {"max_tokens": 9, "seed": 1}).json
        assert answer["text"] == "".join(local.generate(9, seed=1))
        assert answer["session"]["position"] == local.position


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_is_served_no_more(client, stream):
    """And a session is then as it was."""
    engine = client.app.state.service.engine
    client("POST", "/sessions", {"name": f"left-{stream}"})
    client("POST", f"/sessions/left-{stream}/feed", {"text": "before"})
    before, written = client("GET", f"/sessions/left-{stream}").json, engine.tokens_written
    for path, extra in (("/v1/completions", {"prompt": "a"}), (f"/sessions/left-{stream}/generate", {})):
        headers = {"Content-Type": "application/json"}
        connection = http.client.HTTPConnection("127.0.0.1", client.port)
        connection.request("POST", path, json.dumps({"max_tokens": 500, "stream": stream} | extra), headers)
        until(lambda: engine.running)
        connection.close()
        until(lambda: not engine.running)
    assert engine.tokens_written - written < 2 * 500
    until(lambda: client.app.state.service.in_flight == 0)
    assert client("GET", f"/sessions/left-{stream}").json["digest"] == before["digest"]
    assert client("POST", f"/sessions/left-{stream}/feed", {"text": "!"}).json["session"]["position"] == 7


WRONG = {
    "broken JSON": ("POST", "/v1/completions", b'{"prompt": ', 400, "JSON is broken"),
    "not an object": ("POST", "/v1/completions", b"[]", 422, "dictionary"),
    "deep JSON": ("POST", "/v1/completions", b"[" * 9000, 400, ""),
    "no body": ("POST", "/v1/completions", None, 422, "required"),
    "unknown key": ("POST", "/v1/completions", {"prompt": "a", "logprobs": 5}, 422, "logprobs"),
    "top_p": ("POST", "/v1/completions", {"prompt": "a", "top_p": 1.5}, 422, "top_p"),
    "not a number": ("POST", "/v1/completions", b'{"prompt": "a", "temperature": NaN}', 422, "temperature"),
    "a huge seed": ("POST", "/v1/completions", {"prompt": "a", "seed": 10**40}, 422, "seed"),
    "two answers": ("POST", "/v1/completions", {"prompt": "a", "n": 2}, 422, "n: "),
    "empty stop": ("POST", "/v1/completions", {"prompt": "a", "stop": ""}, 422, "stop"),
    "output": ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 501}, 422, "at most 500"),
    "input": ("POST", "/v1/completions", {"prompt": "a" * 2001}, 413, "2,001 tokens"),
    "body": ("POST", "/v1/completions", {"prompt": "a" * 10_001}, 413, "10,000 bytes"),
    "ids": ("POST", "/v1/completions", {"prompt": [1, 256]}, 400, "allowed are 0 to 255"),
    "half a character": ("POST", "/v1/completions", b'{"prompt": "\\ud800"}', 400, "encoded"),
    "unknown session": ("GET", "/sessions/nobody", None, 404, "no session nobody"),
    "to read, unknown": ("POST", "/sessions/nobody/feed", {"text": "a"}, 404, "no session nobody"),
    "to write, unknown": ("POST", "/sessions/nobody/generate", {"stream": True}, 404, "no session nobody"),
    "to stop, unknown": ("POST", "/sessions/nobody/stop", None, 404, "no session nobody"),
    "to fork, unknown": ("POST", "/sessions/nobody/fork", {"name": "x"}, 404, "no session nobody"),
    "a path as a name": ("POST", "/sessions", {"name": "../../etc/passwd"}, 422, "name"),
    "a path in the address": ("GET", "/sessions/..%2f..%2fetc%2fpasswd", None, 404, "nothing at this address"),
    "an odd name": ("GET", "/sessions/a%20b%0a", None, 422, "name"),
    "a long name": ("POST", "/sessions", {"name": "a" * 65}, 422, "name"),
    "a name of dots": ("POST", "/sessions", {"name": ".."}, 422, "name"),
    "an empty name": ("POST", "/sessions", {"name": ""}, 422, "name"),
    "text and ids": ("POST", "/sessions/here/feed", {"text": "a", "ids": [1]}, 422, "either"),
    "not UTF-8": ("POST", "/sessions/here/feed?raw", b"ab\xff", 400, "not UTF-8 at byte 2"),
    "half a character to read": ("POST", "/sessions/here/feed", b'{"text": "\\ud800"}', 400, ""),
    "exists": ("POST", "/sessions", {"name": "here"}, 409, "here already"),
    "no address": ("GET", "/nowhere", None, 404, "nothing at this address"),
    "method": ("PUT", "/sessions", None, 405, "method"),
    "no images": ("GET", "/images/0", None, 404, "no model of images"),
    "slots": ("GET", "/sessions/here/slots?limit=9999", None, 422, "limit"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_a_line(client, case):
    client("POST", "/sessions", {"name": "here"})
    method, path, body, status, reason = WRONG[case]
    headers = {"Content-Type": "text/plain" if path.endswith("raw") else "application/json"}
    answer = client(method, path, body, headers if isinstance(body, bytes) else None)
    assert answer.status == status, answer.content
    assert reason in answer.reason
    assert client("GET", "/healthz").json == {"status": "ok"}


def test_a_body_that_never_says_its_length(client):
    """It is counted while it comes."""
    connection = http.client.HTTPConnection("127.0.0.1", client.port)
    pieces = (b"a" * 1000 for _ in range(100))
    connection.request("POST", "/sessions/here/feed", pieces, {"Content-Type": "text/plain"}, encode_chunked=True)
    response = connection.getresponse()
    assert response.status == 413
    connection.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:80"}, 403),
        ({"Host": "[evil"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "127.0.0.1:9"}, 200),
    ],
)
def test_other_names_and_other_pages_are_refused(client, headers, status):
    answer = client("GET", "/sessions", headers=headers)
    assert answer.status == status
    assert status == 200 or answer.reason


def test_the_page_is_there_and_loads_nothing_from_elsewhere(client):
    for path in ("/", "/docs"):
        page = client("GET", path)
        assert page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        content = page.content.decode()
        assert "http://" not in content
        assert "https://" not in content
        assert " onclick" not in content
        assert "<script>" not in content
    assert "/v1/completions" in client("GET", "/openapi.json").json["paths"]


def test_metrics(client):
    client("POST", "/v1/completions", {"prompt": "a", "max_tokens": 3})
    lines = client("GET", "/metrics").content.decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert int(values["memformer_tokens_written_total"]) >= 3
    assert int(values['memformer_requests_total{path="/v1/completions",status="200"}']) >= 1
    assert values["memformer_jobs_running"] == "0"
    assert float(values["memformer_busy_seconds_total"]) > 0


def test_a_token_is_needed(tmp_path):
    with server(MODEL, tmp_path / "s", token="secret") as client:
        assert client("GET", "/sessions").status == 200
        for headers in ({"Authorization": "Bearer wrong"}, {"Authorization": ""}, {"Authorization": "Bearer sécret"}):
            answer = client("GET", "/sessions", headers=headers)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert "token" in answer.reason
        for path in ("/", "/healthz", "/docs", "/openapi.json", "/app.js"):
            assert client("GET", path, headers={"Authorization": ""}).status == 200
        assert client("GET", "/metrics", headers={"Authorization": ""}).status == 401


def test_too_many_wait(tmp_path):
    limits = Limits(max_batch=1, max_waiting=1, max_wait=0.5)
    with server(MODEL, tmp_path / "s", limits=limits) as client:
        body = {"prompt": "a", "max_tokens": 4096, "stream": True}
        first, _ = client.open("POST", "/v1/completions", body)
        found = []
        waits = threading.Thread(target=lambda: found.append(client("POST", "/v1/completions", body)))
        waits.start()
        until(lambda: client.app.state.service.in_flight == 2)
        refused = client("POST", "/v1/completions", body)
        assert (refused.status, refused.headers["retry-after"]) == (429, "2")
        assert "try again" in refused.reason
        waits.join()
        assert (found[0].status, found[0].headers["retry-after"]) == (503, "5")
        assert "waited 0.5 seconds" in found[0].reason
        first.close()


def test_a_server_that_serves_nobody_is_refused():
    with pytest.raises(ValueError, match=r"max_wait is 0, but must be above 0.*max_waiting to 0"):
        Limits(max_wait=0)


def test_where_nobody_may_wait_those_who_need_not_are_served(tmp_path):
    with server(MODEL, tmp_path / "s", limits=Limits(max_batch=1, max_waiting=0)) as client:
        first, _ = client.open("POST", "/v1/completions", {"prompt": "a", "max_tokens": 4096, "stream": True})
        assert client("POST", "/v1/completions", {"prompt": "a"}).status == 429
        first.close()
        until(lambda: client.app.state.service.in_flight == 0)
        assert client("POST", "/v1/completions", {"prompt": "a", "max_tokens": 3}).status == 200


def test_restarted_it_goes_on_to_the_bit(tmp_path):
    """In single precision: what is served after a restart is what would have been served before."""
    model = wild_model(torch.float32)
    with server(model, tmp_path / "s") as client:
        client("POST", "/sessions", {"name": "a"})
        client("POST", "/sessions/a/feed", {"text": "some text of some length"})
        client("POST", "/sessions/a/generate", {"max_tokens": 10, "seed": 1})
        client("POST", "/sessions/a/fork", {"name": "b"})
        before, content = client("GET", "/sessions/a").json, client("GET", "/sessions/a/file").content
        going_on = client("POST", "/sessions/b/generate", {"max_tokens": 200, "seed": 2}).json
    with server(model, tmp_path / "s") as client:
        assert client("GET", "/sessions/a").json == before | {"live": False}
        assert client("GET", "/sessions/a/file").content == content
        again = client("POST", "/sessions/a/generate", {"max_tokens": 200, "seed": 2}).json
        assert again["text"] == going_on["text"]
    with server(wild_model(gain=2.0), tmp_path / "s") as client:
        assert not client("GET", "/sessions/a").json["usable"]
        refused = client("POST", "/sessions/a/feed", {"text": "x"})
        assert refused.status == 409
        assert "other weights" in refused.reason


@pytest.mark.parametrize(("kept", "instead"), [(0, b""), (-9, b""), (-9, b"x" * 9)], ids=["empty", "cut off", "changed"])
def test_a_damaged_session_is_refused(tmp_path, kept, instead):
    """In a line that says which; it can be removed, and the others go on."""
    with server(MODEL, tmp_path / "s") as client:
        for name in ("broken", "whole"):
            client("POST", "/sessions", {"name": name})
    store = Store(tmp_path / "s")
    store.commit("broken", store.facts("broken").model, 0, store.state("broken")[:kept] + instead)
    store.close()
    with server(MODEL, tmp_path / "s") as client:
        for path, body in (("feed", {"text": "x"}), ("generate", {"max_tokens": 3}), ("generate", {"stream": True})):
            refused = client("POST", f"/sessions/broken/{path}", body)
            assert refused.status == 409
            assert "broken is not a session" in refused.reason
        assert client("POST", "/sessions/whole/generate", {"max_tokens": 3}).status == 200
        assert client("DELETE", "/sessions/broken").status == 204


def test_least_recently_used_sessions_are_on_the_disk_alone(tmp_path):
    with server(MODEL, tmp_path / "s", limits=Limits(max_live=3)) as client:
        live = client.app.state.service.sessions.live
        for n in range(6):
            client("POST", "/sessions", {"name": f"s{n}"})
            client("POST", f"/sessions/s{n}/feed", {"text": f"number {n}"})
        assert list(live) == ["s3", "s4", "s5"]
        client("POST", "/sessions/s3/feed", {"text": "!"})
        client("POST", "/sessions/s0/generate", {"max_tokens": 1})
        assert list(live) == ["s5", "s3", "s0"]
        for n in (1, 2, 4, 5):
            local = Session(MODEL, Bytes())
            local.feed(f"number {n}")
            answer = client("POST", f"/sessions/s{n}/generate", {"max_tokens": 20, "seed": n}).json
            assert answer["text"] == "".join(local.generate(20, seed=n))
        assert len(live) == 3


def test_a_full_disk(tmp_path):
    with server(MODEL, Store(tmp_path / "s", max_bytes=120_000)) as client:
        client("POST", "/sessions", {"name": "kept"})
        client("POST", "/sessions/kept/feed", {"text": "before"})
        for n in range(50):
            answer = client("POST", "/sessions", {"name": f"more{n}"})
            if answer.status != 201:
                break
        assert answer.status == 507
        assert "full" in answer.reason
        before = client("GET", "/sessions/kept").json
        text = "and a long text, the slots of which need room " * 20
        assert client("POST", "/sessions/kept/feed", {"text": text}).status == 507
        connection, response = client.open("POST", "/sessions/kept/feed?stream=true", {"text": text})
        assert b'"code":507' in response.read().split(b"\n\n")[-2]
        connection.close()
        assert client("GET", "/sessions/kept").json == before
        local = Session(MODEL, Bytes())
        local.feed("before")
        assert client("POST", "/v1/completions", {"prompt": "before", "max_tokens": 9, "seed": 1}).json["choices"][0][
            "text"
        ] == "".join(local.fork().generate(9, seed=1))
        for number in range(n):
            assert client("DELETE", f"/sessions/more{number}").status == 204
        answer = client("POST", "/sessions/kept/generate", {"max_tokens": 5, "seed": 1}).json
        assert answer["text"] == "".join(local.generate(5, seed=1))


def test_a_model_of_images(tmp_path):
    model = wild_model(vocab_size=17)
    documents = Documents.of_rows(np.arange(3 * 64).reshape(3, 64) % 17)
    with server(model, tmp_path / "s", tokenizer=None, image_shape=(8, 8), images=lambda: documents) as client:
        facts = client("GET", "/model").json
        assert (facts["kind"], facts["image_shape"], facts["vocab_size"]) == ("image", [8, 8], 17)
        image = client("GET", "/images/1").json
        assert (image["count"], image["pixels"]) == (3, documents[1].tolist())
        assert client("GET", "/images/3").status == 404
        half = image["pixels"][:32]
        answer = client("POST", "/v1/completions", {"prompt": half, "max_tokens": 32, "seed": 1}).json
        session = Session(model)
        session.feed(half)
        assert answer["choices"][0]["ids"] == list(session.generate(32, seed=1))
        client("POST", "/sessions", {"name": "i"})
        assert client("POST", "/sessions/i/feed", {"ids": half}).json["session"]["position"] == 32
        assert client("POST", "/sessions/i/generate", {"max_tokens": 32, "seed": 1}).json["ids"] == answer["choices"][0]["ids"]
        for path, body in (("/v1/completions", {"prompt": "text"}), ("/sessions/i/feed", {"text": "text"})):
            refused = client("POST", path, body)
            assert refused.status == 400
            assert "knows no text" in refused.reason
        assert "stop at ids" in client("POST", "/v1/completions", {"prompt": [1], "stop": "x"}).reason


def test_ids_that_are_no_text(tmp_path):
    """A model may know more ids than its tokenizer: they can be read, but no text goes on from them."""
    with server(wild_model(vocab_size=260), tmp_path / "s") as client:
        client("POST", "/sessions", {"name": "a"})
        assert client("POST", "/sessions/a/feed", {"ids": [255, 256, 257]}).json["session"]["position"] == 3
        for path, body in (("/v1/completions", {"prompt": [1, 259]}), ("/sessions/a/generate", {})):
            refused = client("POST", path, body)
            assert refused.status == 400
            assert "not in this vocabulary" in refused.reason
        assert client("POST", "/sessions/a/feed", {"text": "!"}).json["session"]["position"] == 4
        until(lambda: client.app.state.service.in_flight == 0)


def test_a_session_waits_for_its_turn(client):
    """Two who go on with one session at once: one after the other, and both count."""
    client("POST", "/sessions", {"name": "shared"})
    found = []

    def ask():
        found.append(client("POST", "/sessions/shared/generate", {"max_tokens": 30}).json["session"]["position"])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [30, 60, 90, 120]
    assert time.time() - client("GET", "/sessions/shared").json["updated"] < 60
