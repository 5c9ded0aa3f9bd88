"""The models, by name. All obey one contract: see `memformer_torch.types`."""

from memformer_torch.models.memformer import Memformer, MemformerConfig

MODELS = {"memformer": (MemformerConfig, Memformer)}
