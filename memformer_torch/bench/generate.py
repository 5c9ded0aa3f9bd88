"""`memformer bench generate`: what a token costs while a document grows, alone and side by side, and what a fork costs."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from memformer_torch.analysis import pictures
from memformer_torch.bench.bytes import LiveBytes
from memformer_torch.bench.record import environment, write_json
from memformer_torch.models import MODELS, PRESETS
from memformer_torch.nn.past import Places
from memformer_torch.session import Session
from memformer_torch.types import BOS, PAD

VOCAB_SIZE = 256
LAYERS = {"memformer": {"num_encoder_layers": 4, "num_decoder_layers": 8}, "transformer-xl": {}, "decoder": {}}
READ = 8  # segments that the speed of reading is taken over
FORKS = 5


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of a run; the models are those of the text preset (1,024 slots, 1,024 tokens remembered) with 12 layers each."""

    positions: tuple[int, ...]
    """Tokens read before it is measured: multiples of the segment's length."""
    sessions: tuple[int, ...]
    """Documents side by side."""
    segments: int
    """Segments generated at each position, by each, and by Session and by hand."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Instead of the preset's."""


_NARROW = {"d_model": 128, "num_heads": 4, "d_ff": 512, "segment_length": 32}
FULL = Sizes(positions=(1024, 8192, 32768), sessions=(1, 8, 64), segments=3)
QUICK = Sizes(
    positions=(256, 1024, 2048),
    sessions=(1, 4, 16),
    segments=3,
    fields=_NARROW | {"num_slots": 128, "memory_length": 128},
)


def generate(quick: bool = False, out: Path = Path("runs/bench/generate.json")) -> None:
    """Time and bytes of generating, at equal width and depth: Memformer, Transformer-XL and a decoder that sees everything.

    Contestants take turns token by token, and generate whole segments: what a new segment costs is in the tokens a second.
    Beside it: many sessions of Memformer together, each at another place of its segment; a copy of a session; and Session
    against the same model called by hand. Weights are random. Writes a picture beside the JSON.

    Args:
        quick: Smaller models and shorter documents.
        out: The JSON file to write.
    """
    console, sizes = Console(markup=False), QUICK if quick else FULL
    torch.manual_seed(0)
    models = _models(sizes)
    memformer = models["memformer"]
    length = memformer.config.segment_length
    steps = sizes.positions[-1] // length + sizes.segments * length * (len(sizes.positions) + 2)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=steps)

        def advance() -> None:
            progress.advance(task)

        rows = _along_a_document(models, sizes, advance)
        together = _together(memformer, sizes, advance)
        overhead = _session_against_hand(memformer, sizes.segments, advance)

    console.print(*_tables(rows, together))
    console.print(
        f"Session against the bare model calls: {1000 * overhead['session_seconds']:.2f} ms and "
        f"{1000 * overhead['by_hand_seconds']:.2f} ms a token, {overhead['overhead']:+.1%}"
    )
    record = {
        "command": f"memformer bench generate{' --quick' if quick else ''}",
        "seed": 0,
        "runs": sizes.segments,
        "configs": {name: asdict(model.config) for name, model in models.items()},
        "parameters": {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()},
        "rows": rows,
        "together": together,
        "session_against_hand": overhead,
    }
    write_json(out, record | environment())
    pictures.cost_by_position(out.with_suffix(".png"), _curves(rows))
    console.print(f"Written: {out}, {out.with_suffix('.png')}")


def _models(sizes: Sizes) -> dict[str, Any]:
    models = {}
    for name, layers in LAYERS.items():
        config_class, model_class = MODELS[name]
        fields = {"vocab_size": VOCAB_SIZE, **PRESETS["text"][name], **(layers or {"num_layers": 12})}
        fields |= {key: value for key, value in sizes.fields.items() if key in config_class.__dataclass_fields__}
        if "max_length" in fields:
            fields["max_length"] = sizes.positions[-1] + (sizes.segments + 1) * fields["segment_length"]
        models[name] = model_class(config_class(**fields)).eval()
    return models


def _along_a_document(models: Mapping[str, Any], sizes: Sizes, progress: Callable[[], None]) -> list[dict[str, Any]]:
    """One document for each model: read up to a position, generate whole segments, fork; on to the next."""
    sessions = {name: Session(model) for name, model in models.items()}
    length = next(iter(models.values())).config.segment_length
    random, rows = torch.Generator().manual_seed(0), []
    for position in sizes.positions:
        missing = position - next(iter(sessions.values())).position
        pieces = torch.randint(VOCAB_SIZE, (missing,), generator=random).split(length)
        # the first piece ends the segment at hand, so that what is measured begins with one
        pieces = (pieces[-1], *pieces[:-1])
        reading = alternate({name: map(session.feed, pieces) for name, session in sessions.items()}, len(pieces), progress)
        calls = {name: session.generate(None, seed=0) for name, session in sessions.items()}
        writing = alternate(calls, sizes.segments * length, progress)
        for items in calls.values():
            next(items)  # the next segment has begun: a fork copies its cache too
        forking = alternate({name: iter(session.fork, None) for name, session in sessions.items()}, FORKS)
        for name, session in sessions.items():
            tokens = writing[name]
            segments = [sum(tokens[start : start + length]) for start in range(0, len(tokens), length)]
            rows.append(
                {
                    "model": name,
                    "position": position,
                    "state_bytes": session.state_bytes,
                    "reading_tokens_a_second": length / statistics.median(reading[name][-READ:]),
                    "tokens_a_second": length / statistics.median(segments),
                    "seconds_a_token": statistics.median(tokens),
                    "seconds_to_begin_a_segment": max(0.0, statistics.median(tokens[::length]) - statistics.median(tokens)),
                    "fork_seconds": statistics.median(forking[name]),
                    "fork_bytes": _fork_bytes(session),
                }
            )
    return rows


