"""Table 1: images as sequences, pixel by pixel, with every ablation; all that a scale decides stands on top."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from memformer_torch.reproduce.orders import Order
from memformer_torch.reproduce.plan import run_folder
from memformer_torch.reproduce.report import Experiment, Report
from memformer_torch.reproduce.row import Results
from memformer_torch.reproduce.samples import draw_completions
from memformer_torch.reproduce.scores import Scores
from memformer_torch.reproduce.table import SEEDS, Budget, Table, Variant, with_shares

Layers = tuple[int, int]
"""Of encoder and decoder."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    side: int
    """Pixels of an image's side."""
    width: Mapping[str, Any]
    """What all models share."""
    attention: Mapping[str, Any]
    """What all but the LSTM share."""
    layers: Layers
    ablated: Layers
    """Of the smaller Memformer that the ablations are about."""
    few_decoders: Layers
    baseline: int
    """Layers of Transformer-XL and the decoder."""
    deep: int | None = None
    """Layers of those that are trained besides, a harder comparison than the paper's."""
    lstm: Mapping[str, int]
    slots: Mapping[int, int]
    """Memory of Memformer: the paper's, and ours."""
    lengths: Mapping[int, int]
    """Memory of Transformer-XL: the paper's, and ours."""
    budget: Budget
    seeds: int
    """Of rows that have not `SEEDS`."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Of the learning rate, for parts of Memformer's memory."""


CPU = Sizes(
    side=14,
    width={"d_model": 64, "segment_length": 14, "dropout": 0.0},  # less than one pass over the images: nothing to over-fit
    attention={"num_heads": 4, "d_ff": 128},
    layers=(2, 4),
    ablated=(1, 3),
    few_decoders=(2, 2),
    baseline=4,
    deep=6,  # as many as Memformer's encoder and decoder together
    lstm={"num_layers": 4, "hidden_size": 100},  # as many parameters as Memformer, within a few percent
    slots={64: 16, 32: 8, 16: 4, 1: 1},
    lengths={56: 14, 224: 56, 784: 196},
    budget=Budget(
        train={
            "updates": 1500,
            "batch_size": 32,
            "horizon": 14,  # one image a rollout: what the first pixels leave in memory is judged by the last
            "warm_up": 100,
            "method": "bptt",  # the gradients are MRBP's; at this size memory is no concern, and it takes a fifth less time
            "evaluate_every": 500,
            "evaluate_tokens": 100_000,
            "checkpoint_every": 100,
        },
        rates=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
        tuning={"updates": 300, "warm_up": 50},
        finals=2,
    ),
    seeds=1,
    # at the rates that suit the rest, the writer's sharp softmax saturates, and slots become alike: see docs/notes.md
    shares={"writer.": 0.1, "forgetting.": 0.01},
)
PAPER = Sizes(  # section 4.2 and appendix B
    side=28,
    width={"d_model": 128, "segment_length": 14, "dropout": 0.1},
    attention={"num_heads": 4, "d_ff": 256},
    layers=(4, 8),
    ablated=(2, 6),
    few_decoders=(4, 4),
    baseline=8,
    lstm={"num_layers": 4, "hidden_size": 512},
    slots={slots: slots for slots in (64, 32, 16, 1)},
    lengths={length: length for length in (56, 224, 784)},
    budget=Budget(
        train={
            "updates": 10_000,
            "batch_size": 256,
            "horizon": 8,
            "warm_up": 1000,
            "evaluate_every": 500,
            "checkpoint_every": 500,
        },
        rates=(1e-3,),
    ),
    seeds=SEEDS,  # it reports medians of three trials
)
SCALES = {"cpu": CPU, "paper": PAPER}

BASE, ABLATED, NO_MEMORY = "memformer", "ablated", "without-memory"
TRANSFORMER_XLS = ("transformer-xl-56", "transformer-xl-224", "transformer-xl-784")
SWITCHES = ("temperature-1", "without-forgetting", "without-forgetting-and-norm", "without-multi-head")
ORDERS = [
    *[Order(BASE, other) for other in (*TRANSFORMER_XLS, "decoder", "lstm", ABLATED, "few-decoders")],
    Order("decoder", "transformer-xl-784"),
    Order("transformer-xl-784", "transformer-xl-224"),
    Order("transformer-xl-224", "transformer-xl-56"),
    Order("transformer-xl-56", "lstm"),
    Order(ABLATED, "memory-32"),
    Order("memory-32", "memory-16"),
    Order("memory-16", "memory-1"),
    Order("memory-1", NO_MEMORY),
    *[Order(ABLATED, other) for other in (NO_MEMORY, "few-decoders", *SWITCHES)],
]
DEEPER = ", deeper (not in the paper)"
BRIEF = ("lstm", "deep-decoder", "deep-transformer-xl-784", "decoder", *TRANSFORMER_XLS, BASE, ABLATED, NO_MEMORY)
"""For the README."""


def table(scale: str) -> Table:
    """The rows of Table 1; files are named after the paper's sizes, whatever they are here."""
    sizes = SCALES[scale]
    return Table(
        experiment="table1",
        scale=scale,
        data={"name": "mnist", "size": sizes.side},
        budget=sizes.budget,
        variants=[*_baselines(sizes), *_memformers(sizes)],
        length=sizes.side**2,
        segment=sizes.width["segment_length"],
        contenders=TRANSFORMER_XLS,
    )


