"""Documents side by side, each at its own place, read through one model: the part of a session that knows no text.

A document is cut into segments of `segment_length` tokens. At any time a lane holds the state before its segment, the segment
before (the source) and the tokens of its segment so far, all of fixed size; and a cache, from which all else follows.
"""

# Shape letters: B lanes, L segment length, V vocabulary, D width

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memformer_torch.nn.past import Cache, Places, join_rows, put_rows, take_rows
from memformer_torch.types import BOS, IGNORE, PAD


class Window(NamedTuple):
    """The tokens at hand."""

    source: Tensor
    """int64 (B, L): the segment before; BOS and padding at a document's start."""
    inputs: Tensor
    """int64 (B, 1 + L): the source's last id, then the segment so far; what stands behind does not matter."""


class Lanes:
    def __init__(self, model: Any, batch_size: int) -> None:
        length, device = model.config.segment_length, next(model.parameters()).device
        source = torch.full((batch_size, length), PAD, device=device)
        source[:, 0] = BOS
        inputs = torch.zeros(batch_size, 1 + length, dtype=torch.int64, device=device)
        inputs[:, 0] = BOS
        self.model, self.window = model, Window(source, inputs)
        with torch.no_grad():
            state = model.initial_state(batch_size)
        self.state = type(state)(*(member.detach().clone(memory_format=torch.contiguous_format) for member in state))
        self.count = [0] * batch_size
        """Tokens of each lane's segment so far: below L."""
        self.position = [0] * batch_size
        """Tokens of each lane's document so far."""
        self.forget_cache()

    def __len__(self) -> int:
        return len(self.count)

    @property
    def length(self) -> int:
        return self.window.source.shape[1]

    def forget_cache(self) -> None:
        """Leave what is saved, and nothing else; the cache is made again from it when it is needed."""
        self._cache: Cache | None = None
        self._cached = [0] * len(self)
        """How many inputs of its segment each lane has in the cache."""

    def mark(self) -> tuple[Any, Window, list[int], list[int]]:
        """Where the lanes stand, for `go_back`."""
        return self.state, _copy(self.window), self.count, self.position

    def go_back(self, mark: tuple[Any, Window, list[int], list[int]]) -> None:
        """Stand where the lanes stood; once a mark."""
        self.state, self.window, self.count, self.position = mark
        self.forget_cache()

    def check(self, ids: Sequence[Tensor]) -> None:
        """Raise a ValueError for ids that cannot be read, before anything has changed."""
        size = self.model.config.vocab_size
        for row in ids:
            if len(row) and not 0 <= int(row.min()) <= int(row.max()) < size:
                raise ValueError(
                    f"ids from {int(row.min())} to {int(row.max())} were given; allowed are 0 to {size - 1}: "
                    "use the tokenizer the model was trained with"
                )
        self.check_room([len(row) for row in ids])

    def check_room(self, more: Sequence[int]) -> None:
        """Raise a ValueError if a model whose state grows has no room for so many more tokens in each lane."""
        limit = getattr(self.model.config, "max_length", None)
        longest = max(has + new for has, new in zip(self.position, more, strict=True))
        if limit is not None and longest > limit:
            raise ValueError(
                f"the document reaches {longest:,} tokens, but the state of this model grows, and max_length is {limit:,}: "
                "begin a new session, or raise max_length"
            )

    @torch.no_grad()
    def read(self, ids: Sequence[Tensor]) -> list[float]:
        """Read on in each lane, any number of ids (also none); the log-probability of each lane's."""
        self.check(ids)
        total, done = torch.zeros(len(self), dtype=torch.float64), [0] * len(self)
        while any(begin < len(row) for begin, row in zip(done, ids, strict=True)):
            taken = [min(len(row) - begin, self.length - has) for begin, row, has in zip(done, ids, self.count, strict=True)]
            for lane, (begin, number, has) in enumerate(zip(done, taken, self.count, strict=True)):
                if number:
                    self.window.inputs[lane, 1 + has : 1 + has + number] = ids[lane][begin : begin + number]
            ends = [has + number for has, number in zip(self.count, taken, strict=True)]
            # the last token of each is not read in yet: it may belong to the next segment's pass
            self._extend_to([end if number else 0 for end, number in zip(ends, taken, strict=True)])
            total += self._log_probability(self.count, ends).cpu()
            done = [begin + number for begin, number in zip(done, taken, strict=True)]
            self._count_up(taken)
        return total.tolist()

    @torch.no_grad()
    def next_logits(self) -> Tensor:
        """What comes next in each lane, (B, V)."""
        self._extend_to([has + 1 for has in self.count])
        if len(set(self.count)) == 1:
            hidden = self._hidden[:, self.count[0]]
        else:
            hidden = self._hidden[torch.arange(len(self)), self.count]
        return self.model.embedding.logits(hidden[:, None])[:, 0]

    @torch.no_grad()
    def append(self, ids: Tensor, active: Sequence[bool] | None = None) -> None:
        """Read one id (B,) more in each lane, or in those that are active."""
        active = [True] * len(self) if active is None else active
        self.check_room([int(does) for does in active])
        if all(active) and len(set(self.count)) == 1:
            self.window.inputs[:, 1 + self.count[0]] = ids
        else:
            lanes = [lane for lane, does in enumerate(active) if does]
            self.window.inputs[lanes, [1 + self.count[lane] for lane in lanes]] = ids.to(self.window.inputs.device)[lanes]
        self._count_up([int(does) for does in active])

    def recent(self) -> Tensor:
        """The ids at hand, (B, 2 L): the source's and the segment's so far; PAD or BOS elsewhere."""
        source, inputs = self.window
        count = torch.tensor(self.count, device=source.device)
        so_far = torch.arange(self.length, device=source.device) < count[:, None]
        return torch.cat([source, inputs[:, 1:].masked_fill(~so_far, PAD)], dim=1)

    def take(self, lanes: Sequence[int]) -> "Lanes":
        """A copy of some lanes, which goes its own way."""
        index = torch.tensor(lanes, device=self.window.source.device)
        other = self._like(take_rows(self.state, index), take_rows(self.window, index))
        other.count, other.position = [self.count[lane] for lane in lanes], [self.position[lane] for lane in lanes]
        other._cached = [self._cached[lane] for lane in lanes]
        if self._cache is not None:
            other._cache = self._cache._replace(rows=take_rows(self._cache.rows, index))
            other._hidden = self._hidden[index]
        return other

    @torch.no_grad()
    def join(self, others: Sequence["Lanes"]) -> "Lanes":
        """A copy of these lanes and those of others, to be read together."""
        parts = [self, *others]
        for part in parts:
            part._begin()
        joined = self._like(join_rows([part.state for part in parts]), join_rows([part.window for part in parts]))
        joined.count, joined.position = [n for p in parts for n in p.count], [n for p in parts for n in p.position]
        joined._cached = [has for part in parts for has in part._cached]
        caches = [part._cache for part in parts if part._cache is not None]
        joined._cache = caches[0]._replace(rows=join_rows([cache.rows for cache in caches]))
        joined._hidden = torch.cat([part._hidden for part in parts])
        return joined

    @torch.no_grad()
    def put(self, lane: int, other: "Lanes") -> None:
        """Replace a lane by a copy of the only one of another: one lane is copied, however many there are."""
        self._begin()
        other._begin()
        assert self._cache is not None
        assert other._cache is not None
        index = torch.tensor([lane], device=self.window.source.device)
        self.state, self.window = put_rows(self.state, index, other.state), put_rows(self.window, index, other.window)
        self._cache = self._cache._replace(rows=put_rows(self._cache.rows, index, other._cache.rows))
        self._hidden[index] = other._hidden
        self.count[lane], self.position[lane], self._cached[lane] = other.count[0], other.position[0], other._cached[0]

    def _like(self, state: Any, window: Window) -> "Lanes":
        other = Lanes.__new__(Lanes)
        other.model, other.state, other.window, other._cache = self.model, state, window, None
        return other

    def _begin(self) -> None:
        if self.model.training:
            self.model.eval()  # a session has no dropout, even if training went on inside a segment
        if self._cache is not None:
            return
        self._cache = self.model.begin(self.window.source, self.state)
        self._cached = [0] * len(self)
        width = self.model.config.d_model
        self._hidden = next(self.model.parameters()).new_zeros(len(self), self.length + 1, width)
        """(B, L + 1, D): what follows each input is predicted from."""

    def _extend_to(self, ends: Sequence[int]) -> None:
        """Have the first inputs of each lane's segment in the cache, so many or more."""
        self._begin()
        assert self._cache is not None
        inputs, device = self.window.inputs, self.window.inputs.device
        new = [max(0, end - has) for end, has in zip(ends, self._cached, strict=True)]
        if not any(new):
            return
        if len(set(new)) == len(set(self._cached)) == 1:
            start, end = self._cached[0], self._cached[0] + new[0]
            places, given = Places(torch.arange(start, end, device=device)[None], end), inputs[:, start:end]
        else:
            numbers, starts = torch.tensor([new, self._cached], device=device)[..., None]
            steps = torch.arange(max(new), device=device)
            index = torch.where(steps < numbers, starts + steps, self.length)
            places, given = Places(index, int((starts + numbers).max())), inputs.gather(1, index)
        places.put(self._hidden, self.model.extend(self._cache, given, places))
        self._cached = [has + number for has, number in zip(self._cached, new, strict=True)]

    def _log_probability(self, starts: Sequence[int], ends: Sequence[int]) -> Tensor:
        """Of each lane's tokens from its start to its end, (B,)."""
        first, last = min(starts), max(ends)
        column = torch.arange(first, last, device=self.window.inputs.device)
        bounds = torch.tensor([starts, ends], device=column.device)[..., None]
        target = self.window.inputs[:, 1 + first : 1 + last]
        target = target.masked_fill((column < bounds[0]) | (column >= bounds[1]), IGNORE)
        return -self.model.embedding.losses(self._hidden[:, first:last], target).double().sum(1)

    def _count_up(self, taken: Sequence[int]) -> None:
        """So many more tokens in each lane; a lane whose segment is full goes on to the next."""
        self.count = [has + number for has, number in zip(self.count, taken, strict=True)]
        self.position = [has + number for has, number in zip(self.position, taken, strict=True)]
        full = [lane for lane, has in enumerate(self.count) if has == self.length]
        if not full:
            return
        self._extend_to([self.length if has == self.length else 0 for has in self.count])
        assert self._cache is not None
        tokens = self.window.inputs[:, 1:]
        self.count = [0 if has == self.length else has for has in self.count]
        if len(full) == len(self):
            self.state = self.model.finish(self._cache)
            self.window = Window(tokens.clone(), torch.zeros_like(self.window.inputs))
            self.window.inputs[:, 0] = tokens[:, -1]
            self.forget_cache()
            return
        index = torch.tensor(full, device=tokens.device)
        state = self.model.finish(self._cache._replace(rows=take_rows(self._cache.rows, index)))
        self.state = put_rows(_copy(self.state), index, state)  # who was given the state before keeps it
        self.window.source[index] = tokens[index]
        self.window.inputs[index, 0] = tokens[index, -1]
        begun = self.model.begin(self.window.source[index], take_rows(self.state, index))
        self._cache = self._cache._replace(rows=put_rows(self._cache.rows, index, begun.rows))
        self._cached = [0 if lane in full else has for lane, has in enumerate(self._cached)]


def _copy(members: Any) -> Any:
    return type(members)(*(member.clone() for member in members))