def _fork_bytes(session: Session) -> int:
    """Bytes that a copy takes: the state, the tokens at hand and the caches."""
    with LiveBytes() as counted:
        fork = session.fork()
        copied = counted.live
    del fork
    return copied


def _together(model: Any, sizes: Sizes, progress: Callable[[], None]) -> list[dict[str, Any]]:
    """Sessions at different places of their segments, joined: a segment long, so that each begins one."""
    length, most = model.config.segment_length, max(sizes.sessions)
    session, separate = Session(model), []
    session.feed(torch.randint(VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(0)))
    for number in range(most):
        ahead = (number + 1) * length // most - number * length // most
        session.feed(torch.zeros(ahead, dtype=torch.int64))
        separate.append(session.fork())
    # those of a few stand as far apart as those of many
    joined = {str(number): Session.join(separate[:: most // number][:number]) for number in sizes.sessions}
    del separate
    calls = {name: session.generate(None, seed=0) for name, session in joined.items()}
    times = alternate(calls, sizes.segments * length, progress)
    rows = []
    for number in sizes.sessions:
        tokens = times[str(number)]
        segments = [sum(tokens[start : start + length]) for start in range(0, len(tokens), length)]
        rows.append({"sessions": number, "tokens_a_second": number * length / statistics.median(segments)})
    return rows


def _session_against_hand(model: Any, num_segments: int, progress: Callable[[], None]) -> dict[str, Any]:
    """The same ids by Session and by the model's own methods, in turns."""
    length = model.config.segment_length
    ids: dict[str, list[int]] = {"session": [], "by_hand": []}
    calls = {
        "session": map(ids["session"].append, Session(model).generate(None, temperature=0)),
        "by_hand": map(ids["by_hand"].append, map(int, _generate_by_hand(model))),
    }
    times = alternate(calls, num_segments * length, progress)
    if ids["session"] != ids["by_hand"]:
        raise RuntimeError("Session and the bare model calls generate different ids")
    session, by_hand = (statistics.median(times[name]) for name in ids)
    return {"session_seconds": session, "by_hand_seconds": by_hand, "overhead": session / by_hand - 1}


def _generate_by_hand(model: Any) -> Iterator[Tensor]:
    """The likeliest ids, with nothing around the model: one document, from its beginning."""
    length = model.config.segment_length
    source = torch.tensor([[BOS] + [PAD] * (length - 1)])
    token, tokens = torch.tensor([[BOS]]), []
    with torch.no_grad():
        state = model.initial_state(1)
    while True:
        for place in range(length):
            with torch.no_grad():  # not around a yield: it would hold for the caller too
                if place == 0:
                    cache = model.begin(source, state)
                hidden = model.extend(cache, token, Places(torch.tensor([[place]]), place + 1))
                token = model.embedding.logits(hidden)[:, -1:].argmax(-1)
                tokens.append(token)
                if place + 1 == length:
                    state, source, tokens = model.finish(cache), torch.cat(tokens, dim=1), []
            yield token


def alternate(
    calls: Mapping[str, Iterator[Any]], count: int, progress: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Take `count` items from each, in turns, there and back: the seconds of every one."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls.items())
    gc.collect()
    for _ in range(count):
        order.reverse()
        for name, items in order:
            start = time.perf_counter()
            next(items)
            times[name].append(time.perf_counter() - start)
        progress()
    return times


def _tables(rows: Sequence[dict[str, Any]], together: Sequence[dict[str, Any]]) -> Iterator[Table]:
    speeds = Table("position", "model", "tokens/s", "a token", "new segment", "reading", title="one document")
    sizes = Table("position", "model", "state", "fork", "copies", title="what a document holds")
    for row in rows:
        place = f"{row['position']:,}", row["model"]
        speeds.add_row(
            *place,
            f"{row['tokens_a_second']:.1f}",
            f"{1000 * row['seconds_a_token']:.1f} ms",
            f"{1000 * row['seconds_to_begin_a_segment']:.0f} ms",
            f"{row['reading_tokens_a_second']:,.0f}/s",
        )
        bytes_ = f"{row['state_bytes'] / 1e6:,.1f} MB", f"{row['fork_bytes'] / 1e6:,.1f} MB"
        sizes.add_row(*place, bytes_[0], f"{1000 * row['fork_seconds']:.1f} ms", bytes_[1])
    yield speeds
    yield sizes
    batch = Table("sessions", "tokens/s in all", "each", title="Memformer, sessions together")
    for row in together:
        speed = row["tokens_a_second"]
        batch.add_row(str(row["sessions"]), f"{speed:.1f}", f"{speed / row['sessions']:.1f}")
    yield batch


def _curves(rows: Sequence[dict[str, Any]]) -> dict[str, dict[int, tuple[float, float]]]:
    """For each model, position to tokens a second and bytes."""
    curves: dict[str, dict[int, tuple[float, float]]] = {name: {} for name in LAYERS}
    for row in rows:
        curves[row["model"]][row["position"]] = row["tokens_a_second"], row["state_bytes"]
    return curves
