"""Embedding and softmax of a large vocabulary, in clusters by frequency (Grave et al. 2017; Baevski & Auli 2019).

Ids are sorted by frequency, and cutoffs c_1 < c_2 < ... split them into clusters. The first, of the frequent ids, has the
model's width; cluster i has width d / 4^i and a projection to d. The output uses the same tables and projections:

    p(id) = p_head(id)                              in the first cluster
    p(id) = p_head(cluster i) p_i(id)               in cluster i

so that most tokens cost one softmax of c_1 plus a few logits, and no token one of the whole vocabulary.
"""

# Shape letters: B batch, L tokens, N = B L, R tokens in a cluster, D width, W width of a cluster, V vocabulary

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memformer_torch.types import BOS, IGNORE

NARROWEST = 16
"""No cluster is narrower, unless the model is."""


def check_cutoffs(cutoffs: Any, vocab_size: int) -> None:
    """Raise a ValueError unless the cutoffs are whole numbers that increase between 0 and the vocabulary's size."""
    is_list = isinstance(cutoffs, list | tuple) and all(isinstance(cutoff, int) for cutoff in cutoffs)
    if not is_list or (cutoffs and any(start >= end for start, end in pairwise([0, *cutoffs, vocab_size]))):
        raise ValueError(
            f"cutoffs is {cutoffs!r}, but must be a list of whole numbers that increase, above 0 and below vocab_size "
            f"{vocab_size}: an empty one means one table"
        )


class TailCluster(nn.Module):
    """Ids of one cluster behind the first, counted from its start."""

    def __init__(self, num_ids: int, width: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_ids, width) / width**0.5)
        self.projection = nn.Linear(width, d_model, bias=False)
        # a projected vector has the first cluster's std, 1/sqrt(d), so that input and logits have its scale
        nn.init.normal_(self.projection.weight, std=d_model**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """(R,) -> (R, D)."""
        return self.projection(F.embedding(ids, self.weight))

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., ids of the cluster)."""
        return F.linear(hidden @ self.projection.weight, self.weight)


class AdaptiveEmbedding(nn.Module):
    """`Embedding` for large vocabularies: the same interface, tied cluster by cluster."""

    def __init__(self, vocab_size: int, d_model: int, cutoffs: Sequence[int]) -> None:
        super().__init__()
        check_cutoffs(cutoffs, vocab_size)
        self.scale = d_model**0.5
        self.starts = tuple(cutoffs)  # of the clusters behind the first
        self.num_first, *_ = ends = [*cutoffs, vocab_size]
        sizes = [end - start for start, end in pairwise(ends)]
        widths = [max(d_model // 4**i, min(d_model, NARROWEST)) for i in range(1, len(sizes) + 1)]
        # The head: a row for each id of the first cluster, then one for each other cluster, which only the output uses.
        self.weight = nn.Parameter(torch.randn(self.num_first + len(sizes), d_model) / self.scale)
        self.bos = nn.Parameter(torch.randn(d_model) / self.scale)
        tails = nn.ModuleList(TailCluster(size, width, d_model) for size, width in zip(sizes, widths, strict=True))
        self.tails = cast(Sequence[TailCluster], tails)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, L) -> (B, L, D), of about unit variance; what stands for padding does not matter."""
        flat, cluster = ids.flatten(), self._cluster(ids.flatten())
        vectors = F.embedding(flat.clamp(0, self.num_first - 1), self.weight)  # (N, D)
        vectors = torch.where((flat == BOS)[:, None], self.bos, vectors)
        for index, (start, tail) in enumerate(zip(self.starts, self.tails, strict=True), start=1):
            rows = (cluster == index).nonzero()[:, 0]
            vectors.index_copy_(0, rows, tail(flat[rows] - start).to(vectors.dtype))
        return vectors.view(*ids.shape, -1) * self.scale

    def logits(self, hidden: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, V): the log-probability of every id; for a few tokens, since it is the whole vocabulary."""
        first, clusters = _log_softmax(F.linear(hidden, self.weight)).tensor_split([self.num_first], dim=-1)
        tails = [
            cluster[..., None] + _log_softmax(tail.logits(hidden))
            for cluster, tail in zip(clusters.unbind(-1), self.tails, strict=True)
        ]
        return torch.cat([first, *tails], dim=-1)

    def losses(self, hidden: Tensor, target: Tensor) -> Tensor:
        """-log p(target), (B, L), and 0 where it is `IGNORE`; each cluster's softmax for the tokens in it alone."""
        hidden, flat = hidden.flatten(0, 1), target.flatten()
        cluster = self._cluster(flat)
        in_head = torch.where(cluster > 0, self.num_first + cluster - 1, flat)
        losses = F.cross_entropy(F.linear(hidden, self.weight), in_head, ignore_index=IGNORE, reduction="none")
        for index, (start, tail) in enumerate(zip(self.starts, self.tails, strict=True), start=1):
            rows = (cluster == index).nonzero()[:, 0]  # none at all will do: the cluster then gets a gradient of zeros
            in_tail = F.cross_entropy(tail.logits(hidden[rows]), flat[rows] - start, reduction="none")
            losses = losses.index_add(0, rows, in_tail)
        return losses.view_as(target)

    def _cluster(self, ids: Tensor) -> Tensor:
        """Which cluster each id is in; special ids are in the first, 0."""
        return sum((ids >= start for start in self.starts), torch.zeros_like(ids))


def _log_softmax(logits: Tensor) -> Tensor:
    """In single precision at least: half of it would blur the probabilities of rare ids."""
    return F.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
