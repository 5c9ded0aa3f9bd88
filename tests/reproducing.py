"""A table in miniature, on digits, and results that nothing was run for."""

from memformer_torch.bench.record import write_json
from memformer_torch.reproduce.row import Row
from memformer_torch.reproduce.table import Budget, Table, Variant
from memformer_torch.reproduce.work import count_model_flops, train_row

MODEL = {"name": "memformer", "d_model": 16, "num_heads": 2, "d_ff": 24, "num_encoder_layers": 1, "num_decoder_layers": 1}
MODEL |= {"segment_length": 8, "num_slots": 2}
TRAIN = {"updates": 6, "batch_size": 30, "horizon": 4, "warm_up": 2, "learning_rate": 1e-3}
TRAIN |= {"evaluate_every": 3, "evaluate_tokens": 640, "checkpoint_every": 4, "log_every": 1}
ROW = Row(
    experiment="tiny", family="memformer", label="Tiny", slug="tiny", work=train_row, data={"name": "digits"}, model=MODEL,
    train=TRAIN, length=64,
)  # fmt: skip
TABLE = Table(
    experiment="tiny",
    scale="cpu",
    data={"name": "digits"},
    budget=Budget(train={**TRAIN, "updates": 2}, rates=(1e-3, 1e-2), tuning={"updates": 1}),
    variants=[
        Variant(label="Tiny", slug="tiny", model=MODEL),
        Variant(label="w/o memory", slug="none", model={**MODEL, "num_slots": 0}),
    ],
)


def fake(row, loss, **more):
    """A result as it would be written."""
    numbers = {"valid": {"loss": loss, "perplexity": 2**loss}, "test": {"loss": loss, "perplexity": 2**loss}}
    flops = {"of": "a document", "model": count_model_flops(row), "head": 1}
    return row.result(**numbers, flops=flops, parameters=1000, tokens=10**6, seconds=60.0, **more)


def put(results, row, loss, **more):
    write_json(results.folder / row.path, fake(row, loss, **more))