def _baselines(sizes: Sizes) -> list[Variant]:
    lstm = Variant(
        label="LSTM",
        slug="lstm",
        model={"name": "lstm", **sizes.width, **sizes.lstm},
        here=f"{sizes.lstm['num_layers']} layers of {sizes.lstm['hidden_size']}",
        paper={"perplexity": 1.698, "flops": 52.5},
        seeds=sizes.seeds,
    )
    deep = [] if sizes.deep is None else _transformers(sizes, sizes.deep)
    deep = [replace(variant, slug=f"deep-{variant.slug}", label=f"{variant.label}{DEEPER}", paper={}) for variant in deep]
    return [lstm, *deep, *_transformers(sizes, sizes.baseline)]


def _transformers(sizes: Sizes, num_layers: int) -> list[Variant]:
    stack = {**sizes.width, **sizes.attention, "num_layers": num_layers}
    lengths = list(sizes.lengths.items())
    return [
        Variant(
            label="Transformer Decoder",
            slug="decoder",
            model={"name": "decoder", **stack, "max_length": sizes.side**2, "segment_length": sizes.side**2},
            here=f"{num_layers} layers",
            train={"horizon": 1},  # an image in one pass: the same gradients as segment by segment, in half the time
            paper={"perplexity": 1.569, "flops": 41.3},
            seeds=sizes.seeds,
        ),
        *[
            Variant(
                label=f"Transformer-XL, memory={length}",
                slug=f"transformer-xl-{length}",
                model={"name": "transformer-xl", **stack, "memory_length": here},
                here=f"{num_layers} layers, memory={here}",
                paper={"perplexity": perplexity, "flops": flops},
                seeds=sizes.seeds,
            )
            for (length, here), (perplexity, flops) in zip(lengths, ((1.650, 5.6), (1.618, 15.6), (1.611, 49.1)), strict=True)
        ],
    ]


def _memformers(sizes: Sizes) -> list[Variant]:
    def variant(
        label: str,
        slug: str,
        perplexity: float,
        flops: float,
        layers: Layers = sizes.ablated,
        seeds: int = sizes.seeds,
        **changes: Any,
    ) -> Variant:
        model = memformer(sizes, layers) | changes
        return Variant(
            label=label,
            slug=slug,
            model=model,
            here=f"{layers[0]}+{layers[1]}, {model['num_slots']} slot{'' if model['num_slots'] == 1 else 's'}",
            train=with_shares(sizes.shares, model),
            paper={"perplexity": perplexity, "flops": flops},
            seeds=seeds,
        )

    return [
        variant("Memformer 4+8", BASE, 1.555, 5.0, sizes.layers, SEEDS),
        variant("2+6, memory=64", ABLATED, 1.594, 3.9),
        variant("2+6, memory=32", "memory-32", 1.600, 3.9, num_slots=sizes.slots[32]),
        variant("2+6, memory=16", "memory-16", 1.604, 3.9, num_slots=sizes.slots[16]),
        variant("2+6, memory=1", "memory-1", 1.627, 3.9, num_slots=sizes.slots[1]),
        variant("4+4", "few-decoders", 1.628, 3.6, sizes.few_decoders),
        variant("w/o memory", NO_MEMORY, 1.745, 1.8, seeds=SEEDS, num_slots=0),
        variant("temperature=1.0", "temperature-1", 1.612, 3.9, temperature=1.0),
        variant("w/o forgetting, norm kept", "without-forgetting", 1.630, 3.9, forgetting=False),
        variant("w/o forgetting, w/o norm", "without-forgetting-and-norm", 1.630, 3.9, forgetting=False, memory_norm=False),
        variant("w/o multi-head (writer)", "without-multi-head", 1.626, 3.9, num_writer_heads=1),
    ]


def memformer(sizes: Sizes, layers: Layers) -> dict[str, Any]:
    return {
        "name": "memformer",
        **sizes.width,
        **sizes.attention,
        "num_encoder_layers": layers[0],
        "num_decoder_layers": layers[1],
        "num_slots": sizes.slots[64],
        "temperature": 0.25,
    }


def report(table: Table, results: Results) -> Report:
    scores = Scores.of(table, results, BASE, ORDERS)
    side = SCALES[table.scale].side
    notes = ["Perplexity is a pixel's, as in the paper, whose images have 28 x 28."]
    if table.segment == side:
        notes += [
            "A segment is a row of the image, where the paper's is half of one: the pixel above is in the source, and what "
            "memory is made of counts for less. `memformer reproduce slots` has segments of half a row."
        ]
    title = f"Table 1: MNIST at {side} x {side} pixels as sequences of {side**2} tokens"
    return Report(
        title=title,
        grids=[
            scores.grid("Perplexity a pixel on the test images"),
            scores.dearer_grid([slug for slug in scores.found if "transformer-xl" in slug]),
            scores.orders_grid(),
        ],
        notes=[*notes, *scores.notes(results)],
        draw=scores.draw_by_flops,
        brief=scores.brief(title, BRIEF),
        summary=scores.summary(),
    )


def draw_samples(table: Table, results: Results, runs: Path, path: Path) -> None:
    """Test digits completed by Memformer with and without memory, if there are such runs."""
    folders = {}
    for label, slug in (("Memformer", BASE), ("w/o memory", NO_MEMORY)):
        for row in table.seeds(table[slug], results, [0]):
            if results.get(row) is not None and (run_folder(runs, row) / "best.json").exists():
                folders[label] = run_folder(runs, row)
    if folders:
        draw_completions(path, folders)


def table1(scale: str) -> Experiment:
    chosen = table(scale)
    return Experiment(
        name="table1", rows=chosen.rows, report=partial(report, chosen), draw_samples=partial(draw_samples, chosen)
    )
