"""What several test files share: tiny models and random segments that obey the contract."""

import os

import pytest
import torch
from hypothesis import settings

from memformer_torch import BOS, IGNORE, PAD, Memformer, MemformerConfig, Segment

torch.set_num_threads(1)
settings.register_profile("quick", deadline=None, max_examples=15, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

TINY = {
    "vocab_size": 11,
    "d_model": 16,
    "num_heads": 2,
    "d_ff": 24,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "segment_length": 6,
    "num_slots": 5,
    "dropout": 0.0,
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def tiny_memformer(dtype=torch.float64, **changes) -> Memformer:
    return Memformer(MemformerConfig(**(TINY | changes))).to(dtype)


def random_segment(batch_size=3, source=6, target=6, vocab_size=11, padded=False, reset=False, begin=False) -> Segment:
    """Random ids; `padded` gives each row random lengths, `reset` marks random rows, `begin` makes row 0's source BOS."""
    source_ids = torch.randint(vocab_size, (batch_size, source))
    target_ids = torch.randint(vocab_size, (batch_size, target))
    if padded:
        source_ids[torch.arange(source) >= torch.randint(1, source + 1, (batch_size, 1))] = PAD
        target_ids[torch.arange(target) >= torch.randint(0, target + 1, (batch_size, 1))] = IGNORE
    if begin:
        source_ids[0] = PAD
        source_ids[0, 0] = BOS
    return Segment(source_ids, target_ids, torch.rand(batch_size) < 0.5 if reset else None)
