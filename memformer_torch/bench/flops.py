"""FLOPs of a model: counted while it runs, and in closed form from its config.

Two a multiply-add of a product of matrices; whatever goes element by element (norms, softmax, activations) counts nothing.
A score that a mask hides counts as any other, whether or not a kernel skips it.
"""

# Letters in formulas: B batch, S source tokens, T target tokens, N keys, D width, F feed-forward width, V vocabulary

from collections.abc import Callable
from itertools import pairwise
from math import ceil, prod
from typing import Any, NamedTuple

import torch
from torch._C import DispatchKey
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, shape_wrapper

from memformer_torch.nn.adaptive import NARROWEST

Shape = tuple[int, ...]


class FlopCount(TorchDispatchMode):
    """Adds up the FLOPs of what runs inside, by torch's formulas and those of kernels that it does not know.

    torch's FlopCounterMode gives the same, and by module, but takes several times as long over many small operations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        formula, kwargs = _FORMULAS.get(func._overloadpacket), kwargs or {}
        if formula is None and func.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd):
            with self:  # in inference mode an operation comes here before it is taken apart
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=result)
        return result


def count_flops(function: Callable[[], Any]) -> int:
    """What a call takes; an LSTM's kernel on CUDA is not known."""
    with FlopCount() as count:
        function()
    return count.total


def _attention(query: Shape, key: Shape, value: Shape, *others: Any, **named: Any) -> int:
    return 2 * prod(query[:3]) * key[2] * (query[3] + value[3])


def _attention_backward(gradient: Shape, query: Shape, key: Shape, value: Shape, *others: Any, **named: Any) -> int:
    # scores once more, then the gradients of query and key; those of weights and value
    return 2 * prod(query[:3]) * key[2] * (3 * query[3] + 2 * value[3])


def _lstm(x: Shape, from_input: Shape, from_hidden: Shape, *others: Any, **named: Any) -> int:
    return 2 * prod(x[:-1]) * (prod(from_input) + prod(from_hidden))


def _lstm_backward(*shapes: Any, **named: Any) -> int:
    return 2 * _lstm(*shapes)  # for the inputs and for the weights


KERNELS: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    torch.ops.aten.mkldnn_rnn_layer: _lstm,
    torch.ops.aten.mkldnn_rnn_layer_backward: _lstm_backward,
}
_FORMULAS = {**flop_registry, **{kernel: shape_wrapper(formula) for kernel, formula in KERNELS.items()}}


class Sizes(NamedTuple):
    """A segment without padding."""

    batch: int
    source: int
    target: int
    read: int = 0
    """Tokens of the document that were targets before: what a memory or cache holds by now follows from it."""


def segment_flops(name: str, config: Any, sizes: Sizes, head: bool = True) -> int:
    """One forward pass over a segment, with gradients off; without the head, up to what the target is predicted from.

    The count is exact but for adaptive embeddings, whose rare inputs cost a little more: below 1 % at the paper's sizes.
    """
    return FORMULAS[name](config, sizes) + (head_flops(config, sizes.batch * sizes.target) if head else 0)


