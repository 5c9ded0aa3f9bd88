"""A golden loss a model: 20 updates on a fixed text. A refactoring must not move it; a change that means to says so here."""

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from memformer_torch import BOS, PAD, Segment, mrbp
from memformer_torch.models import MODELS

TEXT = "a slot attends to itself and to the tokens; what it does not hold it forgets, and the norm keeps it on the sphere. " * 3
SIZES = {"vocab_size": 128, "d_model": 16, "segment_length": 8, "dropout": 0.1}
BLOCKS = SIZES | {"num_heads": 2, "d_ff": 32}
CONFIGS = {
    "memformer": BLOCKS | {"num_encoder_layers": 2, "num_decoder_layers": 2, "num_slots": 4},
    "transformer-xl": BLOCKS | {"num_layers": 2, "memory_length": 12},
    "compressive": BLOCKS | {"num_layers": 2, "memory_length": 8, "compressed_length": 4, "compression_ratio": 4},
    "decoder": BLOCKS | {"num_layers": 2, "max_length": 40},
    "lstm": SIZES | {"num_layers": 2, "hidden_size": 16},
    "rmt": BLOCKS | {"num_layers": 2, "num_memory_tokens": 2},
}
GOLDEN = {
    "memformer": 3.456344,
    "transformer-xl": 3.536993,
    "compressive": 3.536485,
    "decoder": 3.698572,
    "lstm": 4.119887,
    "rmt": 3.704115,
}


def test_every_model_has_one():
    assert set(GOLDEN) == set(CONFIGS) == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_golden_loss(name):
    torch.manual_seed(0)
    config, model = MODELS[name]
    model = model(config(**CONFIGS[name])).double().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ids = torch.tensor(list(TEXT.encode())).unfold(0, 8, 8)  # (segments, 8)
    losses = []
    for update in range(20):
        start = update % 4 * 4
        begin = torch.full((2, 8), PAD)
        begin[:, 0] = BOS
        rows = torch.stack([ids[start : start + 4], ids[start + 16 : start + 20]], dim=1)  # 4 segments of 2 lanes
        segments = [Segment(source, target) for source, target in zip([begin, *rows], rows, strict=False)]
        loss, _ = mrbp(model, segments, model.initial_state(2))
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]
    assert losses[-1] == pytest.approx(GOLDEN[name], abs=1e-4)
