"""The README's table "In short" is written by hand: every number in it is one of the results."""

import json
from math import log
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[1]


def read(name):
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))


def perplexity(table, slug):
    """The median over seeds."""
    files = sorted((ROOT / "results" / "quality" / table).glob(f"{slug}-seed-?.json"))
    assert files, slug
    return median(read(f"quality/{table}/{file.stem}")["test"]["perplexity"] for file in files)


@pytest.fixture(scope="module")
def lines():
    """What the paper says -> what is found here."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("### In short")[2].partition("###")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return dict(rows[2:])


def found(lines, words):
    """The one line about something."""
    (line,) = [here for paper, here in lines.items() if words in paper]
    return line


def test_gradient_methods(lines):
    row = next(row for row in read("bench/gradients")["rows"] if (row["horizon"], row["method"]) == (8, "mrbp"))
    assert found(lines, "MRBP").startswith(f"{row['share_of_bytes']:.2f}, at {row['speed']:.2f} ")


def test_inference(lines):
    row = next(row for row in read("bench/memory")["rows"] if row["memory_size"] == 2048)
    state, total = (row["transformer-xl"][name] / row["memformer"][name] for name in ("state_bytes", "total_bytes"))
    assert found(lines, "less memory at inference") == f"a state {state:.0f} times smaller; {total:.1f} times less in all"
    segments = read("bench/inference")["segments"]["1"]

    def times(head, number):
        return number(segments["Transformer-XL 1024"][head]) / number(segments["Memformer 4+16"][head])

    flops = times("without_head", lambda cost: cost["flops"])
    bare, whole = (times(head, lambda cost: cost["seconds"]["median"]) for head in ("without_head", "with_head"))
    line = f"{flops:.2f} times fewer FLOPs, {bare:.2f} times faster; {whole:.2f} times with the output layer"
    assert found(lines, "faster at inference").startswith(line)


def test_tasks(lines):
    accuracies = [read(f"quality/retention/memformer-seed-{seed}")["accuracy"]["1"] for seed in range(3)]
    least = min(share for accuracy in accuracies for share in accuracy.values())
    assert f"accuracy {least:.3f} over 4,096 segments" in found(lines, "a value is held")
    sixteen = [read(f"quality/recall/encoder-and-memory-seed-{seed}")["accuracy"]["16"]["8"] for seed in range(3)]
    assert found(lines, "sixteen values").startswith(f"{median(sixteen):.2f} over up to 8 segments")


def test_images(lines):
    text, ours = found(lines, "images: better than Transformer-XL"), median_of_rate("memformer", "0.008")
    deep, deep_decoder = perplexity("table1", "deep-transformer-xl-784"), perplexity("table1", "deep-decoder-rate-0.016")
    assert f"is level ({ours - deep:.3f} better" in text
    assert f"a plain decoder of 6 layers better by {ours - deep_decoder:.3f}" in text


def median_of_rate(slug, rate):
    """Over seeds, the first of which decided on the rate."""
    first = read(f"quality/table1/{slug}-rate-{rate}-seed-0")["test"]["perplexity"]
    return median([first, *(read(f"quality/table1/{slug}-seed-{seed}")["test"]["perplexity"] for seed in (1, 2))])


def test_text(lines):
    line = found(lines, "text: better")
    names = ("memformer-rate-0.008-seed-0", "memformer-seed-1", "memformer-seed-2")
    ours = median(read(f"quality/table2/{name}")["test"]["perplexity"] for name in names)
    assert f"{ours / perplexity('table2', 'transformer-xl-1024') - 1:.1%}".replace("%", " % behind the largest") in line
    assert f"{perplexity('table2', 'without-memory') / ours - 1:.1%}".replace("%", " % worse") in line
    longer = {name: run["test"]["perplexity"] for name, run in read("trials/table2-longer")["runs"].items()}
    assert f"{longer['memformer'] / longer['transformer-xl-16'] - 1:.1%}".replace("%", " % behind)") in line


def test_slots(lines):
    line = found(lines, "one slot is worst")
    none, one, most = (perplexity("slots", slug) for slug in ("without-memory", "slots-1", "slots-64"))
    assert f"saves {log(none / one) / log(none / most):.0%}".replace("%", " % of what 64 save") in line
    runs = [(ROOT / "results/quality/capacity").glob(f"slots-{slots}-seed-?.json") for slots in (1, 4, 8, 16)]
    shares = [median(read(f"quality/capacity/{run.stem}")["accuracy"]["8"]["8"] for run in seeds) for seeds in runs]
    assert "accuracy {:.2f} with one slot, {:.2f} with 4, {:.2f} with 8, {:.2f} with 16".format(*shares) in line