def head_flops(config: Any, tokens: int) -> int:
    """The logits of the whole vocabulary."""
    d_model = config.d_model
    if not config.cutoffs:
        return _linear(tokens, d_model, config.vocab_size)
    total = _linear(tokens, d_model, config.cutoffs[0] + len(config.cutoffs))
    for index, (start, end) in enumerate(pairwise([*config.cutoffs, config.vocab_size]), start=1):
        width = max(d_model // 4**index, min(d_model, NARROWEST))
        total += _linear(tokens, d_model, width) + _linear(tokens, width, end - start)
    return total


def memformer(config: Any, sizes: Sizes) -> int:
    """Encoder, writer, decoder: what the slots cost does not depend on what was read."""
    (batch, source, target, _), d, slots = sizes, config.d_model, config.num_slots
    tokens = source + config.num_cls_tokens
    encoder = _self_attention(tokens, d) + _feed_forward(tokens, config)
    writer = 0
    if slots:
        encoder += _cross_attention(tokens, slots, d)
        # one key and one channel a head more: a slot's score with itself
        heads = config.num_writer_heads or config.num_heads
        writer = _linear(slots + tokens, d, 2 * d) + _scores(slots, tokens + 1, d + heads)
    decoder = _self_attention(target, d) + _cross_attention(target, source, d) + _feed_forward(target, config)
    if config.decoder_reads == "encoder+memory":
        decoder += _cross_attention(target, slots, d)
    return batch * (config.num_encoder_layers * encoder + writer + config.num_decoder_layers * decoder)


def transformer_xl(config: Any, sizes: Sizes) -> int:
    """Keys and values of memory and segment, positions once for the batch."""
    return config.num_layers * _relative_layer(config, sizes, min(sizes.read, config.memory_length))


def compressive(config: Any, sizes: Sizes) -> int:
    """Transformer-XL, and the compression of the groups that leave the memory."""
    batch, _, target, read = sizes
    if not config.compressed_length:
        return transformer_xl(config, sizes)
    d, ratio = config.d_model, config.compression_ratio
    gone, gone_after = (ceil(max(0, n - config.memory_length) / ratio) for n in (read, read + target))
    compressed = min(gone, config.compressed_length)
    slots = compressed + (config.memory_length if compressed else read)
    layer, num_keys = _relative_layer(config, sizes, slots), slots + target
    if config.compression == "convolution":
        layer += batch * _linear(gone_after - gone, ratio * d, d)
    elif config.compression == "most_attended" and gone_after > gone:  # queries, keys and scores once more
        layer += batch * (_linear(num_keys + target, d, d) + 2 * target * (2 * num_keys + 1) * d)
        layer += _linear(num_keys + 1, d, d)
    return config.num_layers * layer


def transformer_decoder(config: Any, sizes: Sizes) -> int:
    """Queries of the segment against everything read."""
    batch, _, target, read = sizes
    layer = _linear(target, config.d_model, 4 * config.d_model) + _scores(target, read + target, config.d_model)
    return batch * config.num_layers * (layer + _feed_forward(target, config))


def lstm(config: Any, sizes: Sizes) -> int:
    """Four gates from input and hidden state, and the way back to the embedding's width."""
    tokens, hidden, d = sizes.batch * sizes.target, config.hidden_size, config.d_model
    inputs = d + (config.num_layers - 1) * hidden
    return _linear(tokens, inputs + config.num_layers * hidden, 4 * hidden) + _linear(tokens, hidden, d)


def recurrent_memory_transformer(config: Any, sizes: Sizes) -> int:
    """Memory, inputs and memory again; in the last layer what is read needs no queries."""
    batch, _, target, _ = sizes
    d, memory = config.d_model, config.num_memory_tokens
    length = target + 2 * memory

    def rest(queries: int) -> int:
        return _linear(queries, d, 2 * d) + _scores(queries, length, d) + _feed_forward(queries, config)

    keys = config.num_layers * _linear(length, d, 2 * d)
    return batch * (keys + (config.num_layers - 1) * rest(length) + rest(target + memory))


FORMULAS: dict[str, Callable[[Any, Sizes], int]] = {
    "memformer": memformer,
    "transformer-xl": transformer_xl,
    "compressive": compressive,
    "decoder": transformer_decoder,
    "lstm": lstm,
    "rmt": recurrent_memory_transformer,
}
"""Name as in `MODELS` -> the formula of a segment without the head."""


def _linear(tokens: int, d_in: int, d_out: int) -> int:
    return 2 * tokens * d_in * d_out


def _scores(queries: int, keys: int, d: int) -> int:
    """Scores and the sum of values by them, over all heads."""
    return 4 * queries * keys * d


def _feed_forward(tokens: int, config: Any) -> int:
    return 2 * _linear(tokens, config.d_model, config.d_ff)


def _self_attention(tokens: int, d: int) -> int:
    return _linear(tokens, d, 4 * d) + _scores(tokens, tokens, d)


def _cross_attention(tokens: int, keys: int, d: int) -> int:
    return _linear(tokens, d, 2 * d) + _linear(keys, d, 2 * d) + _scores(tokens, keys, d)


def _relative_layer(config: Any, sizes: Sizes, slots: int) -> int:
    """A layer that sees so many slots before its segment."""
    batch, _, target, _ = sizes
    d, num_keys = config.d_model, slots + target
    projections = _linear(target, d, 2 * d) + _linear(num_keys, d, 2 * d)
    scores = _scores(target, num_keys, d) + 2 * target * (num_keys + 1) * d  # by content and, apart, by distance
    return batch * (projections + scores + _feed_forward(target, config)) + _linear(num_keys + 1, d, d)
