"""The fields about the vocabulary that all configs share, and the embedding they ask for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from memformer_torch.nn.adaptive import AdaptiveEmbedding, check_cutoffs
from memformer_torch.nn.embedding import Embedding
from memformer_torch.nn.sizes import check_types


@dataclass(frozen=True, kw_only=True)
class VocabularyConfig:
    """What every model's config begins with."""

    vocab_size: int
    """Number of token ids."""
    cutoffs: tuple[int, ...] = ()
    """Vocabulary sizes at which clusters end, for large vocabularies sorted by frequency: 20000, 40000, 200000 suits 267,735
    words. Each cluster is a quarter as wide as the one before. () means one table."""

    def __post_init__(self) -> None:
        check_types(self)
        check_cutoffs(self.cutoffs, self.vocab_size)
        object.__setattr__(self, "cutoffs", tuple(self.cutoffs))  # JSON and YAML know lists only


def make_embedding(vocab_size: int, d_model: int, cutoffs: Sequence[int] = ()) -> Embedding | AdaptiveEmbedding:
    """One table, or one a cluster."""
    return AdaptiveEmbedding(vocab_size, d_model, cutoffs) if cutoffs else Embedding(vocab_size, d_model)


class LargeVocabularyOnly:
    """A method that a model offers only if its config has `cutoffs`; without them its logits are small, and `forward` does."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def __get__(self, model: Any, owner: type) -> Any:
        if model is None:
            return self
        if not model.config.cutoffs:
            raise AttributeError(f"{owner.__name__} offers {self.method.__name__} only with cutoffs")
        return self.method.__get__(model, owner)
