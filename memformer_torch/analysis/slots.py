"""What a Memformer's slots do while it reads a document: arrays (the paper's section "Memory Writer Analysis").

`collect(model, ids)` reads a document from its start and hands back `Slots`, which can be saved; `watch` yields segment by
segment, for ever if need be.
"""

# Shape letters: T segments, S source tokens, C classification tokens, K slots, D width, H the writer's heads,
# Y encoder layers, G the readers' heads

import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from memformer_torch.analysis.look import Look, Reading, check, look
from memformer_torch.models.memformer import Memformer, MemformerState
from memformer_torch.types import BOS, PAD, Segment

TYPES = ("keep", "mix", "take")
KEEP = 0.8
"""A slot keeps if it gives itself this share of its attention or more (mean over the heads)."""
TAKE = 0.2
"""A slot takes if it gives itself this share or less; between the two it mixes."""
MAX_SEGMENTS = 4096
MOST_BYTES = 2 << 30
"""Of all arrays of a document."""


def slot_types(own: np.ndarray, keep: float = KEEP, take: float = TAKE) -> np.ndarray:
    """The type of each slot, an index into TYPES, (..., K), from the weight that it gives itself, (..., H, K)."""
    if not 0 <= take < keep <= 1:
        raise ValueError(f"a slot takes up to {take} and keeps from {keep}, but must be 0 <= take < keep <= 1")
    share = own.mean(axis=-2)
    return np.where(share >= keep, 0, np.where(share <= take, 2, 1)).astype(np.uint8)


@dataclass(frozen=True, kw_only=True, eq=False)
class Slots:
    """A document's slots, segment by segment. Segment 0 is the document's start: BOS alone."""

    source: np.ndarray
    """int64 (T, S): the ids that were read, with BOS and PAD."""
    own: np.ndarray
    """(T, H, K): the weight that a slot gives itself in the write."""
    entropy: np.ndarray
    """(T, H, K): of the writer's attention, in nats."""
    moved: np.ndarray
    """(T, K): the angle between a slot before and after the segment, in radians."""
    types: np.ndarray
    """uint8 (T, K): an index into TYPES."""
    thresholds: np.ndarray
    """(2,): up to which own share a slot takes, and from which it keeps."""
    reading: np.ndarray
    """(T, Y, G, K): the weight a layer's tokens give each slot on average; or (T, Y, G, S + C, K) of each token."""
    forgetting_length: np.ndarray
    """(K,): of what is added to a slot at each write; a slot's own length is 1."""
    forgetting_cosine: np.ndarray
    """(T, K): between v_bias and the slot that it is added to."""
    bias: np.ndarray
    """(K, D): v_bias; divided by its length it is where a slot starts and ends."""
    switches: np.ndarray
    """bool (2,): whether the model adds v_bias, and whether it brings slots back to length 1."""
    tokens: np.ndarray | None = None
    """(T, H, K, S + C): the weights that a slot gives the tokens, classification tokens last; 0 at padding."""
    memory: np.ndarray | None = None
    """(T + 1, K, D): the slots before each segment, and at the end."""

    def __len__(self) -> int:
        return len(self.own)

    @property
    def num_slots(self) -> int:
        return self.own.shape[2]

    @property
    def forgets(self) -> bool:
        return bool(self.switches[0])

    @property
    def on_sphere(self) -> bool:
        return bool(self.switches[1])

    def save(self, path: Path | str) -> None:
        """Write an .npz file with an array of each name."""
        path = Path(path)
        part = path.with_name(path.name + ".part")
        with part.open("wb") as file:
            np.savez_compressed(file, **{name: value for name, value in vars(self).items() if value is not None})
        part.replace(path)


def load(path: Path | str) -> Slots:
    """What `save` wrote; a ValueError if it is damaged or something else."""
    try:
        with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        found = Slots(**arrays)
        _check_shapes(found)
    except FileNotFoundError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is damaged, or not a file of slots ({reason}): run memformer inspect again") from error
    return found


def watch(model: Memformer, ids: Any, reading: Reading = "mean") -> Iterator[tuple[Tensor, MemformerState, Look]]:
    """Read a document of any length from its start, in constant memory: each segment's source (1, S), the state before, a Look.

    Each segment is read as the source of a step, the last one too, which a model that only predicts would not read.
    """
    check(model)
    device, length = model.cls_tokens.device, model.config.segment_length
    with torch.no_grad():
        state = model.initial_state(1)
    ids = ids.cpu() if isinstance(ids, Tensor) else ids
    for start in range(-length, len(ids), length):
        source = torch.full((1, length), PAD, device=device)
        if start < 0:
            source[0, 0] = BOS
        else:
            part = torch.as_tensor(np.asarray(ids[start : start + length]).astype(np.int64))
            source[0, : len(part)] = part.to(device)
        seen = look(model, Segment(source, torch.zeros_like(source[:, :1])), state, reading)
        yield source, state, seen
        state = seen.state


