"""The Recurrent Memory Transformer: read before the segment, written after it, and bounded for ever."""

import pytest
import torch

from memformer_torch.models.recurrent_memory_transformer import RecurrentMemoryTransformer, RecurrentMemoryTransformerConfig
from memformer_torch.nn.past import Places
from memformer_torch.types import BOS, IGNORE, Segment
from tests import plain

TINY = {"vocab_size": 11, "d_model": 16, "num_heads": 2, "d_ff": 24, "num_layers": 3, "segment_length": 6}
TINY |= {"num_memory_tokens": 3}


def tiny(dtype=torch.float64, **changes):
    model = RecurrentMemoryTransformer(RecurrentMemoryTransformerConfig(**TINY | changes)).to(dtype).eval()
    for parameter in model.norm_memory.parameters():
        torch.nn.init.normal_(parameter)  # so that it is not mistaken for another norm
    return model


def plain_step(model, inputs, memory):
    """The model written out for one sample: input ids, memory (M, D); logits (L, V) and the next memory."""
    num_memory, length = len(memory), len(inputs)
    tokens = torch.stack([model.embedding.bos if i == BOS else model.embedding.weight[i] for i in inputs])
    x = torch.cat([memory, tokens * model.config.d_model**0.5, memory])
    first = model.config.segment_length
    positions = [*range(-num_memory, length), *range(first, first + num_memory)]
    read, everything = list(range(num_memory)), list(range(len(x)))
    seen = [read] * num_memory + [list(range(num_memory + n + 1)) for n in range(length)] + [everything] * num_memory
    for block in model.blocks:
        normed = plain.layer_norm(x, block.norm_attention)
        key, value = (normed @ weight.T for weight in block.key_value.weight.chunk(2))
        query = normed @ block.query.weight.T
        attended = [
            plain.attend(query[i : i + 1], key[s], value[s], block.num_heads, [positions[i]], [positions[j] for j in s])
            for i, s in enumerate(seen)
        ]
        x = x + torch.cat(attended) @ block.out.weight.T
        x = x + plain.feed_forward(plain.layer_norm(x, block.norm_feed_forward), block.feed_forward)
    logits = plain.layer_norm(x[num_memory:-num_memory], model.norm) @ model.embedding.weight.T
    return logits, plain.layer_norm(x[-num_memory:], model.norm_memory)


@pytest.mark.parametrize("lengths", [[6, 6], [6, 2], [4, 4]])
def test_it_reads_before_and_writes_behind(lengths):
    model, source = tiny(), torch.tensor([[BOS], [4]])
    state = model.initial_state(2)
    with torch.no_grad():
        memories = list(state.memory)
        for _ in range(3):
            target = torch.randint(11, (2, max(lengths)))
            target[torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]] = IGNORE
            logits, state, _ = model(Segment(source, target), state)
            for row, length in enumerate(lengths):
                inputs = [source[row].item(), *target[row, :-1].tolist()][:length]
                wanted, memories[row] = plain_step(model, inputs, memories[row])
                torch.testing.assert_close(logits[row, :length], wanted, rtol=1e-9, atol=1e-9)
                torch.testing.assert_close(state.memory[row], memories[row], rtol=1e-9, atol=1e-9)


def test_the_memory_does_not_grow():
    """Over 1,000 segments its mean square stays that of an embedding, and the initial memory has it too."""
    model = RecurrentMemoryTransformer(RecurrentMemoryTransformerConfig(**TINY)).eval()
    state, sizes = model.initial_state(4), []
    with torch.no_grad():
        for _ in range(1000):
            state = model.advance(Segment(torch.randint(11, (4, 1)), torch.randint(11, (4, 6))), state)
            sizes.append(state.memory.square().mean().item())
    assert max(sizes) < 1.01
    assert min(sizes) > 0.9
    assert 0.5 < model.initial_memory.square().mean() < 1.5


def test_the_initial_memory_is_learned():
    model = tiny()
    model(Segment(torch.full((2, 1), BOS), torch.randint(11, (2, 6))), model.initial_state(2)).logits[:, 0].sum().backward()
    assert model.initial_memory.grad.any()


def test_advance_finishes_the_last_layer_only_where_the_memory_is_written():
    model, widths = tiny(), []
    model.blocks[-1].feed_forward.register_forward_hook(lambda module, arguments, _: widths.append(arguments[0].shape[1]))
    segment = Segment(torch.full((2, 1), BOS), torch.randint(11, (2, 6)))
    model.advance(segment, model.initial_state(2))
    assert widths == [3]
    model(segment, model.initial_state(2))
    assert widths == [3, 3, 6]


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="num_memory_tokens is 0, but must be at least 1"):
        RecurrentMemoryTransformerConfig(**TINY | {"num_memory_tokens": 0})


@torch.no_grad()
def test_a_segment_is_decoded_once():
    """Each layer projects the memory at the beginning and at the end, and every input where it comes."""
    model, widths = tiny(), []
    for block in model.blocks:
        block.key_value.register_forward_hook(lambda module, arguments, _: widths.append(arguments[0].shape[1]))
    cache = model.begin(torch.full((2, 1), BOS), model.initial_state(2))
    for n in range(6):
        model.extend(cache, torch.randint(11, (2, 1)), Places(torch.tensor([[n]]), n + 1))
    first = model.finish(cache).memory
    assert widths == [3] * 3 + [1] * 3 * 6 + [3] * 3
    assert torch.equal(first, model.finish(cache).memory)
