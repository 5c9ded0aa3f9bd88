"""FLOPs: the counter and the formulas are two ways to one number."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from memformer_torch.bench.flops import FORMULAS, KERNELS, Sizes, count_flops, head_flops, segment_flops
from memformer_torch.models import MODELS, PRESETS
from memformer_torch.types import Segment

WIDE = {"vocab_size": 50, "d_model": 16, "num_heads": 2, "d_ff": 24, "segment_length": 6}
DEEP = WIDE | {"num_layers": 3}
MEMFORMER = WIDE | {"num_encoder_layers": 2, "num_decoder_layers": 3, "num_slots": 5}
COMPRESSIVE = DEEP | {"memory_length": 8, "compressed_length": 3, "compression_ratio": 2}
CUTOFFS = {"cutoffs": (20, 30)}
CONFIGS = [
    ("memformer", MEMFORMER),
    ("memformer", MEMFORMER | {"num_slots": 0}),
    ("memformer", MEMFORMER | {"decoder_reads": "encoder+memory", "num_writer_heads": 1, "num_cls_tokens": 3}),
    ("memformer", MEMFORMER | CUTOFFS),
    ("transformer-xl", DEEP | {"memory_length": 8}),
    ("transformer-xl", DEEP | {"memory_length": 0, **CUTOFFS}),
    ("compressive", COMPRESSIVE),
    ("compressive", COMPRESSIVE | {"compression_ratio": 4}),
    ("compressive", COMPRESSIVE | {"compression": "mean"}),
    ("compressive", COMPRESSIVE | {"compression": "most_attended"}),
    ("compressive", COMPRESSIVE | {"compressed_length": 0}),
    ("decoder", DEEP),
    ("lstm", {"vocab_size": 50, "d_model": 16, "hidden_size": 12, "num_layers": 1, "segment_length": 6}),
    ("lstm", {"vocab_size": 50, "d_model": 16, "hidden_size": 12, "num_layers": 3, "segment_length": 6} | CUTOFFS),
    ("rmt", DEEP | {"num_memory_tokens": 4}),
]


def segment(batch, source, target, largest=20):
    return Segment(torch.randint(largest, (batch, source)), torch.randint(largest, (batch, target)))


@pytest.mark.parametrize(("batch", "dtype"), [(1, torch.float32), (3, torch.float64)])
@pytest.mark.parametrize(("name", "changes"), CONFIGS)
@torch.no_grad()
def test_the_formula_is_the_count(name, changes, batch, dtype):
    config_class, model_class = MODELS[name]
    model = model_class(config_class(**changes)).to(dtype).eval()
    state, read = model.initial_state(batch), 0
    for source, target in [(6, 6), (6, 5), (4, 6), (6, 1), (6, 6)]:
        given, before, sizes = segment(batch, source, target), state, Sizes(batch, source, target, read)
        assert count_flops(lambda: model(given, before)) == segment_flops(name, model.config, sizes)  # noqa: B023
        state, read = model.advance(given, state), read + target


@torch.no_grad()
def test_the_formula_at_the_papers_image_sizes():
    for name, (config_class, model_class) in MODELS.items():
        model = model_class(config_class(**PRESETS["image"][name])).eval()
        counted = count_flops(lambda: model(segment(2, 14, 14), model.initial_state(2)))  # noqa: B023
        assert counted == segment_flops(name, model.config, Sizes(2, 14, 14))
    assert set(FORMULAS) == set(MODELS)


@torch.no_grad()
def test_rare_words_at_the_input_cost_little():
    config_class, model_class = MODELS["memformer"]
    changes = {"vocab_size": 2000, "cutoffs": (500, 1000), "d_model": 128, "segment_length": 32}
    model = model_class(config_class(**changes)).eval()
    counted = count_flops(lambda: model(segment(1, 32, 32, largest=2000), model.initial_state(1)))
    formula = segment_flops("memformer", model.config, Sizes(1, 32, 32))
    assert formula < counted < 1.01 * formula


def test_the_head_is_what_logits_cost():
    for cutoffs in ((), (20,), (20, 30, 40)):
        config_class, model_class = MODELS["lstm"]
        model = model_class(config_class(vocab_size=50, d_model=24, cutoffs=cutoffs))
        assert count_flops(lambda: model.embedding.logits(torch.randn(2, 3, 24))) == head_flops(model.config, 6)  # noqa: B023


@pytest.mark.parametrize("mask", [None, torch.ones(4, 6, dtype=torch.bool), torch.zeros(2, 1, 4, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused_attention_counts_as_what_it_computes(mask, dtype):
    mask = mask.to(dtype) if mask is not None and mask.is_floating_point() else mask
    query, key, value = (torch.randn(2, 3, n, 8, dtype=dtype, requires_grad=True) for n in (4, 6, 6))

    def attend():
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    product = 2 * 2 * 3 * 4 * 6 * 8
    with torch.no_grad():
        assert count_flops(attend) == 2 * product
    assert count_flops(lambda: attend().sum().backward()) == (2 + 5) * product  # backward makes the scores again
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # plain products, which torch counts itself
        assert count_flops(attend) == 2 * product
        assert count_flops(lambda: attend().sum().backward()) == (2 + 4) * product


def test_the_lstms_kernel_counts_as_its_products():
    counts = {}
    for dtype in (torch.float32, torch.float64):  # a kernel of its own, and plain products
        layer = torch.nn.LSTM(8, 12, 2, batch_first=True).to(dtype)
        x, hidden, cell = (
            torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in ((3, 5, 8), (2, 3, 12), (2, 3, 12))
        )
        forward = count_flops(lambda: layer(x, (hidden, cell)))  # noqa: B023
        counts[dtype] = forward, count_flops(lambda: layer(x, (hidden, cell))[0].sum().backward())  # noqa: B023
    assert counts[torch.float32] == counts[torch.float64]


@pytest.mark.parametrize("name", MODELS)
def test_torchs_counter_agrees_where_it_knows_the_kernels(name):
    config_class, model_class = MODELS[name]
    model = model_class(config_class(vocab_size=50, segment_length=6))

    def train():
        model(segment(2, 6, 6), model.initial_state(2)).logits.sum().backward()

    with FlopCounterMode(display=False, custom_mapping=KERNELS) as counter:
        train()
    assert count_flops(train) == counter.get_total_flops() > 0


@pytest.mark.parametrize("name", MODELS)
def test_inference_mode_counts_alike(name):
    config_class, model_class = MODELS[name]
    model = model_class(config_class(vocab_size=50, segment_length=6)).eval()
    with torch.inference_mode():
        counted = count_flops(lambda: model(segment(2, 6, 6), model.initial_state(2)))
    assert counted == segment_flops(name, model.config, Sizes(2, 6, 6))
