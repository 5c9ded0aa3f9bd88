"""Many clients at once against `memformer explore`, and a record of what came of it.

    .venv/bin/python scripts/serve_load.py --seconds 60

Clients stream completions, and every fourth goes through a session of its own: created, fed, continued, deleted. Each text is
compared with the one that a `Session` alone makes of the same prompt, sampling and seed. The same load is then given to a
server that decodes one request at a time. Memory is the server's, sampled every second.
"""

import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsonargparse import auto_cli

from memformer_torch.bench.record import environment, write_json
from memformer_torch.runs import new_run, open_model
from memformer_torch.session import Session
from memformer_torch.train import TrainConfig

MODEL = {"name": "memformer", "d_model": 64, "num_heads": 4, "d_ff": 128, "num_encoder_layers": 2, "num_decoder_layers": 2}
MODEL |= {"segment_length": 32, "num_slots": 32}
TEXT = "A session reads without end in constant memory, and can be asked at any time; what it wrote it has read as well.\n"
SAMPLING: list[dict[str, Any]] = [{"temperature": 1.0}, {"temperature": 0.8, "top_k": 40}, {"temperature": 1.0, "top_p": 0.95}]
DIFFERENT = 96
"""Requests that differ; clients make them over and over."""


@dataclass
class Load:
    """What the clients saw."""

    port: int
    texts: list[tuple[int, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)


def serve_load(
    seconds: float = 60,
    clients: int = 64,
    tokens: int = 64,
    out: Path = Path("results/serve-load.json"),
    seed: int = 0,
) -> None:
    """Load a server, check every text, and compare with serving one request at a time.

    Args:
        seconds: How long, batched; one at a time it is half as long.
        clients: Clients that stream at once.
        tokens: Tokens of each completion.
        out: The JSON file to write.
        seed: Of the model and the prompts.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder))
        prompts = random.Random(seed)
        requests = [make_request(number, tokens, prompts) for number in range(DIFFERENT)]
        batched = measure(run, requests, clients, seconds, max_batch=clients)
        single = measure(run, requests, clients, seconds / 2, max_batch=1)
        different, checked = check(run, requests, [*batched.pop("texts"), *single.pop("texts")])
    record = {
        "command": f"scripts/serve_load.py --seconds {seconds:g} --clients {clients} --tokens {tokens} --seed {seed}",
        "model": MODEL,
        "dtype": "float64",
        "runs": 1,
        "batched": batched,
        "one_at_a_time": single,
        "times_faster": round(batched["tokens_per_second"] / single["tokens_per_second"], 2),
        "texts_checked": checked,
        "texts_different_from_alone": different,
        **environment(),
    }
    write_json(out, record)
    print(json.dumps({name: value for name, value in record.items() if name not in ("model", "versions", "machine")}, indent=1))
    if different or batched["errors"] or single["errors"]:
        raise SystemExit(1)


def make_run(folder: Path) -> Path:
    (folder / "data").mkdir()
    for split in ("train", "valid", "test"):
        (folder / "data" / f"{split}.txt").write_text(TEXT * 20, encoding="utf-8")
    data = {"name": "text", "path": str(folder / "data"), "cache": str(folder / "cache")}
    train = TrainConfig(updates=20, batch_size=1, horizon=2, evaluate_tokens=200, log_every=20, warm_up=5)
    new_run(folder / "run", MODEL, data, train, "cpu").fit()
    return folder / "run"


def make_request(number: int, tokens: int, prompts: random.Random) -> dict[str, Any]:
    start = prompts.randrange(len(TEXT))
    prompt = TEXT[start : start + prompts.randrange(1, 100)]
    return {"prompt": prompt, "max_tokens": tokens, "seed": number, "stream": True} | SAMPLING[number % len(SAMPLING)]


def measure(run: Path, requests: list[dict[str, Any]], clients: int, seconds: float, max_batch: int) -> dict[str, Any]:
    with serve(run, max_batch) as (process, port):
        load, memory = Load(port), []
        written, steps, elapsed, cpu = asyncio.run(put_load(load, requests, clients, seconds, process.pid, memory))
    third = max(1, len(memory) // 3)
    early, late = (statistics.mean(part) for part in (memory[third : 2 * third] or memory, memory[-third:]))
    return {
        "clients": clients,
        "seconds": round(elapsed, 1),
        "tokens_per_second": round(written / elapsed, 1),
        "tokens_per_cpu_second": round(written / cpu, 1),
        "tokens_a_step": round(written / max(1, steps), 2),
        "requests": len(load.texts),
        "median_seconds_to_first_token": round(statistics.median(load.first_token), 3) if load.first_token else None,
        "errors": len(load.errors),
        "first_errors": load.errors[:3],
        "resident_bytes": {"second_third": round(early), "last_third": round(late), "largest": max(memory)},
        "resident_growth": round(late / early - 1, 4),
        "texts": load.texts,
    }


async def put_load(
    load: Load, requests: list[dict[str, Any]], clients: int, seconds: float, pid: int, memory: list[int]
) -> tuple[int, int, float, float]:
    """Tokens written, steps taken, seconds and the server's CPU seconds, from when all are at work until the time is up."""
    ends = asyncio.Event()
    tasks = [asyncio.create_task(client(load, requests, number, clients, ends)) for number in range(clients)]
    await asyncio.sleep(min(3, seconds / 4))
    (written, steps), begin, cpu = await counts(load.port), time.perf_counter(), cpu_seconds(pid)
    for _ in range(max(1, round(seconds))):
        await asyncio.sleep(1)
        memory.append(resident(pid))
    (more_written, more_steps), elapsed = await counts(load.port), time.perf_counter() - begin
    cpu = cpu_seconds(pid) - cpu
    ends.set()
    await asyncio.gather(*tasks)
    return more_written - written, more_steps - steps, elapsed, cpu


async def client(load: Load, requests: list[dict[str, Any]], number: int, clients: int, ends: asyncio.Event) -> None:
    """One request after another, until the end."""
    turn = 0
    while not ends.is_set():
        index = (number + turn * clients + turn) % len(requests)
        ask = through_session if number % 4 == 3 else complete
        try:
            load.texts.append((index, await ask(load, requests[index], f"client-{number}")))
        except (OSError, ValueError, KeyError, asyncio.IncompleteReadError) as error:
            load.errors.append(f"{type(error).__name__}: {error}")
            await asyncio.sleep(0.1)
        turn += 1


async def complete(load: Load, request: dict[str, Any], name: str) -> str:
    events = await stream(load, "/v1/completions", request)
    return "".join(choice["text"] for event in events for choice in event["choices"])


async def through_session(load: Load, request: dict[str, Any], name: str) -> str:
    await exchange(load.port, "POST", "/sessions", {"name": name}, 201)
    try:
        await exchange(load.port, "POST", f"/sessions/{name}/feed", {"text": request["prompt"]}, 200)
        asked = {key: value for key, value in request.items() if key != "prompt"}
        *events, last = await stream(load, f"/sessions/{name}/generate", asked)
        if not last["saved"]:
            raise ValueError("not saved")
        return "".join(event["text"] for event in events)
    finally:
        await exchange(load.port, "DELETE", f"/sessions/{name}", None, 204)


async def stream(load: Load, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    begin = time.perf_counter()

    def on_first() -> None:
        load.first_token.append(time.perf_counter() - begin)

    content = await exchange(load.port, "POST", path, body, 200, on_first)
    *events, done = [line[6:] for line in content.decode().split("\n\n") if line]
    if done != "[DONE]":
        raise ValueError(f"a stream ended with {done[:200]}")
    return [json.loads(event) for event in events]


async def exchange(port: int, method: str, path: str, body: Any, status: int, on_first: Any = None) -> bytes:
    """One request on a connection of its own; the answer's body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        headers = await reader.readuntil(b"\r\n\r\n")
        if on_first is not None:
            on_first()
        answer = await (read_chunks(reader) if b"transfer-encoding: chunked" in headers.lower() else reader.read())
        if int(headers.split(None, 2)[1]) != status:
            raise ValueError(f"{method} {path} gave {headers.split(None, 2)[1]!r}: {answer[:200]!r}")
        return answer
    finally:
        writer.close()


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    found = []
    while size := int(await reader.readline(), 16):
        found.append(await reader.readexactly(size))
        await reader.readexactly(2)
    return b"".join(found)


async def counts(port: int) -> tuple[int, int]:
    """Tokens written and steps taken, as the server counts them."""
    told = (await exchange(port, "GET", "/metrics", None, 200)).decode()
    found = [re.search(rf"^memformer_{name} (\d+)", told, re.MULTILINE) for name in ("tokens_written_total", "steps_total")]
    return tuple(int(match[1]) for match in found if match)  # type: ignore[return-value]


@contextmanager
def serve(run: Path, max_batch: int) -> Any:
    limits = {"max_batch": max_batch, "max_waiting": 10_000, "max_wait": 3600}
    command = [
        sys.executable,
        "-m",
        "memformer_torch",
        "explore",
        str(run),
        "--port",
        "0",
        "--dtype",
        "float64",
        "--device",
        "cpu",
    ]
    command += [f"--limits.{name}={value}" for name, value in limits.items()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline().split("/ (")[0].rsplit(":", 1)[1])
            yield process, port
            process.terminate()
            process.wait(30)
        finally:
            process.kill()


def resident(pid: int) -> int:
    """Bytes that a process holds in memory."""
    return 1024 * int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0])


def cpu_seconds(pid: int) -> float:
    """That all threads of a process have taken."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def check(run: Path, requests: list[dict[str, Any]], texts: list[tuple[int, str]]) -> tuple[int, int]:
    """How many texts differ from those made alone, of how many."""
    model, tokenizer, _ = open_model(run, "cpu", quiet=True)
    model, alone = model.double(), {}
    for index in sorted({index for index, _ in texts}):
        options = dict(requests[index])
        options.pop("stream")
        session = Session(model, tokenizer)
        session.feed(options.pop("prompt"))
        alone[index] = "".join(session.generate(**options))
    return sum(text != alone[index] for index, text in texts), len(texts)


if __name__ == "__main__":
    auto_cli(serve_load, as_positional=False)
