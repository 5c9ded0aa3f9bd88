"""A result as data: JSON that says what was run, with which versions and on what machine."""

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def environment() -> dict[str, Any]:
    """Versions and the machine's size."""
    return {
        "versions": {name: version(name) for name in ("memformer-torch", "torch", "numpy")}
        | {"python": platform.python_version()},
        "machine": {
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "accelerator": torch.accelerator.is_available(),
        },
    }


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write a record whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
