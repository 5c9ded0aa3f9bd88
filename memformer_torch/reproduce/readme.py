"""The README's results, written from what was measured, so that they cannot drift apart."""

import os
from pathlib import Path

from rich.console import Console

from memformer_torch.checkpoint import write_durably
from memformer_torch.reproduce.experiments import EXPERIMENTS
from memformer_torch.reproduce.plan import as_time
from memformer_torch.reproduce.report import find_pictures, grid_markdown
from memformer_torch.reproduce.row import Results

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def results(readme: Path = Path("README.md"), out: Path = Path("results/quality"), check: bool = False) -> None:
    """Write what `memformer reproduce` found into the README, between its two markers.

    Args:
        readme: The file; the part between "<!-- results: begin -->" and "<!-- results: end -->" is replaced.
        out: Folder with the results.
        check: Change nothing, and fail if the part is not what the results say.
    """
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{readme} has no place for results: put the lines {BEGIN} and {END} where they belong")
    new = f"{before}{BEGIN}\n{as_section(out, readme.parent)}\n{END}{after}"
    if check and new != text:
        raise ValueError(f"{readme} does not say what {out} says: memformer results --readme {readme} --out {out}")
    if not check:
        write_durably(readme, new)
    Console(markup=False).print(f"{readme} says what {out} says", highlight=False)


def as_section(out: Path, folder: Path) -> str:
    """All experiments that have a result of their own at cpu scale, in brief, with links from a file in `folder`."""

    def relative(path: Path) -> str:
        return Path(os.path.relpath(path, folder)).as_posix()

    parts, found = [], Results(out)
    seconds: dict[Path, float] = {}
    for name, experiment in EXPERIMENTS.items():
        rows = experiment("cpu").rows(found)
        seconds |= {row.path: record["seconds"] for row in rows if (record := found.get(row)) is not None}
        own = [row for row in rows if row.experiment == name and not row.tuning]
        if not any(found.get(row) is not None for row in own):  # some have rows of others before they were ever run
            continue
        report = experiment("cpu").report(found)
        file = relative(out / f"{name}.md")
        parts += [f"**{report.title}** ([{file}]({file}), `memformer reproduce {name}`)", grid_markdown(report.brief)]
        parts += [report.summary] if report.summary else []
        parts += [f"![{path.stem}]({relative(path)})" for path in find_pictures(out, name)]
    if not parts:
        raise ValueError(f"there are no results in {out} yet: memformer reproduce {next(iter(EXPERIMENTS))}")
    time = as_time(sum(seconds.values()))
    parts += [f"All {len(seconds)} rows together, those that decide on learning rates too: {time} of one core."]
    return "\n\n".join(parts)
