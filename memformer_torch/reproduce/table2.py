"""Table 2: words of running text, with its ablations; all that a scale decides stands on top."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from memformer_torch.reproduce.orders import Order
from memformer_torch.reproduce.report import Experiment, Report
from memformer_torch.reproduce.row import Results
from memformer_torch.reproduce.scores import Scores
from memformer_torch.reproduce.table import SEEDS, Budget, Table, Variant, with_shares

Layers = tuple[int, int]
"""Of encoder and decoder."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    data: Mapping[str, Any]
    common: Mapping[str, Any]
    """What all models share, the clusters of the vocabulary among it."""
    layers: Layers
    few_decoders: Layers
    baseline: int
    """Layers of the baselines."""
    slots: int
    lengths: Mapping[int, int]
    """Memory of Transformer-XL: the paper's, and ours."""
    compressive: Mapping[str, int]
    temperature: float
    budget: Budget
    seeds: int
    """Of rows that have not `SEEDS`."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Of the learning rate, for parts of Memformer's memory."""


CPU = Sizes(  # an eighth of the paper's width, segment and memories, a quarter of its layers
    data={"name": "wikitext-2"},  # words: of the same budget, bytes of enwik8 told less of memory (docs/notes.md)
    common={
        "d_model": 64,
        "num_heads": 4,
        "d_ff": 256,
        "segment_length": 16,
        "dropout": 0.1,
        "cutoffs": [2000, 10_000],
    },
    layers=(1, 4),
    few_decoders=(1, 3),
    baseline=4,
    slots=128,
    lengths={128: 16, 256: 32, 512: 64, 1024: 128},  # 32 and 1600 are left out
    compressive={"memory_length": 64, "compressed_length": 64, "compression_ratio": 4},
    temperature=0.125,
    budget=Budget(
        train={
            "updates": 800,
            "batch_size": 32,
            "horizon": 8,
            "warm_up": 100,
            "shares": {"embedding.": 4.0},  # what suits the layers is too slow for words (docs/notes.md)
            "method": "bptt",  # the gradients are MRBP's; at this size memory is no concern, and it takes less time
            "evaluate_every": 200,
            "evaluate_tokens": 50_000,
            "checkpoint_every": 100,
        },
        rates=(4e-3, 8e-3, 1.6e-2),
        tuning={"updates": 200, "warm_up": 50, "evaluate_every": 200},
        finals=2,
    ),
    seeds=1,
    shares={"writer.": 0.1, "forgetting.": 0.01},  # as in Table 1
)
PAPER = Sizes(  # section 4.3 and appendix B
    data={"name": "wikitext-103"},
    common={
        "d_model": 512,
        "num_heads": 8,
        "d_ff": 2048,
        "segment_length": 128,
        "dropout": 0.1,
        "cutoffs": [20_000, 40_000, 200_000],
    },
    layers=(4, 16),
    few_decoders=(4, 12),
    baseline=16,
    slots=1024,
    lengths={length: length for length in (32, 128, 256, 512, 1024, 1600)},
    compressive={"memory_length": 512, "compressed_length": 512, "compression_ratio": 4},
    temperature=0.125,
    budget=Budget(
        train={
            "updates": 150_000,
            "batch_size": 128,
            "horizon": 8,
            "warm_up": 10_000,
            "evaluate_every": 2000,
            "checkpoint_every": 2000,
        },
        rates=(1e-3,),
    ),
    seeds=SEEDS,  # it reports medians of three trials
)
SCALES = {"cpu": CPU, "paper": PAPER}

CPU_NOTE = (
    "The embedding's own rate, for all models alike, was taken after Memformer had lost by more with one rate for all "
    "parameters: docs/notes.md says by how much, and why."
)

BASE, NO_MEMORY = "memformer", "without-memory"
NUMBERS = {32: (27.22, 26), 128: (25.60, 39), 256: (25.39, 58), 512: (23.94, 94), 1024: (23.67, 168), 1600: (23.95, 250)}
"""The paper's perplexity and GFLOP of Transformer-XL, by its memory."""


