"""Memformer for PyTorch: a Transformer with a fixed-size memory, the algorithm that trains it, and its baselines."""

from memformer_torch.backprop import bptt, checkpointed, mrbp
from memformer_torch.models import (
    LSTM,
    CompressiveTransformer,
    CompressiveTransformerConfig,
    LSTMConfig,
    Memformer,
    MemformerConfig,
    RecurrentMemoryTransformer,
    RecurrentMemoryTransformerConfig,
    TransformerDecoder,
    TransformerDecoderConfig,
    TransformerXL,
    TransformerXLConfig,
)
from memformer_torch.session import Session
from memformer_torch.types import BOS, IGNORE, PAD, Output, Segment

__all__ = [
    "BOS",
    "IGNORE",
    "LSTM",
    "PAD",
    "CompressiveTransformer",
    "CompressiveTransformerConfig",
    "LSTMConfig",
    "Memformer",
    "MemformerConfig",
    "Output",
    "RecurrentMemoryTransformer",
    "RecurrentMemoryTransformerConfig",
    "Segment",
    "Session",
    "TransformerDecoder",
    "TransformerDecoderConfig",
    "TransformerXL",
    "TransformerXLConfig",
    "bptt",
    "checkpointed",
    "mrbp",
]
