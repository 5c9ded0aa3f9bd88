"""Gradients through a rollout of segments: three methods of one signature and one result.

    loss, state = mrbp(model, segments, state)

differentiates the mean cross-entropy a target token over the whole rollout, plus the mean of the segments' auxiliary
losses. It adds the gradients to `.grad`, and hands back the cross-entropy and the detached state after the last segment.

| method         | holds for backward             | computes                                  |
|----------------|--------------------------------|-------------------------------------------|
| `bptt`         | all segments                   | each segment once                         |
| `checkpointed` | all states, one segment        | each segment twice                        |
| `mrbp`         | all states, one segment        | each segment once, `advance` once more    |

The model is any module with `forward(segment, state) -> Output`; `advance(segment, state) -> state`, the same new state
without the logits, makes `mrbp` cheaper; `token_losses(segment, state) -> TokenLosses` is used in place of `forward` where
there is one, so that a large vocabulary's logits need not be built; `check(segment, state)` lets bad input fail before
anything has changed. A state is a (named) tuple of tensors; members that are not floating point are carried and not
differentiated.

Dropout: `mrbp`'s first pass skips the decoder, and so draws fewer random numbers than `bptt`. Therefore each method takes
one number from the generator and seeds every segment from it: all give the same masks and leave the generator alike.

A window that slides by fewer segments than it holds passes `memories`, a list that the method fills with the detached states
before every segment and the one after the last. After `del memories[:stride]` it is what is known of the next window, whose
`state` is then `memories[0]`: `mrbp` begins its first pass behind the last one known (Algorithm 1). These are of the weights
and masks of the rollout before: if neither has changed, the result is exact, else not. `bptt` and `checkpointed` differentiate
all segments as one graph, which a known state would cut: they compute all states again, and only fill the list.

Processes that share a batch pass `ranks`: the loss is then divided by the tokens of all, and gradients are averaged once, in
the last backward, whatever the method and the number of segments. See `distributed`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from memformer_torch.losses import count_tokens, segment_loss
from memformer_torch.types import Segment

Backward = Callable[[list[Tensor], list[Tensor | None]], None]
"""`backward(tensors, gradients)`: tensors[0] is the loss, whose gradient is None; the rest are a state's members with
theirs. A loss scale multiplies the loss alone: the gradients of a state come from a loss that was scaled already."""


class Ranks(NamedTuple):
    """Processes that share a batch: each has samples of its own, and the result is that of their union.

    Padding may differ, and a rank may have no target token at all. Auxiliary losses are averaged over the ranks.
    """

    mean: Callable[[Tensor], Tensor]
    """The mean of a scalar over the ranks; it is taken of the token count, before anything else, and of the loss."""
    backward: Backward | None = None
    """Runs the last backward, in place of `backward`, and averages over the ranks all that is in `.grad` by then. None leaves
    gradients local, for a rollout that is not the last of an update."""


def bptt(
    model: Any,
    segments: Sequence[Segment],
    state: Any,
    *,
    backward: Backward | None = None,
    ranks: Ranks | None = None,
    memories: list[Any] | None = None,
) -> tuple[Tensor, Any]:
    """Back-propagation through time: one graph over all segments, one backward."""
    rollout = _Rollout.begin(model, segments, state, backward, ranks, memories)
    return _one_graph(rollout, state, rollout.step, memories)


def checkpointed(
    model: Any,
    segments: Sequence[Segment],
    state: Any,
    *,
    backward: Backward | None = None,
    ranks: Ranks | None = None,
    memories: list[Any] | None = None,
) -> tuple[Tensor, Any]:
    """Back-propagation through time with torch's gradient checkpointing of each segment."""
    rollout = _Rollout.begin(model, segments, state, backward, ranks, memories)

    def step(index: int, state: Any) -> _Step:  # the seed is set inside: nothing of the generator need be kept
        return checkpoint(rollout.step, index, state, use_reentrant=False, preserve_rng_state=False)

    return _one_graph(rollout, state, step, memories)


def mrbp(
    model: Any,
    segments: Sequence[Segment],
    state: Any,
    *,
    backward: Backward | None = None,
    ranks: Ranks | None = None,
    memories: list[Any] | None = None,
) -> tuple[Tensor, Any]:
    """Memory replay back-propagation (Algorithm 1), exact: the gradients of `bptt` with one segment's graph at a time."""
    rollout = _Rollout.begin(model, segments, state, backward, ranks, memories)

    replay_buffer = [state, *(memories or [])[1:]]
    with torch.no_grad():
        for index in range(len(replay_buffer) - 1, len(segments) - 1):
            replay_buffer.append(rollout.advance(index, replay_buffer[-1]))

    total, gradients = torch.zeros((), device=segments[0].source.device), None
    after: list[Any] = []  # the last state, and if asked for those before it: newer than a known one, at no cost
    for index in reversed(range(len(segments))):
        known = replay_buffer.pop()
        if index > 0:  # the first keeps its graph: a state that came in requiring gradient receives it
            known = _map_state(known, lambda member: member.detach().requires_grad_(member.is_floating_point()))
        step = rollout.step(index, known)
        if not after or memories is not None:
            after.append(_map_state(step.state, Tensor.detach))
        total = total + step.loss.detach()
        _run_backward(rollout.last_backward if index == 0 else backward, step.objective, step.state, gradients)
        gradients = [member.grad for member in known] if index > 0 else None
    if memories is not None:
        memories[:] = [_map_state(state, Tensor.detach), *reversed(after)]
    return rollout.mean(total), after[0]


