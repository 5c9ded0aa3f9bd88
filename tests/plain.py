"""Memformer written out from the paper's equations: loops over samples, slots, heads and positions, no fused kernel.

It takes its weights from a `Memformer` by name and shares no code with it.
"""

import math

import torch
from torch import Tensor

from memformer_torch import BOS, IGNORE, PAD, Memformer, Segment


def softmax_average(scores: list[Tensor], values: list[Tensor]) -> Tensor:
    """sum_j exp(scores_j) values_j / sum_j exp(scores_j)."""
    weights = torch.stack([torch.exp(score - max(scores)) for score in scores])
    return (weights / weights.sum()) @ torch.stack(values)


def write_slot(
    slot: Tensor, tokens: Tensor, weights: tuple[Tensor, Tensor, Tensor], num_heads: int, temperature: float
) -> Tensor:
    """Equations 4 to 8 for one slot (D,) and the real tokens (L, D) of its sample."""
    w_query, w_key, w_value = weights
    query, own_key = w_query @ slot, w_key @ slot  # eq. 4
    width = len(slot) // num_heads
    heads = []
    for h in range(num_heads):
        part = slice(h * width, (h + 1) * width)
        scores = [query[part] @ own_key[part] / math.sqrt(width) / temperature]  # eq. 6, 7
        values = [slot[part]]
        for token in tokens:
            scores.append(query[part] @ (w_key @ token)[part] / math.sqrt(width) / temperature)  # eq. 5
            values.append((w_value @ token)[part])
        heads.append(softmax_average(scores, values))  # eq. 8
    return torch.cat(heads)


def forget(slot: Tensor, bias: Tensor) -> Tensor:
    """Section 3.4.3."""
    moved = slot + bias
    return moved / (moved * moved).sum().sqrt()


def turn(x: Tensor, position: int) -> Tensor:
    """Rotate the pairs (x_0, x_1), (x_2, x_3), ... of one head's vector by the position's angles."""
    out = x.clone()
    for i in range(0, len(x), 2):
        angle = position * 10_000.0 ** (-i / len(x))
        out[i] = x[i] * math.cos(angle) - x[i + 1] * math.sin(angle)
        out[i + 1] = x[i + 1] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def attend(queries: Tensor, keys: Tensor, values: Tensor, num_heads: int, q_at=None, k_at=None, causal=False) -> Tensor:
    """Multi-head attention of (L, D) to (N, D); positions turn queries and keys where given."""
    width = queries.shape[1] // num_heads
    rows = []
    for i, query in enumerate(queries):
        heads = []
        for h in range(num_heads):
            part = slice(h * width, (h + 1) * width)
            seen = range(i + 1) if causal else range(len(keys))
            q = query[part] if q_at is None else turn(query[part], q_at[i])
            ks = [keys[j][part] if k_at is None else turn(keys[j][part], k_at[j]) for j in seen]
            heads.append(softmax_average([q @ k / math.sqrt(width) for k in ks], [values[j][part] for j in seen]))
        rows.append(torch.cat(heads))
    return torch.stack(rows)


def layer_norm(x: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def feed_forward(x: Tensor, branch) -> Tensor:
    hidden = x @ branch.expand.weight.T + branch.expand.bias
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
    return hidden @ branch.out.weight.T + branch.out.bias


def project(x: Tensor, linear, parts: int) -> list[Tensor]:
    biases = [0.0] * parts if linear.bias is None else linear.bias.chunk(parts)
    return [x @ w.T + bias for w, bias in zip(linear.weight.chunk(parts), biases, strict=True)]


def self_attend(x: Tensor, attention, positions: list[int], causal: bool) -> Tensor:
    query, key, value = project(x, attention.query_key_value, 3)
    return attend(query, key, value, attention.num_heads, positions, positions, causal) @ attention.out.weight.T


def cross_attend(x: Tensor, context: Tensor, attention, x_at=None, context_at=None) -> Tensor:
    (query,), (key, value) = project(x, attention.query, 1), project(context, attention.key_value, 2)
    return attend(query, key, value, attention.num_heads, x_at, context_at) @ attention.out.weight.T


def plain_step(model: Memformer, segment: Segment, memory: Tensor) -> tuple[list[Tensor], Tensor]:
    """One step without dropout: for each sample the logits of its real targets, and the next memory (B, K, D)."""
    return_logits, return_memory = [], []
    for b in range(len(memory)):
        source = [i for i in segment.source[b].tolist() if i != PAD]
        target = [i for i in segment.target[b].tolist() if i != IGNORE]
        slots = memory[b]
        if segment.reset is not None and segment.reset[b] and model.config.num_slots:
            slots = torch.stack([bias / bias.norm() for bias in model.forgetting.bias])
        logits, slots = _plain_sample(model, source, target, slots)
        return_logits.append(logits)
        return_memory.append(slots)
    return return_logits, torch.stack(return_memory)


def _plain_sample(model: Memformer, source: list[int], target: list[int], memory: Tensor) -> tuple[Tensor, Tensor]:
    config, scale = model.config, math.sqrt(model.config.d_model)

    def embed(i: int) -> Tensor:
        return (model.embedding.bos if i == BOS else model.embedding.weight[i]) * scale

    slots = memory * scale
    x = torch.stack([embed(i) for i in source] + list(model.cls_tokens))
    positions = [*range(-len(source), 0), *([0] * config.num_cls_tokens)]
    for layer in model.encoder:
        x = x + self_attend(layer_norm(x, layer.norm_attention), layer.attention, positions, causal=False)
        if config.num_slots:
            x = x + cross_attend(layer_norm(x, layer.norm_read), slots, layer.read)
        x = x + feed_forward(layer_norm(x, layer.norm_feed_forward), layer.feed_forward)
    tokens = layer_norm(x, model.norm_encoder)

    if config.num_slots:
        w_query, w_key, w_value = model.writer.query_key_value.weight.chunk(3)
        new = []
        for slot, bias in zip(slots, model.forgetting.bias, strict=True):
            slot = write_slot(slot, tokens, (w_query, w_key, w_value), model.writer.num_heads, config.temperature) / scale
            if config.forgetting and config.memory_norm:
                slot = forget(slot, bias)
            elif config.memory_norm:
                slot = slot / slot.norm()
            elif config.forgetting:
                slot = slot + bias
            new.append(slot)
        memory = torch.stack(new)

    encoded, ahead = tokens[: len(source)], list(range(len(target)))
    x = torch.stack([embed(i) for i in [source[-1], *target[:-1]]]) if target else tokens[:0]
    for layer in model.decoder if target else []:
        x = x + self_attend(layer_norm(x, layer.norm_attention), layer.attention, ahead, causal=True)
        x = x + cross_attend(layer_norm(x, layer.norm_source), encoded, layer.source, ahead, positions[: len(source)])
        if config.decoder_reads == "encoder+memory":
            x = x + cross_attend(layer_norm(x, layer.norm_read), memory * scale, layer.read)
        x = x + feed_forward(layer_norm(x, layer.norm_feed_forward), layer.feed_forward)
    return layer_norm(x, model.norm_decoder) @ model.embedding.weight.T, memory
