"""What requests hold; unknown keys are errors."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from memformer_torch.sampling import Sampling
from memformer_torch.serve.jobs import Generation

NAME: Any = {"pattern": r"^\.*[A-Za-z0-9_-][A-Za-z0-9._-]*$", "max_length": 64}
"""Of letters, digits, '.', '_' and '-', but not of dots alone: in an address those lead elsewhere."""
Name = Annotated[str, Field(**NAME, description="Letters, digits, '.', '_' and '-', at most 64, not dots alone.")]
Id = Annotated[int, Field(ge=0, lt=2**31)]
Ids = list[Id]
StopText = Annotated[str, Field(min_length=1, max_length=256)]
Stop = StopText | Id


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Sampled(Body):
    """How to go on."""

    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] = 16
    temperature: Annotated[float, Field(ge=0, le=100, description="0 takes the likeliest id.")] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.0
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stream: bool = False

    def generation(self, seed: int) -> Generation:
        stops = self.stop if isinstance(self.stop, list) else [] if self.stop is None else [self.stop]
        return Generation(
            max_tokens=self.max_tokens,
            seed=seed,
            sampling=Sampling(
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                repetition_penalty=self.repetition_penalty,
            ),
            stop_ids=frozenset(stop for stop in stops if isinstance(stop, int)),
            stop_texts=tuple(stop for stop in stops if isinstance(stop, str)),
        )


class StreamOptions(Body):
    include_usage: bool = False


class Completion(Sampled):
    """OpenAI's completion, as far as it is known here."""

    prompt: str | Ids = Field(description="Text, or ids where the model knows no text.")
    model: str | None = Field(default=None, description="There is one model: taken, and not looked at.")
    n: Annotated[int, Field(ge=1, le=1)] = 1
    user: str | None = None
    stream_options: StreamOptions | None = None


class NewSession(Body):
    name: Name | None = Field(default=None, description="One is found where none is given.")
    scratch: bool = Field(default=False, description="Removed when it has not been used for a week.")


class Feed(Body):
    """Text or ids."""

    text: str | None = None
    ids: Ids | None = None


class Fork(Body):
    name: Name | None = Field(default=None, description="Of the new session.")
    scratch: bool = False
    replace: bool = Field(default=False, description="In place of a session that has this name.")


class Problem(BaseModel):
    """Of every error: one line that says what is wrong, and the status."""

    error: dict[str, Any] = Field(examples=[{"message": "there is no session book", "code": 404}])
