"""Memformer for PyTorch: a Transformer with a fixed-size memory, and the algorithm that trains it."""

from memformer_torch.backprop import bptt, checkpointed, mrbp
from memformer_torch.models import Memformer, MemformerConfig
from memformer_torch.types import BOS, IGNORE, PAD, Output, Segment

__all__ = ["BOS", "IGNORE", "PAD", "Memformer", "MemformerConfig", "Output", "Segment", "bptt", "checkpointed", "mrbp"]