def collect(
    model: Memformer,
    ids: Any,
    *,
    tokens: bool = True,
    memory: bool = True,
    reading: Reading = "mean",
    keep: float = KEEP,
    take: float = TAKE,
    max_segments: int = MAX_SEGMENTS,
    dtype: Any = None,
    progress: Callable[[], None] = lambda: None,
) -> Slots:
    """What happens to the slots while a document of ids is read.

    Args:
        model: A Memformer with slots; its mode stays as it is, but it reads without dropout.
        ids: A sequence, array or tensor of ids, which may be memory-mapped.
        tokens: Keep the weights on each token: K (S + C) numbers a head and segment.
        memory: Keep the slots themselves: K D numbers a segment.
        reading: "mean" over a segment's tokens, or of all its "tokens".
        keep: The share of attention on itself from which on a slot keeps.
        take: That up to which it takes.
        max_segments: A longer document is a ValueError: what is kept grows with it. `watch` has no limit.
        dtype: Of the arrays; None means the model's.
        progress: Called after each segment.
    """
    check(model)
    slot_types(np.zeros((1, 1)), keep, take)
    if len(ids) == 0:
        raise ValueError("there is nothing to read: the document is empty")
    number, dtype = 1 - (-len(ids) // model.config.segment_length), np.dtype(dtype or _numpy_type(model))
    if number > max_segments:
        raise ValueError(
            f"the document has {number:,} segments, but max_segments is {max_segments:,}: shorten it, or raise that"
        )
    size = number * bytes_a_segment(model, tokens, memory, reading, dtype)
    if size > MOST_BYTES:
        raise ValueError(
            f"{number:,} segments take {size / 1e9:.1f} GB, above {MOST_BYTES / 1e9:.1f}: shorten the document, or leave out "
            "tokens, memory or the reading of each token"
        )
    names = ("own", "entropy", "moved", "forgetting_cosine", "reading", *(["tokens"] if tokens else []))
    rows: dict[str, list[np.ndarray]] = {name: [] for name in ("source", *names)}
    memories: list[np.ndarray] = []
    for source, state, seen in watch(model, ids, reading):
        rows["source"].append(source[0].cpu().numpy())
        for name in names:
            rows[name].append(_array(getattr(seen, name)[0], dtype))
        if memory:
            memories = memories or [_array(state.memory[0], dtype)]
            memories.append(_array(seen.state.memory[0], dtype))
        progress()
    arrays = {name: np.stack(rows.pop(name)) for name in list(rows)}  # one at a time is there twice
    forgetting, bias = model.forgetting, _array(model.forgetting.bias, dtype)
    return Slots(
        **arrays,
        types=slot_types(arrays["own"], keep, take),
        thresholds=np.array([take, keep]),
        forgetting_length=np.linalg.norm(bias, axis=-1) * forgetting.add_bias,
        bias=bias,
        switches=np.array([forgetting.add_bias, forgetting.normalize]),
        memory=np.stack(memories) if memory else None,
    )


def bytes_a_segment(
    model: Memformer, tokens: bool = True, memory: bool = True, reading: Reading = "mean", dtype: Any = np.float32
) -> int:
    """Bytes that a segment adds to what `collect` keeps."""
    config = model.config
    slots, length, heads = config.num_slots, config.segment_length + config.num_cls_tokens, model.writer.num_heads
    numbers = slots * (2 * heads + 2 + config.num_encoder_layers * config.num_heads * (length if reading == "tokens" else 1))
    numbers += slots * heads * length * tokens + slots * config.d_model * memory
    return numbers * np.dtype(dtype).itemsize


def _array(tensor: Tensor, dtype: Any) -> np.ndarray:
    return tensor.detach().cpu().double().numpy().astype(dtype)  # numpy has no bfloat16


def _numpy_type(model: Memformer) -> Any:
    return np.float64 if model.cls_tokens.dtype == torch.float64 else np.float32


def _check_shapes(found: Slots) -> None:
    """Raise a ValueError unless the arrays fit one another."""
    segments, heads, slots = found.own.shape
    length, (_, width) = found.source.shape[1], found.bias.shape
    wanted: dict[str, tuple[int, ...]] = {
        "source": (segments, length),
        "entropy": (segments, heads, slots),
        "moved": (segments, slots),
        "types": (segments, slots),
        "thresholds": (2,),
        "forgetting_length": (slots,),
        "forgetting_cosine": (segments, slots),
        "bias": (slots, width),
        "switches": (2,),
        "memory": (segments + 1, slots, width),
    }
    for name, shape in wanted.items():
        array = getattr(found, name)
        if array is not None and array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, not {shape}")
    reading, tokens = found.reading.shape, found.tokens
    if len(reading) not in (4, 5) or (reading[0], reading[-1]) != (segments, slots):
        raise ValueError(f"reading has shape {reading}")
    if tokens is not None and (tokens.shape[:3] != (segments, heads, slots) or tokens.shape[3] < length):
        raise ValueError(f"tokens has shape {tokens.shape}")
    if (found.types >= len(TYPES)).any():
        raise ValueError("types holds a type that there is not")
