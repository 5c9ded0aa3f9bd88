"""`memformer models`: every model at the paper's sizes, in one table; or the settings of one."""

from dataclasses import MISSING, fields
from json import dumps
from typing import Any

import torch
from docstring_parser import parse_from_object
from rich.console import Console
from rich.table import Table

from memformer_torch.models import MODELS, PRESETS
from memformer_torch.runs import nearest


def models(settings: str = "", json: bool = False) -> None:
    """List the models: parameters and state at the paper's two sizes; or what can be set of one.

    Parameters are counted without the vocabulary's embedding, which is the same for all models of one width. The state is
    what one sequence carries from segment to segment; the decoder's grows, and is given at its full length.

    Args:
        settings: The name of a model: list its settings instead, with their defaults, as training takes them.
        json: Print JSON instead of a table.
    """
    if settings:
        print_settings(settings, json)
        return
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


def print_settings(name: str, json: bool) -> None:
    """What stands in the model's config, but for the vocabulary, which the data decides."""
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}{nearest(name, MODELS)}: choose one of {', '.join(MODELS)}")
    config = MODELS[name][0]
    parts = [part for part in reversed(config.__mro__) if part is not object]
    told = {field.arg_name: field.description or "" for part in parts for field in parse_from_object(part).params}
    defaults = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(config)
        if field.name != "vocab_size"
    }
    if json:
        print(dumps({name: {"default": value, "says": told[name]} for name, value in defaults.items()}, indent=1))
        return
    table = Table("setting", "default", "what it is", title=f"{name}: --model.SETTING")
    for setting, value in defaults.items():
        table.add_row(setting, str(value), " ".join(told[setting].split()))
    Console(markup=False).print(table)


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
