"""`memformer models`: every model at the paper's sizes, in one table."""

from json import dumps
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from memformer_torch.models import MODELS, PRESETS


def models(json: bool = False) -> None:
    """List the models: parameters and state at the paper's two sizes.

    Parameters are counted without the vocabulary's embedding, which is the same for all models of one width. The state is
    what one sequence carries from segment to segment; the decoder's grows, and is given at its full length.

    Args:
        json: Print JSON instead of a table.
    """
    rows = {preset: {name: count(name, preset) for name in MODELS} for preset in PRESETS}
    if json:
        print(dumps(rows, indent=1))
        return
    console = Console(markup=False)
    for preset, counts in rows.items():
        table = Table("model", "parameters", "relative to Memformer", "state, numbers a sequence", title=f"preset {preset!r}")
        for name, row in counts.items():
            share = row["parameters"] / counts["memformer"]["parameters"]
            table.add_row(name, f"{row['parameters']:,}", f"{share:.2f}", f"{row['state']:,}")
        console.print(table)
        layers, parameters = matching_layers(preset)
        console.print(f"A Transformer-XL of {layers} layers has {parameters:,} parameters, nearest to Memformer's.\n")


def matching_layers(preset: str) -> tuple[int, int]:
    """The depth at which Transformer-XL comes nearest to Memformer's parameters, as in the paper's cost figure."""
    wanted, base = (count(name, preset)["parameters"] for name in ("memformer", "transformer-xl"))
    depth = MODELS["transformer-xl"][0](**{"vocab_size": 256} | PRESETS[preset]["transformer-xl"]).num_layers
    a_layer = (base - count("transformer-xl", preset, num_layers=1)["parameters"]) // (depth - 1)
    layers = depth + round((wanted - base) / a_layer)
    return layers, base + (layers - depth) * a_layer


def count(name: str, preset: str, **changes: Any) -> dict[str, int]:
    """Parameters without the vocabulary's embedding, and floating-point numbers of state a sequence."""
    config_class, model_class = MODELS[name]
    config = config_class(**{"vocab_size": 256} | PRESETS[preset][name] | changes)
    with torch.device("meta"):  # shapes alone: nothing is allocated
        model = model_class(config)
        state = model.initial_state(1)
    parameters = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("embedding."))
    numbers = sum(member.numel() for member in state if member.is_floating_point())
    return {"parameters": parameters, "state": numbers or _grown(config)}


def _grown(config: Any) -> int:
    """A growing cache at its full length: keys and values of every layer."""
    return 2 * config.num_layers * config.max_length * config.d_model
