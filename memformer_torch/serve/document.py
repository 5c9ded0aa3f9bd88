"""A named session's document on its way to the engine and back: the one place here that looks inside a `Session`.

The session that a job starts from stays as it is, and what comes of the job is a new one: until that is on the disk, nothing
has happened.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from memformer_torch.serve.jobs import Job, no_ids
from memformer_torch.session import LONGEST_TAIL, Session


class Reading(NamedTuple):
    """A text that goes on from a session's last, as what is to be read now and what waits for the end of its last word."""

    ids: Tensor
    tail: Tensor
    tail_text: str


def reading(session: Session, given: Any) -> Reading:
    """Text or ids, as `Session.feed` would read them; a ValueError for what cannot be encoded."""
    waiting = session._tails[0]
    if not isinstance(given, str):
        return Reading(torch.cat([_encode(session, waiting), torch.tensor(given, dtype=torch.int64)]), no_ids(), "")
    if session.tokenizer is None:
        raise ValueError("this model knows no text: give ids")
    text = waiting + given
    cut = session.tokenizer.safe_cut(text)
    cut = len(text) if len(text[cut:].encode(errors="replace")) > LONGEST_TAIL else cut
    return Reading(_encode(session, text[:cut]), _encode(session, text[cut:]), text[cut:])


def rest(session: Session) -> Tensor:
    """What waits, to be read before the document is continued by something else."""
    return _encode(session, session._tails[0])


def after(session: Session, job: Job, tail_text: str = "") -> Session:
    """The session that a job leads to."""
    assert job.result is not None
    other = session._like(job.result)
    whole = job.read == len(job.ids) and job.generation is None
    other._tails, other._tail_scores = [tail_text if whole else ""], [job.tail_score if whole else 0.0]
    return other


def still_waits(session: Session, job: Job) -> bool:
    """Whether a job may have ended before all that waited was read: each token of that holds a byte or more."""
    return job.read < min(len(job.ids), len(session._tails[0].encode()))


def log_probability(session: Session, job: Job) -> float:
    """What `Session.feed` returns: pieces add up to the whole."""
    return job.score + job.tail_score - session._tail_scores[0]


def lanes(session: Session) -> Any:
    return session._lanes


def _encode(session: Session, text: str) -> Tensor:
    return session._encode(text).cpu() if text else no_ids()
