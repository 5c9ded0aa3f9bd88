"""A model as a folder of Hugging Face's: its config and its weights, taken back only if they are this model's, and whole."""

import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
from safetensors import SafetensorError

CONFIG = "config.json"
KIND = "model"
"""The key of the config that names the class; no model has a field of that name."""


class Pretrained(PyTorchModelHubMixin):
    """`save_pretrained`, `from_pretrained` and `push_to_hub`.

    Hugging Face's own would leave out config keys that the model does not have, fill up missing weights at random, and read a
    pickle where there are no safetensors.
    """

    config: Any

    def _save_pretrained(self, save_directory: Path) -> None:
        super()._save_pretrained(save_directory)
        config = {KIND: type(self).__name__, **asdict(self.config)}
        (save_directory / CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")

    @classmethod
    def _from_pretrained(cls, *, model_id: str, strict: bool = True, **options: Any) -> Any:
        if "config" not in options:
            raise ValueError(f"{model_id} has no {CONFIG}: it is not a folder that save_pretrained wrote")
        if os.path.isdir(model_id):
            path = Path(model_id) / CONFIG
        else:
            places = ("revision", "cache_dir", "force_download", "local_files_only", "token")
            path = Path(hf_hub_download(model_id, CONFIG, **{name: options[name] for name in places}))
        found = json.loads(path.read_text(encoding="utf-8"))
        if (kind := found.pop(KIND, cls.__name__)) != cls.__name__:
            raise ValueError(f"{model_id} holds a {kind}, not a {cls.__name__}: use {kind}.from_pretrained")
        if unknown := found.keys() - {field.name for field in fields(options["config"])}:
            raise ValueError(f"{model_id}: {CONFIG} has {', '.join(sorted(unknown))}, which a {cls.__name__} does not have")
        try:
            return super()._from_pretrained(model_id=model_id, strict=strict, **options)
        except (RuntimeError, SafetensorError) as error:
            raise ValueError(f"{model_id}: the weights are damaged, or not those of its {CONFIG}: {error}") from error

    @classmethod
    def _load_as_pickle(cls, model: Any, model_file: str, map_location: str, strict: bool) -> Any:
        raise ValueError(f"{model_file} is a pickle, which is never read: save the weights by save_pretrained")
