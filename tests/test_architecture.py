"""The repository keeps its own rules: imports go one way, public names stay, documents name what exists."""

import ast
import re
from pathlib import Path

import pytest

import memformer_torch

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "memformer_torch"
LAYERS = [
    {"types"},
    {"nn", "losses"},
    {"models", "data", "backprop"},
    {"distributed"},
    {"checkpoint", "evaluate", "lanes", "sampling", "session", "session_file"},
    {"metrics", "samples", "window"},
    {"train"},
    {"runs", "analysis", "bench", "workers"},
    {"demo", "commands", "talk", "reproduce"},
    {"cli", "serve"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
APART = {("models", "data"), ("data", "models"), ("backprop", "models"), ("backprop", "data"), ("analysis", "bench")}


def unit(path: Path) -> str:
    """The part of the package that a file belongs to: `nn` for nn/memory.py, `types` for types.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The parts of the package that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("memformer_torch.")}
    return found


@pytest.mark.parametrize("path", [p for p in sorted(PACKAGE.rglob("*.py")) if p != PACKAGE / "__init__.py"], ids=str)
def test_imports_go_one_way(path):
    own = unit(path)
    assert own in LEVEL, f"{own} has no place in the order of layers"
    for other in imports(path) - {own}:
        assert LEVEL[other] <= LEVEL[own], f"{path.name} is below {other}, but imports it"
        assert (own, other) not in APART, f"{own} must not know {other}"


def test_public_names():
    models = {"Memformer", "TransformerXL", "CompressiveTransformer", "TransformerDecoder", "LSTM"}
    models.add("RecurrentMemoryTransformer")
    others = {"Segment", "Output", "IGNORE", "PAD", "BOS", "bptt", "checkpointed", "mrbp", "Session"}
    assert set(memformer_torch.__all__) == others | models | {f"{model}Config" for model in models}
    assert (memformer_torch.IGNORE, memformer_torch.PAD, memformer_torch.BOS) == (-100, -1, -2)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/paper_map.md", "docs/notes.md"])
def test_documents_name_files_that_exist(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    named = re.findall(r"`((?:memformer_torch|tests|docs|results|configs)/[\w./-]+)`", text)
    linked = re.findall(r"\]\((?!http)([\w./-]+)\)", text)
    for name in named:
        assert (ROOT / name).exists(), f"{document} names {name}"
    for name in linked:
        assert (ROOT / document).parent.joinpath(name).exists(), f"{document} links {name}"


def test_documents_name_functions_that_exist():
    text = (ROOT / "docs/paper_map.md").read_text(encoding="utf-8")
    source = "\n".join(p.read_text(encoding="utf-8") for folder in (PACKAGE, ROOT / "tests") for p in folder.rglob("*.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in source, f"paper_map.md names {name}"


def test_layout_is_one_line_a_file():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in PACKAGE.rglob("*.py"):
        if path.name not in ("__init__.py", "__main__.py"):
            assert f"{path.relative_to(PACKAGE).as_posix()}" in text, f"CONTRIBUTING's layout lacks {path.name}"


def test_readme_examples_run(capsys):
    """Every Python block of the README runs as it stands, one after the other."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 2
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert capsys.readouterr().out
