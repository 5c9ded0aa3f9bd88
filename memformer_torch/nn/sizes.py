"""The checks that configs share: of types, and of a model's sizes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}


def check_types(config: Any, owner: str = "") -> None:
    """Raise a ValueError unless a config's fields hold what they are declared to hold, which YAML does not know."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        check_type(owner + field.name, getattr(config, field.name), hints[field.name])


def check_type(name: str, value: Any, hint: Any) -> None:
    if not _fits(value, hint):
        raise ValueError(f"{name} is {value!r}, but must be {_in_words(hint)}")


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in arguments)
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in arguments)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(_fits(one, arguments[1]) for one in value.values())
    if origin is not None and issubclass(origin, Sequence):  # JSON and YAML know lists alone
        return isinstance(value, list | tuple) and all(_fits(one, arguments[0]) for one in value)
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    return hint is Any or isinstance(value, hint)


def _in_words(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(_in_words, arguments))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin is not None and issubclass(origin, Mapping):
        return f"a mapping to {_in_words(arguments[1])}"
    if origin is not None and issubclass(origin, Sequence):
        return f"a list, each {_in_words(arguments[0])}"
    return WORDS.get(hint, getattr(hint, "__name__", str(hint)))


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
