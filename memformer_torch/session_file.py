"""A session as a file: safetensors with fingerprints of the model, the tokenizer and the content."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from memformer_torch.checkpoint import write_durably
from memformer_torch.data.tokenizer import Tokenizer

KIND = "memformer-session-1"


def write(path: Path, tensors: dict[str, Tensor], model: Any, tokenizer: Tokenizer | None) -> None:
    """Whole, or as it was."""
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    facts = {
        "kind": KIND,
        "model": _fingerprint(model),
        "tokenizer": "" if tokenizer is None else tokenizer.fingerprint,
        "content": _digest(tensors),
    }
    write_durably(path, save(tensors, facts))


def read(path: Path, model: Any, tokenizer: Tokenizer | None) -> dict[str, Tensor]:
    """What was written, or a ValueError if it is damaged, or of another model or tokenizer."""
    content = path.read_bytes()
    try:
        tensors = load(content)
        size = int.from_bytes(content[:8], "little")
        facts = json.loads(content[8 : 8 + size]).get("__metadata__", {})
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is not a session, or was cut off: {error}") from error
    if facts.get("kind") != KIND or facts.get("content") != _digest(tensors):
        raise ValueError(f"{path} is not a session as it was saved: it was edited, or is another kind of file")
    if facts["model"] != _fingerprint(model):
        raise ValueError(f"{path} was saved by a session of another model or other weights: load those it was made with")
    if tokenizer is not None and facts["tokenizer"] not in ("", tokenizer.fingerprint):
        raise ValueError(f"{path} was saved by a session with another tokenizer: load the one it was made with")
    return tensors


def _fingerprint(model: Any) -> str:
    """Of a model's weights, names and config: another training or another shape gives another."""
    digest = hashlib.sha256(repr((type(model).__name__, model.config)).encode())
    digest.update(_digest(model.state_dict()).encode())
    return digest.hexdigest()


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
