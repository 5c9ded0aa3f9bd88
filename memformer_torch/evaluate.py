"""The state carried through a split: cross-entropy, perplexity, bits a token."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from memformer_torch.data import Stream
from memformer_torch.losses import count_tokens, segment_loss
from memformer_torch.types import BOS, PAD, Segment


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    loss: float
    """Mean cross-entropy a token, in nats."""
    tokens: int
    seconds: float

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    @property
    def bits(self) -> float:
        """Bits a token: bits a character for bytes, bits a pixel for images."""
        return self.loss / math.log(2)


@torch.no_grad()
def evaluate(
    model: Any,
    stream: Stream,
    device: torch.device,
    max_tokens: int | None = None,
    progress: Callable[[int], None] | None = None,
    sum_over_ranks: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
) -> Evaluation:
    """Read a split from its start, in evaluation mode; `max_tokens` stops early, at a segment's end."""
    training = model.training
    model.eval()
    start, state = time.perf_counter(), None
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for segment in stream:
        segment = segment.to(device)
        state = model.initial_state(len(segment.source)) if state is None else state
        loss, state, _ = segment_loss(model, segment, state)
        count = int(sum_over_ranks(count_tokens(segment.target)))
        total, tokens = total + loss.double().cpu(), tokens + count
        if progress is not None:
            progress(count)
        if max_tokens is not None and tokens >= max_tokens:
            break
    model.train(training)
    return Evaluation(loss=float(sum_over_ranks(total)) / tokens, tokens=tokens, seconds=time.perf_counter() - start)


@torch.no_grad()
def complete(model: Any, prompts: torch.Tensor, length: int, temperature: float = 1.0, seed: int = 0) -> torch.Tensor:
    """Continue documents (B, N) to `length` tokens, (B, length); temperature 0 takes the likeliest token.

    Each token is a pass over its segment: enough for samples during training, and by `forward` and `advance` alone, which
    gather the weights of a model that is sharded; a session's cache goes past them.
    """
    training, size = model.training, model.config.segment_length
    model.eval()
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    ids = torch.zeros(len(prompts), length, dtype=torch.int64)
    ids[:, : prompts.shape[1]] = prompts[:, :length]
    source = torch.full((len(prompts), size), PAD)
    source[:, 0] = BOS
    state = model.initial_state(len(prompts))
    for start in range(0, length, size):
        target = ids[:, start : start + size]  # a view: filled in below
        for n in range(max(0, prompts.shape[1] - start), target.shape[1]):
            segment = Segment(source, target[:, : n + 1]).to(device)
            logits = model(segment, state).logits[:, n].float().cpu()
            if temperature == 0:
                target[:, n] = logits.argmax(-1)
            else:
                target[:, n] = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)[:, 0]
        state = model.advance(Segment(source, target).to(device), state)
        source = target
    model.train(training)
    return ids
