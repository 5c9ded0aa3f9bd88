"""The models, by name. All obey one contract: see `memformer_torch.types`."""

from typing import Any

from memformer_torch.models.compressive_transformer import CompressiveTransformer, CompressiveTransformerConfig
from memformer_torch.models.lstm import LSTM, LSTMConfig
from memformer_torch.models.memformer import Memformer, MemformerConfig
from memformer_torch.models.recurrent_memory_transformer import RecurrentMemoryTransformer, RecurrentMemoryTransformerConfig
from memformer_torch.models.transformer_decoder import TransformerDecoder, TransformerDecoderConfig
from memformer_torch.models.transformer_xl import TransformerXL, TransformerXLConfig

MODELS: dict[str, tuple[Any, Any]] = {
    "memformer": (MemformerConfig, Memformer),
    "transformer-xl": (TransformerXLConfig, TransformerXL),
    "compressive": (CompressiveTransformerConfig, CompressiveTransformer),
    "decoder": (TransformerDecoderConfig, TransformerDecoder),
    "lstm": (LSTMConfig, LSTM),
    "rmt": (RecurrentMemoryTransformerConfig, RecurrentMemoryTransformer),
}
"""Name -> (config class, model class)."""

_WIDE = {"d_model": 512, "num_heads": 8, "d_ff": 2048, "segment_length": 128}
_DEEP = _WIDE | {"num_layers": 16}
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "image": {name: {"vocab_size": 256} for name in MODELS},
    "text": {
        "memformer": _WIDE | {"num_encoder_layers": 4, "num_decoder_layers": 16, "num_slots": 1024, "temperature": 0.125},
        "transformer-xl": _DEEP | {"memory_length": 1024},
        "compressive": _DEEP | {"memory_length": 512, "compressed_length": 512, "compression_ratio": 4},
        "decoder": _DEEP | {"max_length": 4096},
        "lstm": {"d_model": 512, "hidden_size": 1024, "num_layers": 4, "segment_length": 128},
        "rmt": _DEEP | {"num_memory_tokens": 16},
    },
}
"""The paper's sizes: "image" (Table 1, the configs' defaults) and "text" (Table 2; `vocab_size` is the corpus's own)."""