def orders(lengths: list[int]) -> list[Order]:
    """Those of the paper among the rows that there are."""
    names = {length: f"transformer-xl-{length}" for length in lengths}
    others = (*names.values(), "compressive", "few-decoders", "half-the-slots", NO_MEMORY)
    neighbours = [sorted(pair, key=lambda length: NUMBERS[length]) for pair in pairwise(lengths)]
    return [
        *[Order(BASE, other) for other in others],
        *[Order(names[better], names[worse]) for better, worse in neighbours],
        Order("compressive", names[1024]),
        Order("half-the-slots", "few-decoders"),
        Order("few-decoders", NO_MEMORY),
        Order("half-the-slots", NO_MEMORY),
    ]


def table(scale: str) -> Table:
    """The rows of Table 2; files are named after the paper's sizes, whatever they are here."""
    sizes = SCALES[scale]
    return Table(
        experiment="table2",
        scale=scale,
        data=sizes.data,
        budget=sizes.budget,
        variants=[*_baselines(sizes), *_memformers(sizes)],
        contenders=[f"transformer-xl-{length}" for length in sizes.lengths],
    )


def _baselines(sizes: Sizes) -> list[Variant]:
    stack = {**sizes.common, "num_layers": sizes.baseline}
    few, compressed = (sizes.compressive[name] for name in ("memory_length", "compressed_length"))
    return [
        *[
            Variant(
                label=f"Transformer-XL, memory={length}",
                slug=f"transformer-xl-{length}",
                model={"name": "transformer-xl", **stack, "memory_length": here},
                here=f"{sizes.baseline} layers, memory={here}",
                paper={"perplexity": NUMBERS[length][0], "flops": NUMBERS[length][1]},
                seeds=sizes.seeds,
            )
            for length, here in sizes.lengths.items()
        ],
        Variant(
            label="Compressive Transformer, memory=512 compress=512",
            slug="compressive",
            model={"name": "compressive", **stack, **sizes.compressive},
            here=f"{sizes.baseline} layers, {few} + {compressed}",
            paper={"perplexity": 23.23, "flops": 172},
            seeds=sizes.seeds,
        ),
    ]


def _memformers(sizes: Sizes) -> list[Variant]:
    def variant(
        label: str,
        slug: str,
        paper: tuple[float, ...] = (),
        layers: Layers = sizes.layers,
        seeds: int = sizes.seeds,
        **changes: Any,
    ) -> Variant:
        model = {
            "name": "memformer",
            **sizes.common,
            "num_encoder_layers": layers[0],
            "num_decoder_layers": layers[1],
            "num_slots": sizes.slots,
            "temperature": sizes.temperature,
            **changes,
        }
        here = f"{layers[0]}+{layers[1]}, {model['num_slots']} slot{'' if model['num_slots'] == 1 else 's'}"
        numbers = dict(zip(("perplexity", "flops"), paper, strict=False))
        train = with_shares({**sizes.budget.train.get("shares", {}), **sizes.shares}, model)
        return Variant(label=label, slug=slug, model=model, here=here, train=train, paper=numbers, seeds=seeds)

    return [
        variant("Memformer 4+16", BASE, (22.74, 54), seeds=SEEDS),
        variant("4+12", "few-decoders", (23.91, 48), sizes.few_decoders),
        variant("memory=512", "half-the-slots", (23.30, 35), num_slots=sizes.slots // 2),
        variant("w/o memory", NO_MEMORY, (25.57, 31), seeds=SEEDS, num_slots=0),
    ]


def report(table: Table, results: Results) -> Report:
    sizes = SCALES[table.scale]
    scores = Scores.of(table, results, BASE, orders(list(sizes.lengths)))
    title = f"Table 2: language modeling on {sizes.data['name']}"
    return Report(
        title=title,
        grids=[scores.grid("Perplexity a token on the test text"), scores.orders_grid()],
        notes=[*([CPU_NOTE] if table.scale == "cpu" else []), *scores.notes(results)],
        draw=scores.draw_by_flops,
        brief=scores.brief(title, [variant.slug for variant in table.variants]),
        summary=scores.summary(),
    )


def table2(scale: str) -> Experiment:
    chosen = table(scale)
    return Experiment(name="table2", rows=chosen.rows, report=partial(report, chosen))
