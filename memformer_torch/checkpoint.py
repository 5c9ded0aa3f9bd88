"""A run is a folder, and a checkpoint in it is whole or is not there.

    RUN/config.yaml              what was asked for
    RUN/vocabulary.json          how text becomes ids, so that the model can be used without its data
    RUN/metrics.jsonl            what was logged, a line an update
    RUN/samples/, tensorboard/   where asked for: what the model made of beginnings; what was logged, for TensorBoard
    RUN/checkpoints/00000200/    weights.safetensors, training.safetensors, training.json
    RUN/last.json, RUN/best.json which checkpoint is the newest, and which the best; replaced in one step

Files are written to a folder of a temporary name, flushed, and renamed; a checkpoint counts from the moment that last.json
names it. training.json holds a digest of each file and of itself, so that a flipped byte is an error and not a wrong result.
Nothing is pickled.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from memformer_torch.data.cache import file_digest, flush
from memformer_torch.distributed import shard_like
from memformer_torch.nn.past import join_rows
from memformer_torch.types import State


def save_checkpoint(
    run: Path, update: int, weights: dict[str, Tensor], tensors: dict[str, Tensor], facts: dict[str, Any]
) -> Path:
    """Write a checkpoint: weights apart from all else, so that a model can be loaded without its optimizer."""
    folder = run / "checkpoints" / f"{update:08d}"
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        digests = {}
        for name, content in (("weights.safetensors", weights), ("training.safetensors", tensors)):
            save_file({key: value.detach().cpu().contiguous() for key, value in content.items()}, part / name)
            digests[name] = file_digest(part / name)
            flush(part / name)
        whole = {"update": update, "digests": digests, **facts}
        write_durably(part / "training.json", json.dumps({**whole, "digest": _digest(whole)}))
        flush(part)
    except (OSError, SafetensorError) as error:  # the second wraps the first, for example of a full disk
        shutil.rmtree(part, ignore_errors=True)  # it has the room that is missing
        raise OSError(f"{part} could not be written: {error}") from error
    shutil.rmtree(folder, ignore_errors=True)  # of a run that went back: last.json names an earlier one
    part.rename(folder)
    flush(folder.parent)
    return folder


def point_to(run: Path, name: str, folder: Path) -> None:
    """Make a checkpoint the `last` or the `best`, and remove those that are neither."""
    write_durably(run / f"{name}.json", json.dumps({"checkpoint": folder.name}))
    named = {_pointed(run, pointer) for pointer in ("last", "best")}
    for other in folder.parent.iterdir():
        if other.name not in named:
            shutil.rmtree(other, ignore_errors=True)


def find_checkpoint(run: Path, which: str = "last") -> Path:
    """The folder of the `last` or `best` checkpoint."""
    if which not in ("last", "best"):
        raise ValueError(f"there is no checkpoint {which!r}: choose best or last")
    name = _pointed(run, which)
    if name is None:
        hint = "it was stopped before its first evaluation: try --checkpoint last" if _pointed(run, "last") else "is it a run?"
        raise ValueError(f"{run} has no {which} checkpoint: {hint}")
    return run / "checkpoints" / name


def load_facts(folder: Path) -> dict[str, Any]:
    """What training.json says, after all files were found to be what was written."""
    try:
        facts = json.loads((folder / "training.json").read_text(encoding="utf-8"))
        digest, digests = facts.pop("digest", None), facts["digests"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"checkpoint {folder} is damaged: training.json cannot be read ({error!r})") from error
    if digest not in (None, _digest(facts)):  # earlier versions wrote none
        raise ValueError(f"checkpoint {folder} is damaged: training.json is not what was written")
    for name, digest in digests:
        if not (folder / name).is_file():
            raise ValueError(f"checkpoint {folder} is damaged: {name} is missing")
        if file_digest(folder / name) != digest:
            raise ValueError(f"checkpoint {folder} is damaged: {name} is not what was written")
    return facts


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def load_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def load_weights(model: torch.nn.Module, folder: Path) -> None:
    """Fill a model with a checkpoint's weights; a ValueError if they are another model's."""
    weights, own = load_tensors(folder / "weights.safetensors"), model.state_dict()
    try:
        model.load_state_dict({name: shard_like(weight, own.get(name, weight)) for name, weight in weights.items()})
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise ValueError(f"the weights in {folder} do not fit the model of its config: {reason}") from error


def pack_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, Tensor]:
    """An optimizer's state as tensors with the names of the parameters that they belong to."""
    packed: dict[str, Tensor] = {}
    states = optimizer.state_dict()["state"]
    for index, name in _names_by_index(optimizer, model).items():
        packed |= {f"optimizer.{name}.{key}": torch.as_tensor(value) for key, value in states.get(index, {}).items()}
    return packed


def unpack_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module, tensors: dict[str, Tensor]) -> None:
    indices = {name: index for index, name in _names_by_index(optimizer, model).items()}
    parameters = dict(model.named_parameters())
    states: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            name, _, part = key.removeprefix("optimizer.").rpartition(".")
            if name not in indices:
                raise ValueError(f"the checkpoint's optimizer knows a parameter {name}, which is not trained here")
            states.setdefault(indices[name], {})[part] = shard_like(value, parameters[name])
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def _names_by_index(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[int, str]:
    """The names of an optimizer's parameters, which it numbers by the order of its groups."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {index: names[parameter] for index, parameter in enumerate(trained)}


def pack_memories(ranks: list[list[State]]) -> dict[str, Tensor]:
    """The carried states of all lanes, from each rank's: the state itself, then those that are known of later segments."""
    packed: dict[str, Tensor] = {}
    for number, states in enumerate(zip(*ranks, strict=True)):
        packed |= {f"{_memory_name(number)}.{index}": member for index, member in enumerate(join_rows(list(states)))}
    return packed


def unpack_memories(like: Any, tensors: dict[str, Tensor], lanes: slice) -> list[Any]:
    """The carried states of some lanes, in the type of one of the model's own."""
    found: list[Any] = []
    while f"{(name := _memory_name(len(found)))}.0" in tensors:
        members = (tensors[f"{name}.{index}"][lanes].to(member.device) for index, member in enumerate(like))
        found.append(type(like)(*members))
    return found


def _memory_name(number: int) -> str:
    return f"memory.{number}" if number else "state"


def write_durably(path: Path, content: str | bytes) -> None:
    """Replace a file in one step: whole and on the disk, or as it was."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        flush(part)
    except OSError:
        part.unlink(missing_ok=True)  # it may have taken the last room on the disk
        raise
    part.replace(path)
    flush(path.parent)


def _pointed(run: Path, name: str) -> str | None:
    try:
        return json.loads((run / f"{name}.json").read_text(encoding="utf-8"))["checkpoint"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{run / name}.json is damaged: {error}") from error
