"""A session reads without end in constant memory, and can be asked at any time.

    session = Session(model, tokenizer)
    session.feed(a_book)                                  # any length, in any pieces
    for piece in session.generate(100, temperature=0.8):
        print(piece, end="")
    session.save("reader.session")                        # a few hundred kilobytes, whatever was read

A session begins as an empty document. What was generated has been read as well. With `batch_size` B it holds B documents that
go on together, each as if alone: whatever is one value for one document is then a list of B.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from memformer_torch import session_file
from memformer_torch.data.tokenizer import TextStream, Tokenizer
from memformer_torch.lanes import Lanes, Window
from memformer_torch.sampling import Sampling

LONGEST_TAIL = 1024
"""Bytes of a text's last word that may wait for its end."""


class Session:
    def __init__(self, model: Any, tokenizer: Tokenizer | None = None, batch_size: int = 1) -> None:
        """The model is put in evaluation mode; `tokenizer` is needed for text, ids go without."""
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, but must be at least 1")
        if tokenizer is not None and tokenizer.vocab_size > model.config.vocab_size:
            raise ValueError(
                f"the tokenizer has {tokenizer.vocab_size} ids, but the model {model.config.vocab_size}: "
                "use the tokenizer the model was trained with"
            )
        self.model, self.tokenizer = model.eval(), tokenizer
        self._lanes = Lanes(model, batch_size)
        # A text may end inside a word, and the next piece go on with it. Its last word is therefore scored on a copy, and
        # read only once it has ended, so that pieces of any size give what the whole text gives.
        self._tails = [""] * batch_size
        self._tail_scores = [0.0] * batch_size

    @property
    def batch_size(self) -> int:
        return len(self._tails)

    @property
    def position(self) -> Any:
        """Tokens read so far."""
        tails = [len(self._encode(tail)) if tail else 0 for tail in self._tails]
        return self._one([has + more for has, more in zip(self._lanes.position, tails, strict=True)])

    @property
    def state(self) -> Any:
        """The model's state before the segment at hand."""
        return self._lanes.state

    @property
    def state_bytes(self) -> int:
        """Bytes that a document's past takes: the state and the tokens at hand; caches can be made again from these."""
        members = [*self._lanes.state, *self._lanes.window]
        return sum(member.numel() * member.element_size() for member in members)

    @property
    def grows(self) -> bool:
        """Whether the state grows with what is read."""
        return hasattr(self.model.config, "max_length")

    def __repr__(self) -> str:
        growing = ", growing" if self.grows else ""
        batch = "" if self.batch_size == 1 else f"{self.batch_size} documents, "
        return f"Session({type(self.model).__name__}, {batch}{self.position} tokens, state {self.state_bytes:,} bytes{growing})"

    def feed(self, given: Any) -> Any:
        """Read a text or ids of any length; returns the log-probability of what was read, in nats.

        Pieces of any size give what the whole gives: a text's last word is read again if the next piece goes on with it, and
        the log-probabilities add up. Only a word longer than `LONGEST_TAIL` is read as far as it has come, so that memory stays
        bounded: what follows then begins another. Ids are a sequence, an array or a tensor. If Ctrl-C stops it,
        all has been read, or nothing.
        """
        return self._one(self._feed(self._rows(given)))

    def score(self, given: Any) -> Any:
        """The log-probability of a text or ids as what comes next; the session stays where it is."""
        return self.fork().feed(given)

    def generate(
        self,
        max_tokens: int | None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        stop: Any = (),
        seed: int | None = None,
        text: bool | None = None,
    ) -> Iterator[Any]:
        """Go on with the document: yields text where there is a tokenizer, else ids; the session has read what was yielded.

        Args:
            max_tokens: Most tokens; None goes on without end.
            temperature: 0 takes the likeliest id, see `Sampling` for the others.
            top_k: Only the k likeliest ids.
            top_p: Only the likeliest ids that together have this probability.
            min_p: Only ids with at least this share of the likeliest one's probability.
            repetition_penalty: Above 1, ids of the last one to two segments become less likely.
            stop: Text or texts, id or ids, that end it; they are read, and not yielded.
            seed: Of the random numbers: document b's are those of seed + b alone. None takes a new one.
            text: True yields text, False ids; None yields text if there is a tokenizer.
        """
        sampling = Sampling(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty
        )
        if max_tokens is not None and max_tokens < 0:
            raise ValueError(f"max_tokens is {max_tokens}, but must be 0 or above")
        stops = [stop] if isinstance(stop, str | int) else list(stop)
        words, ids = [each for each in stops if isinstance(each, str)], {each for each in stops if not isinstance(each, str)}
        if "" in words:
            raise ValueError("stop holds an empty text: leave it out")
        text = self.tokenizer is not None if text is None else text
        if (text or words) and self.tokenizer is None:
            raise ValueError("this session has no tokenizer: pass Session(model, tokenizer), or generate ids with text=False")
        self._end_words()
        tokens = self._generate(max_tokens, sampling, ids, words, int(torch.randint(2**62, ())) if seed is None else seed)
        return (self._one([piece if text else token for token, piece in step]) for step in tokens if text or _any_token(step))

    def fork(self) -> "Session":
        """A session that stands where this one does, and goes its own way: the state is copied, not the history."""
        return self.take(range(self.batch_size))

    def take(self, documents: Iterable[int]) -> "Session":
        """A copy of some of the documents, as a session of their own."""
        documents = list(documents)
        other = self._like(self._lanes.take(documents))
        other._tails, other._tail_scores = [self._tails[n] for n in documents], [self._tail_scores[n] for n in documents]
        return other

    @staticmethod
    def join(sessions: Sequence["Session"]) -> "Session":
        """A copy of all documents of several sessions of one model, however far each has come, to go on together."""
        first, *others = sessions
        if any(other.model is not first.model for other in others):
            raise ValueError("the sessions have different models: only sessions of one model can go on together")
        if len({session.tokenizer and session.tokenizer.fingerprint for session in sessions}) > 1:
            raise ValueError("the sessions have different tokenizers, or some have none: only with one can they go on together")
        joined = first._like(first._lanes.join([other._lanes for other in others]))
        joined._tails = [tail for session in sessions for tail in session._tails]
        joined._tail_scores = [score for session in sessions for score in session._tail_scores]
        return joined

    def save(self, path: Path | str) -> None:
        """Write the session: its state and the tokens at hand, of a size that does not depend on what was read.

        Caches are left out, and here forgotten too: this session and one that is loaded go on alike, to the bit.
        """
        session_file.write(Path(path), self._tensors(), self.model, self.tokenizer)

    @classmethod
    def load(cls, path: Path | str, model: Any, tokenizer: Tokenizer | None = None) -> "Session":
        """The session that `save` wrote; a ValueError if it is damaged or of another model, even one of the same shape."""
        return cls._from_tensors(session_file.read(Path(path), model, tokenizer), str(path), model, tokenizer)

    def to_bytes(self, fingerprint: str) -> bytes:
        """What `save` writes; the model's `session_file.fingerprint` is given, which takes long to find for a large one."""
        return session_file.pack(self._tensors(), fingerprint, self.tokenizer)

    @classmethod
    def from_bytes(
        cls, content: bytes, fingerprint: str, name: str, model: Any, tokenizer: Tokenizer | None = None
    ) -> "Session":
        """As `load`; errors say `name`."""
        return cls._from_tensors(session_file.unpack(content, fingerprint, tokenizer, name), name, model, tokenizer)

    def _tensors(self) -> dict[str, Tensor]:
        self._lanes.forget_cache()
        tensors = {f"state.{name}": member for name, member in zip(self.state._fields, self.state, strict=True)}
        tensors |= self._lanes.window._asdict()
        tensors |= {"count": torch.tensor(self._lanes.count), "position": torch.tensor(self._lanes.position)}
        tails = [tail.encode() for tail in self._tails]
        tensors["tails"] = torch.tensor([[len(tail), *tail.ljust(LONGEST_TAIL, b"\0")] for tail in tails], dtype=torch.int16)
        tensors["tail_scores"] = torch.tensor(self._tail_scores, dtype=torch.float64)
        return tensors

    @classmethod
    def _from_tensors(cls, tensors: dict[str, Tensor], name: str, model: Any, tokenizer: Tokenizer | None) -> "Session":
        session = cls(model, tokenizer, len(tensors["count"]))
        lanes, device = session._lanes, session._lanes.window.source.device
        members = [tensors[f"state.{name}"].to(device) for name in lanes.state._fields]
        lanes.state = type(lanes.state)(*members)
        lanes.window = Window(*(tensors[name].to(device) for name in Window._fields))
        lanes.count, lanes.position = tensors["count"].tolist(), tensors["position"].tolist()
        session._tails = [bytes(row[1 : 1 + row[0]]).decode() for row in tensors["tails"].tolist()]
        session._tail_scores = tensors["tail_scores"].tolist()
        if tokenizer is None and any(session._tails):
            raise ValueError(f"{name} ends inside a word: pass the tokenizer it was made with")
        return session

    def _feed(self, rows: Sequence[Any]) -> list[float]:
        if not isinstance(rows[0], str):
            self._lanes.check(rows)
            with self._whole_or_not():
                self._end_words()
                return self._lanes.read(rows)
        texts = [tail + row for tail, row in zip(self._tails, rows, strict=True)]
        cuts = [self.tokenizer.safe_cut(text) for text in texts]  # type: ignore[union-attr]  # _rows has asked
        cuts = [len(t) if len(t[cut:].encode()) > LONGEST_TAIL else cut for t, cut in zip(texts, cuts, strict=True)]
        whole = [self._encode(text[:cut]) for text, cut in zip(texts, cuts, strict=True)]
        ends = [self._encode(text[cut:]) for text, cut in zip(texts, cuts, strict=True)]
        self._lanes.check([torch.cat(both) for both in zip(whole, ends, strict=True)])
        with self._whole_or_not():
            scores, before = self._lanes.read(whole), self._tail_scores
            self._tails = [text[cut:] for text, cut in zip(texts, cuts, strict=True)]
            copy = self._lanes.take(range(self.batch_size)) if any(self._tails) else None
            self._tail_scores = copy.read(ends) if copy else [0.0] * self.batch_size
        return [a + b - c for a, b, c in zip(scores, self._tail_scores, before, strict=True)]

    def _end_words(self) -> None:
        """What comes next does not go on with the last word: read it."""
        if any(self._tails):
            with self._whole_or_not():
                self._lanes.read([self._encode(tail) for tail in self._tails])
                self._tails, self._tail_scores = [""] * self.batch_size, [0.0] * self.batch_size

    @contextmanager
    def _whole_or_not(self) -> Iterator[None]:
        """What is read inside is read whole; if it is stopped, even by Ctrl-C, the session stands where it stood."""
        mark, tails, tail_scores = self._lanes.mark(), self._tails, self._tail_scores
        try:
            yield
        except BaseException:
            self._lanes.go_back(mark)
            self._tails, self._tail_scores = tails, tail_scores
            raise

    def _generate(
        self, max_tokens: int | None, sampling: Sampling, stop_ids: set[int], stop_texts: list[str], seed: int
    ) -> Iterator[list[tuple[int | None, str]]]:
        """For each step, each document's new id, or None once it has ended, and the text that has become whole."""
        lanes, active = self._lanes, [True] * self.batch_size
        generators = [torch.Generator().manual_seed(seed + row) for row in range(self.batch_size)]
        needs_recent = sampling.repetition_penalty != 1
        writers: list[TextWriter] = []
        if self.tokenizer is not None:
            known = range(self.tokenizer.vocab_size)
            writers = [
                TextWriter(self.tokenizer, [t for t in row if t in known], stop_texts) for row in lanes.recent().tolist()
            ]
        number = 0
        while any(active) and (max_tokens is None or number < max_tokens):
            lanes.check_room([int(does) for does in active])
            logits = lanes.next_logits()
            if self.tokenizer is not None:  # a model's vocabulary may be padded beyond its tokenizer's
                logits = logits[:, : self.tokenizer.vocab_size]
            uniform = torch.zeros(self.batch_size, dtype=torch.float64)
            if sampling.temperature > 0:
                uniform = torch.tensor([torch.rand((), generator=g, dtype=torch.float64) for g in generators])
            recent = lanes.recent() if needs_recent else lanes.window.source
            chosen = sampling.choose(logits, recent, uniform)
            lanes.append(chosen, active)
            number += 1
            step: list[tuple[int | None, str]] = []
            for row, token in enumerate(chosen.tolist()):
                if not active[row]:
                    step.append((None, ""))
                    continue
                active[row] = token not in stop_ids
                piece = ""
                if writers and active[row]:
                    piece, ended = writers[row].write(token)
                    active[row] = not ended
                step.append((token if active[row] else None, piece))
            if number == max_tokens or not any(active):
                step = [(token, piece + (writers[row].rest() if writers else "")) for row, (token, piece) in enumerate(step)]
            yield step

    def _rows(self, given: Any) -> Sequence[Any]:
        """What was given, as a list of one text, or of one tensor of ids, a document."""
        if isinstance(given, str):
            given = [given]
        elif self.batch_size == 1 and not (isinstance(given, list | tuple) and given and isinstance(given[0], str)):
            given = given if getattr(given, "ndim", 1) == 2 else [given]
        if len(given) != self.batch_size:
            raise ValueError(f"{len(given)} texts or rows of ids were given, but the session has {self.batch_size} documents")
        if isinstance(given[0], str):
            if self.tokenizer is None:
                raise ValueError("this session has no tokenizer: pass Session(model, tokenizer), or feed ids")
            return given
        rows = [torch.tensor(row) if not isinstance(row, Tensor) else row for row in given]
        for row in rows:
            if row.dim() != 1 or (len(row) and (row.is_floating_point() or row.dtype == torch.bool)):
                raise ValueError(
                    f"ids must be whole numbers in one row a document, not {row.dtype} of shape {tuple(row.shape)}"
                )
        return [row.to(self._lanes.window.inputs.device, torch.int64) for row in rows]

    def _encode(self, text: str) -> Tensor:
        assert self.tokenizer is not None
        try:
            ids = self.tokenizer.encode(text)
        except UnicodeEncodeError as error:
            raise ValueError(f"the text cannot be encoded: {error}") from error
        return torch.as_tensor(ids.astype("int64"), device=self._lanes.window.inputs.device)

    def _like(self, lanes: Lanes) -> "Session":
        other = Session.__new__(Session)
        other.model, other.tokenizer, other._lanes = self.model, self.tokenizer, lanes
        return other

    def _one(self, values: list[Any]) -> Any:
        return values[0] if self.batch_size == 1 else values


class TextWriter:
    """Ids to text, holding back what may be the beginning of a stop."""

    def __init__(self, tokenizer: Tokenizer, before: list[int], stops: list[str]) -> None:
        self._stream, self._stops, self._held = TextStream(tokenizer, before), stops, ""

    def write(self, token: int) -> tuple[str, bool]:
        """The text that is certain now, and whether a stop was found."""
        text = self._held + self._stream.feed(token)
        found = [text.find(stop) for stop in self._stops if stop in text]
        if found:
            self._held = ""
            return text[: min(found)], True
        keep = max((n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def rest(self) -> str:
        """What was held back for a stop that did not come; a character that is not whole stays with the document."""
        held, self._held = self._held, ""
        return held


def _any_token(step: list[tuple[int | None, str]]) -> bool:
    return any(token is not None for token, _ in step)
