"""The checks of sizes that the models' configs share."""

from collections.abc import Collection
from dataclasses import fields
from typing import Any


def check_sizes(config: Any, may_be_zero: Collection[str] = ()) -> None:
    """Raise a ValueError unless a config's whole numbers, heads and dropout make sense together."""
    for name in (field.name for field in fields(config) if field.type is int):
        value, least = getattr(config, name), 0 if name in may_be_zero else 1
        if value < least:
            raise ValueError(f"{name} is {value}, but must be at least {least}")
    if hasattr(config, "num_heads"):
        if config.d_model % config.num_heads:
            raise ValueError(f"d_model is {config.d_model}, which num_heads {config.num_heads} does not divide")
        if config.d_model // config.num_heads % 2:
            raise ValueError(f"d_model / num_heads is {config.d_model // config.num_heads}, but positions need it even")
    if not 0 <= config.dropout < 1:
        raise ValueError(f"dropout is {config.dropout}, but must be in [0, 1)")
