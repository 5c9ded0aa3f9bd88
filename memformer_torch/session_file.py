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
    write_durably(path, pack(tensors, fingerprint(model), tokenizer))


def read(path: Path, model: Any, tokenizer: Tokenizer | None) -> dict[str, Tensor]:
    """What was written, or a ValueError if it is damaged, or of another model or tokenizer."""
    return unpack(path.read_bytes(), fingerprint(model), tokenizer, str(path))


def pack(tensors: dict[str, Tensor], model: str, tokenizer: Tokenizer | None) -> bytes:
    """The file's content, for a model of this fingerprint."""
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    facts = {
        "kind": KIND,
        "model": model,
        "tokenizer": "" if tokenizer is None else tokenizer.fingerprint,
        "content": _digest(tensors),
    }
    return save(tensors, facts)


def unpack(content: bytes, model: str, tokenizer: Tokenizer | None, name: str) -> dict[str, Tensor]:
    """What was packed for a model of this fingerprint; errors say `name`."""
    try:
        tensors = load(content)
        size = int.from_bytes(content[:8], "little")
        facts = json.loads(content[8 : 8 + size]).get("__metadata__", {})
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{name} is not a session, or was cut off: {error}") from error
    known = facts.keys() == {"kind", "model", "tokenizer", "content"}
    if not known or facts["kind"] != KIND or facts["content"] != _digest(tensors):
        raise ValueError(f"{name} is not a session as it was saved: it was edited, or is another kind of file")
    if facts["model"] != model:
        raise ValueError(f"{name} was saved by a session of another model or other weights: load those it was made with")
    if tokenizer is not None and facts["tokenizer"] not in ("", tokenizer.fingerprint):
        raise ValueError(f"{name} was saved by a session with another tokenizer: load the one it was made with")
    return tensors


def fingerprint(model: Any) -> str:
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
