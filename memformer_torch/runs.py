"""A run from its config and back: which model, which data, which folder."""

import difflib
import json
from contextlib import nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
import yaml

from memformer_torch.analysis.pictures import image_rows
from memformer_torch.checkpoint import find_checkpoint, load_facts, load_weights, write_durably
from memformer_torch.data import Corpus, Tokenizer, load_corpus, progress_bar
from memformer_torch.data.tokenizer import from_definition
from memformer_torch.distributed import World
from memformer_torch.metrics import summary_writer
from memformer_torch.models import MODELS
from memformer_torch.train import TrainConfig, Trainer

VOCABULARY = "vocabulary.json"


def build_model(settings: dict[str, Any], vocab_size: int) -> Any:
    """The model that `name` and the fields of its config say; the vocabulary is the data's."""
    settings = dict(settings)
    name = settings.pop("name", "memformer")
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}{nearest(name, MODELS)}: choose one of {', '.join(MODELS)}")
    config_class, model_class = MODELS[name]
    _check_keys(name, settings, config_class)
    if settings.setdefault("vocab_size", vocab_size) != vocab_size:
        raise ValueError(f"model.vocab_size is {settings['vocab_size']}, but the data has {vocab_size} tokens: leave it out")
    return model_class(config_class(**settings))


def build_corpus(settings: dict[str, Any], quiet: bool = False) -> Corpus:
    """The data that `name` and its options say."""
    settings = dict(settings)
    if "name" not in settings:
        raise ValueError("data.name is missing: say which data to read, for example --data.name digits")
    with nullcontext() if quiet else progress_bar() as progress:
        return load_corpus(settings.pop("name"), progress=progress, **settings)


def choose_device(device: str) -> torch.device:
    """`auto` is the accelerator if there is one."""
    here = torch.accelerator.current_accelerator() or torch.device("cpu")
    if device == "auto":
        return here
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"there is no device {device!r}: this machine has {here.type}, which auto takes") from error
    if chosen.type not in ("cpu", here.type):
        raise ValueError(f"this machine has no {chosen.type}: choose auto, which is {here.type} here")
    return chosen


def new_run(run: Path, model: dict[str, Any], data: dict[str, Any], train: TrainConfig, device: str) -> Trainer:
    """Build everything first, then the folder: an error leaves nothing behind."""
    first = World.join(choose_device(device)).rank == 0
    if first and run.exists() and any(run.iterdir()):
        raise ValueError(f"{run} is there already: choose another --out, or go on with it by --resume {run}")
    if train.tensorboard:
        summary_writer()
    trainer = _build(run, model, data, train, device)
    if not first:
        return trainer
    plain = {key: str(value) if isinstance(value, Path) else value for key, value in data.items()}
    config = yaml.safe_dump({"data": plain, "model": model, "train": asdict(train)}, sort_keys=False)
    run.mkdir(parents=True, exist_ok=True)
    write_durably(run / VOCABULARY, json.dumps(_vocabulary_of(trainer.corpus)))
    write_durably(run / "config.yaml", config)
    return trainer


def open_run(run: Path, device: str = "auto", which: str | None = None) -> Trainer:
    """A run from its folder: at its last checkpoint, to be resumed, or with the weights of the `best` or `last` alone."""
    config = read_config(run)
    _check_keys("train", config["train"], TrainConfig)
    trainer = _build(run, config["model"], config["data"], TrainConfig(**config["train"]), device)
    if which is None:
        trainer.resume()
    else:
        trainer.load_weights(which)
    return trainer


def open_model(
    run: Path, device: str = "auto", checkpoint: str = "best", quiet: bool = False
) -> tuple[Any, Tokenizer | None, tuple[int, int] | None]:
    """A run's model without its data; its tokenizer if it was trained on text, and the images' shape if on images."""
    config, folder = read_config(run), find_checkpoint(run, checkpoint)
    facts = load_facts(folder)
    vocabulary = _read_vocabulary(run, config["data"], quiet)
    if vocabulary["corpus"] != facts["corpus"]:
        raise ValueError(f"{run} was trained on other data than its {VOCABULARY} or data say now: restore them")
    model = build_model(config["model"], vocabulary["vocab_size"])
    load_weights(model, folder)
    tokenizer, shape = vocabulary["tokenizer"], vocabulary["image_shape"]
    return (
        model.to(choose_device(device)).eval(),
        None if tokenizer is None else from_definition(tokenizer),
        None if shape is None else tuple(shape),
    )


def _vocabulary_of(corpus: Corpus) -> dict[str, Any]:
    """What a model needs to know of its data: how text becomes ids, or which shape images have."""
    return {
        "corpus": corpus.fingerprint,
        "vocab_size": corpus.vocab_size,
        "image_shape": corpus.image_shape,
        "tokenizer": None if corpus.tokenizer is None else corpus.tokenizer.definition(),
    }


def _read_vocabulary(run: Path, data: dict[str, Any], quiet: bool) -> dict[str, Any]:
    path = run / VOCABULARY
    if not path.exists():  # a run of an earlier version, or copied in part
        try:
            return _vocabulary_of(build_corpus(data, quiet))
        except (ValueError, OSError, ImportError) as error:
            raise ValueError(f"{run} has no {VOCABULARY}, and needs its data instead: {error}") from error
    try:
        vocabulary = json.loads(path.read_text(encoding="utf-8"))
        return {name: vocabulary[name] for name in ("corpus", "vocab_size", "image_shape", "tokenizer")}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}): remove it where the data is at hand") from error


def read_config(run: Path) -> dict[str, Any]:
    path = run / "config.yaml"
    if not path.is_file():
        raise ValueError(f"{run} is not the folder of a run: it has no config.yaml")
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {name: dict(config[name]) for name in ("data", "model", "train")}
    except yaml.YAMLError as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: it must have the parts data, model and train, each with settings") from error


def _build(run: Path, model: dict[str, Any], data: dict[str, Any], train: TrainConfig, device: str) -> Trainer:
    world = World.join(choose_device(device))
    corpus = build_corpus(data, quiet=world.rank > 0)
    torch.manual_seed(train.seed)
    trainer = Trainer(run, build_model(model, corpus.vocab_size), corpus, train, world, image_rows)
    if world.rank > 0:
        torch.manual_seed(train.seed + world.rank)  # the weights of all ranks are the same, their dropout is not
    return trainer


def _check_keys(owner: str, settings: dict[str, Any], config_class: Any) -> None:
    known = [field.name for field in fields(config_class)]
    for key in settings:
        if key not in known:
            raise ValueError(f"{owner} has no setting {key!r}{nearest(key, known)}: it has {', '.join(known)}")


def nearest(word: str, known: Any) -> str:
    """A question after a word that is not known, if one of those that are is like it."""
    close = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {close[0]}?)" if close else ""
