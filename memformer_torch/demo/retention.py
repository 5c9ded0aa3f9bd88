"""A small Memformer holds a value far beyond what it was trained on."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch.nn.utils import clip_grad_norm_

from memformer_torch.analysis import pictures
from memformer_torch.backprop import mrbp
from memformer_torch.bench.record import environment, write_json
from memformer_torch.data.retention import Retention
from memformer_torch.models.memformer import Memformer, MemformerConfig
from memformer_torch.types import Segment

DISTANCES = tuple(2**n for n in range(11))
MOST_DISTRACTORS = 8  # in training
COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
BATCH_SIZE, LEARNING_RATE, WARM_UP = 64, 2e-3, 50
LEARNED = 0.1  # a loss below this, and the next documents are longer
LOOK_EVERY, LOOK_AT = 50, 256  # training ends when every value of a reading of 256 segments is held, twice in a row


def retention(seed: int = 0, updates: int = 900, out: Path = Path("runs/retention")) -> None:
    """Train a small Memformer with memory replay back-propagation to hold a value, and test how far it does.

    A value is shown once, distracting segments follow (at most 8 in training), then it is asked for. Training ends early once
    all values of a separate reading are held for 256 segments. Prints accuracy at distances 1 to 1,024 segments on fresh
    values, and writes it to OUT as retention.json and retention.png.

    Args:
        seed: Seed of weights and data.
        updates: Most training updates.
        out: Folder for what the demo writes.
    """
    if updates < 1:
        raise ValueError(f"updates is {updates}, but must be at least 1")
    console = Console(markup=False)
    torch.set_num_threads(1)  # a second gains nothing in steps so small, and another order of sums would be another run
    torch.manual_seed(seed)
    task = Retention()
    config = MemformerConfig(
        vocab_size=task.vocab_size,
        d_model=64,
        num_heads=4,
        d_ff=128,
        num_encoder_layers=1,
        num_decoder_layers=1,
        segment_length=task.segment_length,
        num_slots=8,
        num_cls_tokens=4,
        bias_length=1.5,  # what is not rewritten is forgotten within 8 segments: it learns to rewrite, and so to hold for good
        dropout=0.2,  # noise that the rewriting must bear
    )
    model = Memformer(config)
    start = time.perf_counter()
    with Progress(*COLUMNS, console=console) as progress:
        bar = progress.add_task("training", total=updates)
        looks = []
        for update, loss in enumerate(train_retention(model, task, updates, seed), start=1):
            progress.update(bar, advance=1, description=f"training  loss {loss:6.3f}")
            if loss < LEARNED and update % LOOK_EVERY == 0:
                looks += [share for _, share in measure_retention(model, task, [LOOK_AT], 256, seed=1)]
                if looks[-2:] == [1.0, 1.0]:
                    break
        progress.update(bar, total=update)
        bar = progress.add_task("reading 1,024 segments", total=len(DISTANCES))
        accuracy = {}
        for distance, share in measure_retention(model, task, DISTANCES):
            accuracy[distance] = share
            progress.update(bar, advance=1)
    seconds = time.perf_counter() - start

    table = Table("distracting segments", "accuracy", "", title="Is the value still known?")
    for distance, share in accuracy.items():
        table.add_row(
            f"{distance:,}", f"{share:.3f}", "█" * round(40 * share), style="bold" if distance <= MOST_DISTRACTORS else ""
        )
    console.print(table)
    state_floats = config.num_slots * config.d_model
    console.print(f"Trained on at most {MOST_DISTRACTORS} distractors; the state is {state_floats} numbers at any distance.")
    record = {
        "command": f"memformer demo retention --seed {seed} --updates {updates}",
        "seed": seed,
        "runs": 1,
        "task": asdict(task),
        "config": asdict(config),
        "training": {"updates": update, "batch_size": BATCH_SIZE, "most_distractors": MOST_DISTRACTORS},
        "seconds": round(seconds, 1),
        "accuracy": accuracy,
        **environment(),
    }
    write_json(out / "retention.json", record)
    pictures.accuracy_by_distance(out / "retention.png", {"Memformer": accuracy}, 1 / task.num_values, MOST_DISTRACTORS)
    console.print(f"Written: {out / 'retention.json'}, {out / 'retention.png'} ({seconds:.0f} s)")


def train_retention(model: Memformer, task: Retention, updates: int, seed: int) -> Iterator[float]:
    """Train on documents with 0 to 8 distractors, one more each time the longest are learned; yields each update's loss."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / WARM_UP))
    model.train()
    most = 0
    for _ in range(updates):
        draws = 3 if most == MOST_DISTRACTORS else 1  # once all lengths are learned, the long ones teach most
        distractors = int(torch.randint(most + 1, (draws,), generator=generator).max())
        values = torch.randint(task.num_values, (BATCH_SIZE,), generator=generator)
        loss, _ = mrbp(model, task.rollout(values, distractors, generator), model.initial_state(BATCH_SIZE))
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if loss < LEARNED and distractors == most:
            most = min(most + 1, MOST_DISTRACTORS)
        yield loss.item()


@torch.no_grad()
def measure_retention(
    model: Memformer, task: Retention, distances: Sequence[int], batch_size: int = 512, seed: int = 0
) -> Iterator[tuple[int, float]]:
    """The share of right answers at each distance: one long reading, with the question asked on the side."""
    training = model.training
    model.eval()
    generator = torch.Generator().manual_seed(2**31 + seed)  # apart from what training draws
    values = torch.randint(task.num_values, (batch_size,), generator=generator)
    first, question = task.rollout(values, 0, generator)
    state, text = model.advance(first, model.initial_state(batch_size)), question.source
    for distance in range(max(distances) + 1):
        if distance in distances:
            logits = model(Segment(text, question.target), state).logits
            yield distance, (logits[:, 1].argmax(-1) == values).float().mean().item()
        noise = task.noise(batch_size, generator)
        state, text = model.advance(Segment(text, noise), state), noise
    model.train(training)