class _Step(NamedTuple):
    loss: Tensor
    """Cross-entropy of the segment as its part of the rollout's mean."""
    objective: Tensor
    """What is differentiated: with the part of the auxiliary loss."""
    state: Any


class _Rollout(NamedTuple):
    """What all methods share."""

    model: Any
    segments: Sequence[Segment]
    num_tokens: Tensor
    """What the loss is divided by. Over ranks, the mean of their counts: the mean of the ranks' gradients is the union's."""
    seed: int
    mean: Callable[[Tensor], Tensor]
    last_backward: Backward | None

    @classmethod
    def begin(
        cls,
        model: Any,
        segments: Sequence[Segment],
        state: Any,
        backward: Backward | None,
        ranks: Ranks | None,
        memories: list[Any] | None,
    ) -> "_Rollout":
        """Check first what can be known, so that such an error leaves gradients and generator as they were."""
        if not segments:
            raise ValueError("segments is empty: a rollout needs at least one segment")
        if state is None:
            raise ValueError("state is None: start from model.initial_state(batch_size)")
        if memories and memories[0] is not state:
            raise ValueError("memories[0] must be the state itself: pass state=memories[0], or an empty list")
        known = memories or [state]
        if len(known) > len(segments):
            raise ValueError(
                f"memories has {len(known)} states for {len(segments)} segments: drop the oldest by del memories[:stride]"
            )
        if hasattr(model, "check"):
            for index, segment in enumerate(segments):
                model.check(segment, known[index] if index < len(known) else None)
        if len(sizes := {len(segment.source) for segment in segments}) > 1:
            raise ValueError(f"segments have batches of {' and '.join(map(str, sorted(sizes)))}: a rollout has one batch size")
        mean = ranks.mean if ranks else lambda scalar: scalar
        num_tokens = mean(torch.stack([count_tokens(segment.target) for segment in segments]).sum())
        if num_tokens == 0:
            raise ValueError("the rollout has no target token: every target is IGNORE, so there is no loss to take a mean of")
        last_backward = ranks.backward if ranks and ranks.backward else backward
        return cls(model, segments, num_tokens, int(torch.randint(2**62, ())), mean, last_backward)

    def step(self, index: int, state: Any) -> _Step:
        segment = self.segments[index]
        with _seeded(self.seed + index, segment.source.device):
            total, state, auxiliary = segment_loss(self.model, segment, state)
        loss = total / self.num_tokens
        objective = loss if auxiliary is None else loss + auxiliary / len(self.segments)
        return _Step(loss, objective, state)

    def advance(self, index: int, state: Any) -> Any:
        segment = self.segments[index]
        with _seeded(self.seed + index, segment.source.device):
            if hasattr(self.model, "advance"):
                return self.model.advance(segment, state)
            return self.model(segment, state).state


def _one_graph(
    rollout: _Rollout, state: Any, step: Callable[[int, Any], _Step], memories: list[Any] | None
) -> tuple[Tensor, Any]:
    losses, objectives, filled = [], [], [_map_state(state, Tensor.detach)]
    for index in range(len(rollout.segments)):
        loss, objective, state = step(index, state)
        losses.append(loss.detach())
        objectives.append(objective)
        if memories is not None:
            filled.append(_map_state(state, Tensor.detach))
    _run_backward(rollout.last_backward, torch.stack(objectives).sum(), (), None)
    if memories is not None:
        memories[:] = filled
    return rollout.mean(torch.stack(losses).sum()), _map_state(state, Tensor.detach)


def _run_backward(backward: Backward | None, loss: Tensor, state: Any, gradients: list[Tensor | None] | None) -> None:
    """Differentiate the loss, and the state in the direction of its gradients, in one pass."""
    pairs = [
        (member, gradient)
        for member, gradient in zip(state, gradients or [None] * len(state), strict=True)
        if gradient is not None and member.requires_grad
    ]
    if not loss.requires_grad:
        if not pairs:
            return  # nothing that is trained has a part in this segment
        loss = loss.detach().requires_grad_()  # keeps its place in the list, and leads nowhere
    (backward or torch.autograd.backward)([loss, *(m for m, _ in pairs)], [None, *(g for _, g in pairs)])


def _map_state(state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    members = [function(member) for member in state]
    return type(state)(*members) if hasattr(state, "_fields") else tuple(members)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from this seed, on the CPU and the device; afterwards the generators go on as if nothing was drawn."""
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices, device_type="cuda" if device.type == "cpu" else device.type):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.get_device_module(device).manual_seed(seed)
        yield
