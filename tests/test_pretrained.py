"""A model as a folder: what was saved comes back, and anything else is refused."""

import json

import pytest
import torch

from memformer_torch.models import MODELS
from tests.test_contract import build, every_model


@every_model
def test_a_folder_holds_the_model(name, tmp_path):
    """`save_pretrained` and `from_pretrained`: config and weights, without pickle and without network."""
    model = build(name, torch.float32)
    model.save_pretrained(tmp_path / "model")
    assert {path.suffix for path in (tmp_path / "model").iterdir()} <= {".json", ".safetensors", ".md"}
    again = type(model).from_pretrained(tmp_path / "model")
    assert again.config == model.config
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(map(torch.equal, again.state_dict().values(), model.state_dict().values()))


@every_model
def test_a_folder_of_another_model_is_refused(name, tmp_path):
    """Or one with a key that no model has, with weights that are not all there, or damaged: never a model half at random."""
    model, folder = build(name, torch.float32), tmp_path / "model"
    model.save_pretrained(folder)
    config, weights = (folder / "config.json").read_text(), (folder / "model.safetensors").read_bytes()
    another = next(other for _, other in MODELS.values() if other is not type(model))
    with pytest.raises(ValueError, match=f"holds a {type(model).__name__}, not a {another.__name__}"):
        another.from_pretrained(folder)
    depth = next(key for key in ("num_layers", "num_decoder_layers") if key in json.loads(config))
    for change, message in (({"typo": 1}, "has typo, which"), ({depth: json.loads(config)[depth] + 1}, "not those of its")):
        (folder / "config.json").write_text(json.dumps(json.loads(config) | change))
        with pytest.raises(ValueError, match=message):
            type(model).from_pretrained(folder)
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(weights[:-9])
    with pytest.raises(ValueError, match="damaged"):
        type(model).from_pretrained(folder)
    (folder / "model.safetensors").write_bytes(weights)
    type(model).from_pretrained(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"has no config\.json"):
        type(model).from_pretrained(folder)


def test_a_pickle_is_never_read(tmp_path):
    model = build("lstm", torch.float32)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="a pickle, which is never read"):
        type(model)._load_as_pickle(model, str(tmp_path / "pytorch_model.bin"), "cpu", True)
