"""The retention task: a value is shown once, distracting segments follow, then it is asked for.

    [SHOW value noise ...] [noise noise ...] ... [noise noise ...] [ASK value]

Noise is drawn from tokens of its own, so that no distractor looks like a value. Nobody can predict it, so only the question
is a target: to predict everything else as well drowns what is to be learned.
"""

# Shape letters: B batch, L tokens a segment

from dataclasses import dataclass

import torch
from torch import Tensor

from memformer_torch.types import BOS, IGNORE, PAD, Segment


@dataclass(frozen=True, kw_only=True)
class Retention:
    num_values: int = 8
    """Values that may be shown."""
    num_noise: int = 16
    """Tokens that distractors are made of."""
    segment_length: int = 4
    """Tokens a segment."""
    predict_all: bool = False
    """Make every token a target: for models that read their targets alone."""

    def __post_init__(self) -> None:
        if self.num_values < 2 or self.num_noise < 1 or self.segment_length < 2:
            raise ValueError("retention needs at least 2 values, 1 noise token and 2 tokens a segment")

    @property
    def vocab_size(self) -> int:
        return self.num_values + self.num_noise + 2

    @property
    def ask_token(self) -> int:
        return self.vocab_size - 1

    def show(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """The segment (B, L) that shows these values (B,)."""
        segment = self.noise(len(values), generator)
        segment[:, 0], segment[:, 1] = self.vocab_size - 2, values
        return segment

    def noise(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """A distracting segment (B, L)."""
        shape = (batch_size, self.segment_length)
        return torch.randint(self.num_values, self.num_values + self.num_noise, shape, generator=generator)

    def ask(self, values: Tensor) -> Tensor:
        """The target (B, L) whose position 1 is the answer."""
        segment = values.new_full((len(values), self.segment_length), IGNORE)
        segment[:, 0], segment[:, 1] = self.ask_token, values
        return segment

    def rollout(self, values: Tensor, num_distractors: int, generator: torch.Generator) -> list[Segment]:
        """A whole document as steps: each predicts one segment from the one before; the first source is BOS alone."""
        texts = [self.show(values, generator)]
        texts += [self.noise(len(values), generator) for _ in range(num_distractors)]
        texts.append(self.ask(values))
        begin = torch.full_like(texts[0], PAD)
        begin[:, 0] = BOS
        nothing = torch.full_like(texts[0][:, :1], IGNORE)
        targets = texts if self.predict_all else [*[nothing] * (len(texts) - 1), texts[-1]]
        return [Segment(source, target) for source, target in zip([begin, *texts], targets, strict=False)]

    def answers(self, target: Tensor) -> Tensor:
        """bool (B, L): where a target holds the value that the memory must give."""
        return (target[:, :1] == self.ask_token) & (target >= 0) & (target < self.num_values)
