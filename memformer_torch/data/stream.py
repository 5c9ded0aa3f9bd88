"""Documents to lanes to Segments: each lane reads one document after another, and its state is reset where a new one begins.

A document's first step has source [BOS, PAD, ...] and its first `segment_length` tokens as target; each next step reads the
target before it. The last target is padded, and the next document begins with the next step.
"""

# Shape letters: B lanes, L tokens a segment, C documents

import heapq
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from memformer_torch.data.corpus import Documents
from memformer_torch.types import BOS, IGNORE, PAD, Segment

RELEASE_EVERY = 8
"""Steps after which mapped pages are released: a lane brings in up to 2 MB where it begins to read, and all would stay."""


class Stream(Iterator[Segment]):
    """Segments of a batch of lanes, for ever (`loop`, for training) or until every token was predicted exactly once.

    - `batch_size` lanes in all; of `world` ranks each gets its equal share, and all agree on who reads what, so that the ranks
      together read what one process would.
    - `shuffle` (by default, when looping) draws a new order of documents each epoch from `seed`. Without it a looping stream
      takes them as they stand, one that ends the longest first, so that lanes end together. A lane with nothing left has source
      [BOS, PAD, ...] and a target of `IGNORE`.
    - `continuous` ignores where documents end, as Transformer-XL's evaluation does: the text is cut into `batch_size` equal
      pieces, one a lane, with a reset only where a piece begins. A lane's first token is predicted from BOS. What is predicted
      from what then depends on `batch_size`; by documents it does not.

    `state_dict` is small, goes into JSON, and is the same on all ranks: it resumes with any `world` that divides the lanes.
    """

    def __init__(
        self,
        documents: Documents,
        *,
        batch_size: int,
        segment_length: int,
        loop: bool = False,
        shuffle: bool | None = None,
        seed: int = 0,
        continuous: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if batch_size < 1 or segment_length < 1:
            raise ValueError(f"batch_size is {batch_size} and segment_length {segment_length}: both must be at least 1")
        if batch_size % world or not 0 <= rank < world:
            raise ValueError(f"batch_size is {batch_size}, which {world} processes cannot share equally: make it a multiple")
        edges = np.arange(batch_size + 1) * documents.num_tokens // batch_size if continuous else documents.offsets
        lengths = np.diff(edges)
        self._starts, self._lengths = edges[:-1][lengths > 0], lengths[lengths > 0]
        if not len(self._lengths):
            raise ValueError("there is no token to read: every document is empty")
        if loop and len(self._lengths) < batch_size:
            raise ValueError(
                f"{len(self._lengths)} documents cannot fill {batch_size} lanes: lower batch_size, or set continuous, "
                "which cuts the text into equal lanes"
            )
        self._documents, self._ids = documents, documents.ids
        self.segment_length, self.batch_size, self.loop = segment_length, batch_size, loop
        self.shuffle, self.seed, self.continuous = loop if shuffle is None else shuffle, seed, continuous
        share = batch_size // world
        self._mine = slice(rank * share, (rank + 1) * share)
        self._columns = np.arange(segment_length)
        self._epoch, self._order = -1, np.zeros(0, np.int64)
        self._drawn = 0  # documents begun so far
        self._document = np.full(batch_size, -1)  # what each lane reads; -1 is nothing
        self._position = np.zeros(batch_size, np.int64)  # the next target's place in it
        self._steps = 0
        self.num_tokens = int(self._lengths.sum())
        """Tokens an epoch predicts."""

    @property
    def epoch(self) -> float:
        """How often all documents have been begun."""
        return self._drawn / len(self._lengths)

    def __len__(self) -> int:
        """Steps of a whole pass from the start."""
        if self.loop:
            raise TypeError("a looping stream has no length")
        ends = [0] * self.batch_size
        for document in self._order_of(0):
            heapq.heapreplace(ends, ends[0] - int(-self._lengths[document] // self.segment_length))
        return max(ends)

    def __next__(self) -> Segment:
        self._assign()
        if not self.loop and (self._document < 0).all():
            raise StopIteration
        segment = self._segment(self._document[self._mine], self._position[self._mine])
        self._position += self.segment_length
        self._steps += 1
        if self._steps % RELEASE_EVERY == 0:
            self._documents.release()
        return segment

    def state_dict(self) -> dict[str, Any]:
        return {
            "stream": self._identity(),
            "drawn": self._drawn,
            "document": self._document.tolist(),
            "position": self._position.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken: the segments that come are those that would have come."""
        for name, mine in self._identity().items():
            if state["stream"].get(name) != mine:
                raise ValueError(
                    f"the saved position is of a stream with {name} {state['stream'].get(name)}, but this one has {mine}: "
                    "resume with the same data and settings, or begin anew"
                )
        self._drawn = int(state["drawn"])
        self._document[:] = state["document"]
        self._position[:] = state["position"]

    def _identity(self) -> dict[str, Any]:
        names = ("batch_size", "segment_length", "loop", "shuffle", "seed", "continuous", "num_tokens")
        return {"num_documents": len(self._lengths)} | {name: getattr(self, name) for name in names}

    def _assign(self) -> None:
        """Give lanes that have come to an end their next document, in the order of lanes."""
        ended = (self._document < 0) | (self._position >= self._lengths[self._document])
        lanes = ended.nonzero()[0]
        self._position[lanes] = 0
        self._document[lanes] = -1
        while len(lanes) and (self.loop or self._drawn < len(self._lengths)):
            epoch, first = divmod(self._drawn, len(self._lengths))
            if epoch != self._epoch:
                self._epoch, self._order = epoch, self._order_of(epoch)
            documents = self._order[first : first + len(lanes)]
            self._document[lanes[: len(documents)]] = documents
            self._drawn += len(documents)
            lanes = lanes[len(documents) :]

    def _order_of(self, epoch: int) -> np.ndarray:
        if self.shuffle:
            return np.random.default_rng([self.seed, epoch]).permutation(len(self._lengths))
        if self.loop or self.continuous:
            return np.arange(len(self._lengths))
        return np.argsort(-self._lengths, kind="stable")

    def _segment(self, document: np.ndarray, position: np.ndarray) -> Segment:
        left = np.where(document < 0, 0, self._lengths[document] - position)
        places = (self._starts[document] + position)[:, None] + self._columns  # (B, L)
        first = position == 0  # so are lanes with nothing left
        # places outside the text are clipped here and overwritten below
        target = self._ids.take(places, mode="clip").astype(np.int64)
        target[self._columns >= left[:, None]] = IGNORE
        source = self._ids.take(places - self.segment_length, mode="clip").astype(np.int64)
        source[first] = PAD
        source[first, 0] = BOS
        return Segment(torch.from_numpy(source), torch.from_numpy(target), torch.from_numpy(first))
