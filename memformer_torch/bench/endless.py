"""`memformer bench endless`: a session reads a million tokens; its memory, its time a token and its file stay the same."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from memformer_torch.analysis import pictures
from memformer_torch.bench.generate import alternate
from memformer_torch.bench.record import environment, write_json
from memformer_torch.models.memformer import Memformer, MemformerConfig
from memformer_torch.session import Session

CHUNK = 5_000  # ids in one feed; one point of the picture
EARLY = 10_000  # tokens, from which on nothing should change
SMALL = 1_000  # tokens before the session is first saved
TURNS = 5_000  # tokens that the old session and a young one generate in turns
COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def endless(tokens: int = 1_000_000, generate: int = 100_000, out: Path = Path("runs/bench/endless.json")) -> None:
    """Read and generate very much in one session, and see whether anything grows.

    A small Memformer with random weights, on one thread. Compared are: resident memory after 10,000 tokens and at the end,
    the median time a token of the first and of the last 10,000 that are generated, and the saved session after 1,000 tokens
    and at the end. The machine may be busier early or late, so the session also takes turns with a young one that has read
    10,000 tokens. A session that is loaded must go on as the one that was saved, bit for bit. Writes a picture beside the
    JSON.

    Args:
        tokens: Random ids that are read.
        generate: Ids that are generated then.
        out: The JSON file to write.
    """
    if tokens < 2 * EARLY or generate < 2:
        raise ValueError(f"tokens is {tokens} and generate {generate}, but must be at least {2 * EARLY} and 2")
    console = Console(markup=False)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = MemformerConfig(
        vocab_size=256,
        d_model=64,
        num_heads=4,
        d_ff=128,
        num_encoder_layers=2,
        num_decoder_layers=2,
        segment_length=64,
        num_slots=32,
    )
    with Progress(*COLUMNS, console=console) as progress, tempfile.TemporaryDirectory() as folder:
        found = _measure(Memformer(config), tokens, generate, Path(folder) / "session", progress)

    claims = _claims(found)
    table = Table("", "early", "at the end", "change", "holds", title=f"{tokens:,} tokens read, {generate:,} generated")
    for claim, row in claims.items():
        table.add_row(claim, f"{row['early']:,.2f}", f"{row['end']:,.2f}", f"{row['change']:+.1%}", str(row["holds"]))
    console.print(table)
    console.print(f"A loaded session goes on bit for bit: {found['loading_is_exact']}")
    record = {
        "command": f"memformer bench endless --tokens {tokens} --generate {generate}",
        "seed": 0,
        "runs": 1,
        "weights": "random",
        "config": asdict(config),
        "claims": claims,
        **found,
    }
    write_json(out, record | environment())
    pictures.endless_reading(out.with_suffix(".png"), found["points"], tokens)
    console.print(f"Written: {out}, {out.with_suffix('.png')}")


def _measure(model: Memformer, tokens: int, generate: int, path: Path, progress: Progress) -> dict[str, Any]:
    session, random = Session(model), torch.Generator().manual_seed(0)
    seconds = np.ones(generate)  # written to already: it takes no new memory later
    points: list[dict[str, float]] = []

    def feed(number: int) -> float:
        start = time.perf_counter()
        session.feed(torch.randint(model.config.vocab_size, (number,), generator=random))
        return (time.perf_counter() - start) / number

    def note(seconds_a_token: float, number: int, cpu_start: float) -> None:
        # the processor's time beside the clock's tells a slow session from a busy machine
        cpu = (time.process_time() - cpu_start) / number
        times = {"seconds_a_token": seconds_a_token, "cpu_seconds_a_token": cpu}
        points.append({"position": session.position, "resident": resident_bytes(), **times})
        progress.advance(bar, number)

    bar = progress.add_task("reading", total=tokens)
    feed(SMALL)
    early_file = _saved_bytes(session, path)
    feed(EARLY - SMALL)
    early_resident = resident_bytes()
    progress.advance(bar, EARLY)
    while session.position < tokens:
        number, cpu_start = min(CHUNK, tokens - session.position), time.process_time()
        note(feed(number), number, cpu_start)

    bar = progress.add_task("generating", total=generate)
    ids = session.generate(generate, seed=0)
    for start in range(0, generate, CHUNK):
        part, cpu_start = seconds[start : start + CHUNK], time.process_time()
        _time_each(part, lambda: next(ids))
        note(float(np.median(part)), len(part), cpu_start)

    end_resident = resident_bytes()
    number = min(EARLY, generate // 2)
    young = Session(model)
    young.feed(torch.randint(model.config.vocab_size, (EARLY,), generator=random))
    turns = alternate({"early": young.generate(None, seed=0), "end": session.generate(None, seed=0)}, TURNS)
    return {
        "resident_bytes": {"early": early_resident, "end": end_resident},
        "seconds_a_generated_token": {
            "early": statistics.median(seconds[:number].tolist()),
            "end": statistics.median(seconds[-number:].tolist()),
        },
        "seconds_a_token_in_turns": {age: statistics.median(times) for age, times in turns.items()},
        "saved_bytes": {"early": early_file, "end": _saved_bytes(session, path)},
        "loading_is_exact": _same(session, Session.load(path, model)),
        "points": points,
    }


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _saved_bytes(session: Session, path: Path) -> int:
    session.save(path)
    return path.stat().st_size


def _time_each(into: np.ndarray, call: Callable[[], Any]) -> None:
    """Fill the array with the seconds of one call each."""
    for index in range(len(into)):
        start = time.perf_counter()
        call()
        into[index] = time.perf_counter() - start


def _same(session: Session, loaded: Session) -> bool:
    """Whether both go on alike, over several segments: ids, log-probability and state, to the bit."""
    number = 5 * session.model.config.segment_length // 2
    ids = torch.arange(number) % session.model.config.vocab_size
    alike = [list(each.generate(number, seed=1)) for each in (session, loaded)], [each.feed(ids) for each in (session, loaded)]
    states = zip(session.state, loaded.state, strict=True)
    return all(one == other for one, other in alike) and all(torch.equal(one, other) for one, other in states)


def _claims(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What was claimed to stay, in readable units, and by how much it may change."""
    limits = {
        "resident memory, MB": (found["resident_bytes"], 1e6, 0.02),
        "a generated token, ms": (found["seconds_a_generated_token"], 1e-3, 0.25),
        "the same, in turns with a young session": (found["seconds_a_token_in_turns"], 1e-3, 0.25),
        "saved session, kB": (found["saved_bytes"], 1e3, 0.0),
    }
    claims = {}
    for claim, (values, unit, most) in limits.items():
        change = values["end"] / values["early"] - 1
        scaled = {name: value / unit for name, value in values.items()}
        claims[claim] = scaled | {"change": change, "most": most, "holds": abs(change) <= most}
    return claims
