"""Prepare and train on a text that is large beside the memory it should take, and record how much that is.

    .venv/bin/python scripts/large_text.py --tokenizer bytes --megabytes 1000

Each stage is a process of its own. Resident memory counts pages of mapped files too, the cached ids among them: the system
shares them between processes and takes them back when it needs them. So both kinds are recorded, anonymous and of files.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonargparse import auto_cli

SETTINGS = """--model.name memformer --model.d_model 64 --model.num_heads 4 --model.d_ff 128 --model.num_encoder_layers 1
    --model.num_decoder_layers 2 --model.segment_length 32 --train.updates 20 --train.batch_size 8 --train.horizon 4
    --train.evaluate_tokens 20000 --device cpu"""
READ_ALL = """
import sys
from memformer_torch.data import Stream, load_corpus
for _ in Stream(load_corpus("text", path=sys.argv[1], tokenizer=sys.argv[2])["train"],
                batch_size=32, segment_length=1024, continuous=True):
    pass
"""
KINDS = {"anonymous": "RssAnon", "of_files": "RssFile"}


def large_text(
    tokenizer: str = "bytes", megabytes: int = 1000, out: Path = Path("results/large-text.json"), seed: int = 0
) -> None:
    """Peak resident memory and seconds of preparing a text, training on it, and reading all of it once.

    Args:
        tokenizer: bytes, words or bpe.
        megabytes: Size of the text, in 10^6 bytes.
        out: The JSON file to write; what it holds of other tokenizers stays.
        seed: Of the order of lines.
    """
    name, lines = find_lines()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "large.txt"
        write_text(text, lines, megabytes * 10**6, random.Random(seed))
        python, memformer = [sys.executable, "-c"], [sys.executable, "-m", "memformer_torch"]
        data = ["--data.name", "text", "--data.path", str(text), "--data.tokenizer", tokenizer]
        commands = {
            "import alone": [*python, "import memformer_torch.cli"],
            "prepare": [*memformer, "data", "text", "--options", f'{{"path": "{text}", "tokenizer": "{tokenizer}"}}'],
            "train": [*memformer, "train", *data, *SETTINGS.split(), "--out", str(Path(folder) / "run")],
            "read all": [*python, READ_ALL, str(text), tokenizer],
        }
        stages = {}
        for stage, command in commands.items():
            stages[stage] = measure(command, Path(folder))
            print(stage, stages[stage], flush=True)
    from memformer_torch.bench.record import environment, write_json  # at last: a child's peak begins at its parent's size

    record = {
        "command": f"python scripts/large_text.py --tokenizer {tokenizer} --megabytes {megabytes} --seed {seed}",
        "seed": seed,
        "runs": 1,
        "text": f"{name}, lines in new orders",
        "training": " ".join(SETTINGS.split()),
        "stages": stages,
        **environment(),
    }
    before = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    write_json(out, before | {tokenizer: record})


def find_lines() -> tuple[str, list[bytes]]:
    """The lines of a real text, and its name."""
    root = os.environ.get("MEMFORMER_DATA")
    if root and (Path(root) / "wikitext-2/train.txt").exists():
        return "wikitext-2", (Path(root) / "wikitext-2/train.txt").read_bytes().splitlines(keepends=True)
    from pydoc_data.topics import topics

    return "pydocs", "".join(topics.values()).encode().splitlines(keepends=True)


def write_text(path: Path, lines: list[bytes], size: int, order: random.Random) -> None:
    """The lines again and again, each time in another order, up to this size."""
    with path.open("wb") as file:
        for piece in shuffled(lines, order):
            file.write(piece[: size - file.tell()].decode(errors="ignore").encode())  # no part of a character
            if file.tell() + 4 > size:
                return


def shuffled(lines: list[bytes], order: random.Random) -> Iterator[bytes]:
    while True:
        order.shuffle(lines)
        yield b"".join(lines)


def measure(command: list[str], folder: Path) -> dict[str, Any]:
    """Run a command to its end: seconds, peak resident bytes as the system counts them, and peaks of its two kinds."""
    names = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "MEMFORMER_CACHE": str(folder / "cache")}
    peaks = dict.fromkeys(KINDS, 0)
    with (folder / "log").open("wb") as log:
        start = time.perf_counter()
        process = subprocess.Popen(command, env=os.environ | names, stdout=log, stderr=log)
        while True:
            status = Path(f"/proc/{process.pid}/status").read_text()
            found = dict(line.split(":", 1) for line in status.splitlines())
            for kind, field in KINDS.items():
                peaks[kind] = max(peaks[kind], 1024 * int(found.get(field, "0").split()[0]))  # a process that ended has none
            ended, code, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            time.sleep(0.02)
        seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{(folder / 'log').read_text()[-2000:]}")
    peak = {"peak_bytes": 1024 * usage.ru_maxrss} | {f"peak_bytes_{kind}": count for kind, count in peaks.items()}
    return {"seconds": round(seconds, 1), "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1)} | peak


if __name__ == "__main__":
    auto_cli(large_text)
