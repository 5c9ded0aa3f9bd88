"""One segment of a Memformer, seen from inside: what its slots take, how far they move, who reads them.

The model itself does the reading (`advance`); hooks see what its writer and readers are given, and the attention is computed
from that with their own weights. What this implies is compared with what the model did, each time, so that the analysis cannot
drift from the model without an error.
"""

# Shape letters: B batch, S source tokens, C classification tokens, L = S + C, K slots, D width, H the writer's heads,
# Y encoder layers, G the readers' heads

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memformer_torch.models.memformer import Memformer, MemformerState
from memformer_torch.nn.attention import CrossAttention, merge_heads, split_heads
from memformer_torch.nn.memory import MemoryWriter
from memformer_torch.types import Segment

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
"""How far what is implied may be from what the model does. In single precision trained models are within 2e-7 for the memory
and 6e-7 for the reading; wild ones, with weights times 8, within 3e-6."""

Reading = Literal["mean", "tokens"]


class Look(NamedTuple):
    state: MemformerState
    """After the segment: what `model.advance` gives."""
    own: Tensor
    """(B, H, K): the weight that a slot gives itself in the write."""
    tokens: Tensor
    """(B, H, K, L): the weights that it gives the tokens, classification tokens last; 0 at padding."""
    entropy: Tensor
    """(B, H, K): of those 1 + L weights, in nats."""
    moved: Tensor
    """(B, K): the angle between a slot before and after, in radians."""
    forgetting_cosine: Tensor
    """(B, K): between v_bias and the slot that it is added to."""
    reading: Tensor
    """(B, Y, G, K): the weight that a layer's real tokens give each slot on average; or (B, Y, G, L, K), of each token."""


def check(model: Any) -> None:
    """Raise a ValueError for a model without slots."""
    if not isinstance(model, Memformer):
        raise ValueError(f"slots are a Memformer's, but this model is a {type(model).__name__}")
    if not model.config.num_slots:
        raise ValueError("this Memformer has no memory (num_slots is 0): there are no slots to look at")


@torch.no_grad()
def look(model: Memformer, segment: Segment, state: MemformerState, reading: Reading = "mean") -> Look:
    """Let a model read a segment, without dropout, and see what its slots do; the state that comes back is the model's own.

    Other threads may use a model in evaluation mode meanwhile: what they do is not seen.
    """
    check(model)
    written: list[tuple[Tensor, Tensor, Tensor | None]] = []
    read: list[Tensor] = []

    def on_write(_: nn.Module, given: Any, __: Tensor) -> None:
        written.append(given)

    def on_read(module: nn.Module, given: Any, output: Tensor) -> None:
        read.append(_reading_attention(cast(CrossAttention, module), given[0], given[1], output))

    readers = [cast(nn.Module, layer.read) for layer in model.encoder]
    with _hooks({model.writer: on_write} | dict.fromkeys(readers, on_read)), _evaluating(model):
        after = model.advance(segment, state)
    if len(written) != 1 or len(read) != len(readers):
        raise RuntimeError(f"a segment was written {len(written)} times and read {len(read)} times: the model has changed")
    slots, hidden, mask = written[0]
    own, tokens, taken = _writer_attention(model.writer, slots, hidden, mask)
    scale = model.config.d_model**0.5  # inside writer and reader, slots count so many times
    before, left = slots / scale, taken / scale
    _compare(model.forgetting(left), after.memory, "memory")
    return Look(
        state=after,
        own=own,
        tokens=tokens,
        entropy=torch.special.entr(torch.cat([own[..., None], tokens], dim=-1)).sum(-1),
        moved=angle(before, after.memory),
        forgetting_cosine=F.cosine_similarity(left, model.forgetting.bias, dim=-1),
        reading=_over_tokens(torch.stack(read, dim=1), mask, reading),
    )


def angle(one: Tensor, other: Tensor) -> Tensor:
    """Between vectors (..., D), in radians; unlike the arc cosine, exact where it is small too."""
    one, other = F.normalize(one, dim=-1), F.normalize(other, dim=-1)
    return 2 * torch.atan2((one - other).norm(dim=-1), (one + other).norm(dim=-1))


def _writer_attention(
    writer: MemoryWriter, slots: Tensor, hidden: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Equations 4 to 8, written out: weights on itself (B, H, K), on the tokens (B, H, K, L), and what it takes (B, K, D)."""

    def project(x: Tensor, weight: Tensor) -> Tensor:
        return split_heads(F.linear(x, weight), writer.num_heads)

    w_query, w_key, w_value = writer.query_key_value.weight.chunk(3)
    query = project(slots, w_query)
    own_score = (query * project(slots, w_key)).sum(-1, keepdim=True)
    scores = query @ project(hidden, w_key).transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = (torch.cat([own_score, scores], dim=-1) * writer.scale).softmax(-1)
    own, tokens = weights[..., 0], weights[..., 1:]
    taken = own[..., None] * split_heads(slots, writer.num_heads) + tokens @ project(hidden, w_value)
    return own, tokens, merge_heads(taken)


def _reading_attention(reader: CrossAttention, x: Tensor, key_value: tuple[Tensor, Tensor], output: Tensor) -> Tensor:
    """Equations 1 to 3: the weights that tokens give the slots, (B, G, L, K)."""
    query, (key, value) = split_heads(reader.query(x), reader.num_heads), key_value
    weights = (query @ key.transpose(-1, -2) * key.shape[-1] ** -0.5).softmax(-1)
    _compare(reader.out(merge_heads(weights @ value)), output, "reading")
    return weights


def _over_tokens(weights: Tensor, mask: Tensor | None, reading: Reading) -> Tensor:
    """Reading attention (B, Y, G, L, K) without that of padding, which reads for nobody; or its mean over real tokens."""
    number: Tensor | int = weights.shape[3]
    if mask is not None:
        real = mask[:, 0, 0]  # (B, L)
        weights = weights * real[:, None, None, :, None]
        number = real.sum(1)[:, None, None, None]
    return weights if reading == "tokens" else weights.sum(3) / number


def _compare(implied: Tensor, actual: Tensor, what: str) -> None:
    """Raise an error if what is written out here is not what the model computes."""
    if not actual.isfinite().all():
        raise ValueError(f"the model's {what} is not finite: its weights are damaged, or its training went astray")
    difference = float((implied - actual).abs().max() / actual.abs().max().clamp(min=1))
    if not difference <= TOLERANCE.get(actual.dtype, 0.05):
        raise RuntimeError(f"the analysis gives a {what} that is {difference:.1e} from the model's: it must follow the model")


@contextmanager
def _hooks(hooks: dict[nn.Module, Callable[..., None]]) -> Iterator[None]:
    thread = threading.get_ident()

    def mine(hook: Callable[..., None]) -> Callable[..., None]:
        return lambda *given: hook(*given) if threading.get_ident() == thread else None

    handles = [module.register_forward_hook(mine(hook)) for module, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout, and afterwards in the mode it was in."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()
