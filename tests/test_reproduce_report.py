"""What is said of results: the paper's orders, tables, pictures, the README; and that the tables are the paper's."""

import json
from pathlib import Path

import pytest
import yaml

from memformer_torch.bench.record import write_json
from memformer_torch.cli import main
from memformer_torch.models import MODELS, PRESETS
from memformer_torch.reproduce import appendix, table1, table2
from memformer_torch.reproduce.orders import FAILS, HOLDS, MISSING, NOISE, ONE_SEED, Order, find_noise, judge
from memformer_torch.reproduce.readme import BEGIN, END
from memformer_torch.reproduce.report import as_markdown
from memformer_torch.reproduce.row import Results
from memformer_torch.runs import build_model
from tests.reproducing import fake

ROOT = Path(__file__).parent.parent


def test_an_order_is_claimed_only_beyond_the_noise():
    scores = {"a": [1.0, 1.2, 1.1], "b": [1.35], "c": [1.25], "d": [0.5], "none": []}
    noise = find_noise(list(scores.values()))
    assert noise == pytest.approx(0.2)
    orders = {"b": HOLDS, "c": NOISE, "d": FAILS, "none": MISSING, "unknown": MISSING}
    verdicts = judge([Order("a", other) for other in orders], scores, noise)
    assert [verdict.says for verdict in verdicts] == list(orders.values())
    assert verdicts[0].gap == pytest.approx(0.25)  # between medians
    assert find_noise([[1.0], [2.0]]) is None
    assert judge([Order("b", "c")], scores, None)[0].says == ONE_SEED


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_orders_are_those_of_the_papers_numbers(scale):
    for table, orders in (
        (table1.table(scale), table1.ORDERS),
        (table2.table(scale), table2.orders(list(table2.SCALES[scale].lengths))),
    ):
        assert len(set(orders)) == len(orders)
        for better, worse in orders:
            assert table[better].paper["perplexity"] < table[worse].paper["perplexity"]


@pytest.mark.parametrize("table", [table1.table, table2.table, appendix.horizon_table, appendix.slots_table])
def test_all_rows_of_a_table_have_models_and_one_budget(table):
    for scale in ("cpu", "paper"):
        chosen = table(scale)
        assert len({variant.slug for variant in chosen.variants}) == len(chosen.variants)
        budgets = set()
        for variant in chosen.variants:
            settings = dict(variant.model)
            config = MODELS[settings.pop("name")][0](vocab_size=300_000, **settings)
            train = {**chosen.budget.train, **variant.train}
            rollouts = train["updates"] * train.get("accumulate", 1)
            budgets.add(rollouts * train["batch_size"] * train["horizon"] * config.segment_length)
        assert len(budgets) == 1 or scale == "paper"  # where the decoder reads 256 whole images


def test_the_papers_scale_is_the_papers():
    for table, preset in ((table1.table("paper"), "image"), (table2.table("paper"), "text")):
        for slug in ("memformer", "lstm", "decoder", "transformer-xl-224", "transformer-xl-1024", "compressive"):
            for variant in table.variants:
                if variant.slug == slug:
                    settings = {key: value for key, value in variant.model.items() if key not in ("name", "cutoffs")}
                    config_class = MODELS[variant.family][0]
                    mine, theirs = (
                        config_class(**{"vocab_size": 256, **given}) for given in (settings, PRESETS[preset][variant.family])
                    )
                    differing = {name for name in vars(theirs) if getattr(mine, name) != getattr(theirs, name)}
                    assert differing <= ({"segment_length"} if slug == "decoder" else set())
    for table, config in ((table1.table("paper"), "mnist_paper"), (table2.table("paper"), "wikitext103_paper")):
        shipped = yaml.safe_load((ROOT / "configs" / f"{config}.yaml").read_text())
        train = {**table.budget.train, "learning_rate": table.budget.rates[0]}
        assert train == {name: shipped["train"][name] for name in train}
        assert table.data["name"] == shipped["data"]["name"]
        assert table["memformer"].model.get("cutoffs") == shipped["model"].get("cutoffs")


def test_the_lstm_is_as_large_as_memformer():
    sizes = []
    for slug in ("lstm", "memformer"):
        model = build_model(dict(table1.table("cpu")[slug].model), 256)
        sizes.append(sum(p.numel() for name, p in model.named_parameters() if not name.startswith("embedding.")))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05)


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_appendix_c_takes_what_is_elsewhere(tmp_path, scale):
    results, table = Results(tmp_path), table1.table(scale)
    for tried in (table.tuning_rows, lambda family: table.final_rows(family, results)):
        for row in tried("memformer"):
            write_json(tmp_path / row.path, fake(row, 1.0))

    def rows_of(table):
        rows = [row for row in table.rows(results) if not row.tuning and "-rate-" not in row.name and row.seed == 0]
        assert {row.train["learning_rate"] for row in rows} == {1e-3}
        return rows

    slots = {row.model["num_slots"]: row.experiment for row in rows_of(appendix.slots_table(scale))}
    horizon = appendix.horizon_table(scale)
    horizons = {row.train["horizon"]: row.experiment for row in rows_of(horizon)}
    numbers = (0, 1, 2, 4, 8, 16, 32, 64)
    if scale == "cpu":  # segments are shorter than those of Table 1
        assert slots == dict.fromkeys(numbers, "slots") | {16: "horizon"}
        assert horizons == dict.fromkeys((1, 2, 4, 8, 16, 32), "horizon")
    else:
        assert slots == dict.fromkeys(numbers, "slots") | dict.fromkeys((0, 1, 16, 32, 64), "table1")
        assert horizons == dict.fromkeys((1, 2, 4, 16, 32), "horizon") | {8: "table1"}
    seen = {row.train["batch_size"] * row.train["horizon"] * row.train.get("accumulate", 1) for row in rows_of(horizon)}
    assert len(seen) == 1  # segments an update
    orders = appendix.horizon(scale).report(results).grids[1].lines
    assert len(orders) == 9  # each against that before, and against 1


@pytest.fixture
def out(tmp_path):
    """Results of two tables, in the paper's order but for the decoder, and for 32 slots, which are hardly worse than 64."""
    folder = tmp_path / "results" / "quality"
    results = Results(folder)
    for table in (table1.table("cpu"), appendix.horizon_table("cpu")):
        while rows := [row for row in table.rows(results) if results.get(row) is None]:
            for row in rows:
                loss = {"decoder": 1.9, "memory-32": 1.596}.get(row.slug, row.paper.get("perplexity", 1.7))
                write_json(folder / row.path, fake(row, loss + 0.001 * row.seed))
    return folder


def test_a_report_says_what_holds(out, tmp_path, capsys):
    main(["reproduce", "table1", "--render", "--out", str(out), "--runs", str(tmp_path / "runs")])
    printed = capsys.readouterr().out
    text = (out / "table1.md").read_text()
    assert (out / "table1.png").read_bytes().startswith(b"\x89PNG")
    assert not (out / "table1-samples.png").exists()  # there is no run to draw them with
    assert "| Memformer 4+8 | 2+4, 16 slots | 1,000 |" in text
    assert f"| Memformer 4+8 | Transformer Decoder | 0.014 | {2**1.9 - 2**1.556:+.3f} | holds |" in text
    assert f"| Transformer Decoder | Transformer-XL, memory=784 | 0.042 | {2**1.612 - 2**1.9:+.3f} | does not hold |" in text
    assert f"| 2+6, memory=64 | 2+6, memory=32 | 0.006 | {2**1.596 - 2**1.594:+.3f} | within noise |" in text
    assert "memformer 0.001 (the end of the grid)" in text
    assert "Memformer's memory gets only a share of that rate: writer 0.1, forgetting 0.01." in text
    dearer = text.partition("## Memformer 4+8 against what costs as much or more")[2].partition("##")[0]
    costs = {line.split(" | ")[1]: float(line.split(" | ")[2]) for line in dearer.splitlines() if ", memory=" in line}
    assert list(costs) == ["6 layers, memory=56", "6 layers, memory=196", "4 layers, memory=56", "4 layers, memory=196"]
    assert min(costs.values()) >= 1
    assert f"({2**1.611:.3f} to {2**1.613:.3f}) | {2**1.612 - 2**1.556:+.3f} | holds |" in dearer
    for words in ("holds 19, does not hold 1, within noise 1.", "(noise 0.005)"):
        assert words in text, text
        assert words in " ".join(printed.split())
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    seeds = {line[0].removeprefix("| "): line[6] for line in lines if len(line) == 10}
    of_three = {label for label, number in seeds.items() if number == "3"}
    assert of_three == {"Memformer 4+8", "w/o memory", "Transformer-XL, memory=784"}
    main(["reproduce", "horizon", "--render", "--out", str(out)])
    text = (out / "horizon.md").read_text()
    assert "horizon 16" in text
    assert "in 1,000 updates" in text
    assert "after 300 updates of its first row in table1 and, among the best 2, after all 1,500: memformer 0.001" in text
    assert (out / "horizon.png").read_bytes().startswith(b"\x89PNG")
    main(["reproduce", "table2", "--render", "--out", str(out)])
    assert "Nothing to draw: table2 has no result" in capsys.readouterr().out


def test_slots_say_what_the_first_is_worth(out):
    """Of losses 2.0, 1.8 and 1.75 for no, one and most slots, four fifths; no memory is a line, and no order of the paper's."""
    table, results = appendix.slots_table("cpu"), Results(out)
    report = appendix.slots("cpu").report(results)
    assert "the first alone" not in report.summary  # one row is not there yet
    for row in table.rows(results):
        if results.get(row) is None:
            loss = {"without-memory": 2.0, "slots-1": 1.8, "slots-64": 1.75}.get(row.slug, 1.77)
            write_json(out / row.path, fake(row, loss))
    report = appendix.slots("cpu").report(results)
    assert "Of the nats a token that 64 slots save, the first alone saves 80% (77% in the paper's Table 1)." in report.summary
    assert "Over all 21 runs, the rank correlation of slots and perplexity is -0." in report.summary
    assert report.brief.lines[0][0] == "no memory (not in the paper's figure)"
    orders = report.grids[1].lines
    assert len(orders) == 11  # each against that before, and against 1
    assert not any("no memory" in cell for line in orders for cell in line)


def test_a_trend_is_told_over_all_runs(tmp_path):
    table, results = appendix.horizon_table("cpu"), Results(tmp_path)
    while rows := [row for row in table.rows(results) if results.get(row) is None]:
        for row in rows:
            write_json(tmp_path / row.path, fake(row, 2.0 - 0.01 * row.train["horizon"]))
    words = "Over all 8 runs, the rank correlation of segments in a rollout and perplexity is -1.00 (p < 0.001)."
    assert words in appendix.horizon("cpu").report(results).summary


def test_a_report_says_who_learns_at_which_rate(tmp_path):
    """Of Table 2: what is alike for all, and what is Memformer's own."""
    table, results = table2.table("cpu"), Results(tmp_path)
    while rows := [row for row in table.rows(results) if results.get(row) is None]:
        for row in rows:
            write_json(tmp_path / row.path, fake(row, 1.7))
            assert row.train["shares"].items() >= {"embedding.": 4.0}.items()
    text = as_markdown(table2.table2("cpu").report(results), "", [])
    assert "In all models alike, parts get a multiple of that rate: embedding 4 (" in text
    assert "Memformer's memory gets only a share of that rate: writer 0.1, forgetting 0.01." in text


def test_a_list_of_rows(out, tmp_path, capsys):
    (out / "table1" / "few-decoders-seed-0.json").unlink()
    stale = out / "table1" / "decoder-seed-0.json"
    record = json.loads(stale.read_text())
    record["settings"]["model"]["num_layers"] = 99
    stale.write_text(json.dumps(record))
    main(["reproduce", "table1", "--list", "--out", str(out), "--runs", str(tmp_path / "runs")])
    printed = capsys.readouterr().out
    states = {words[1]: words[3] for line in printed.splitlines() if len(words := line.split()) > 5 and "/" in words[1]}
    assert states.pop("table1/few-decoders-seed-0") == "to"
    assert states.pop("table1/decoder-seed-0") == "stale"
    assert set(states.values()) == {"done"}
    assert len(states) == 48  # 20 short runs for rates, 8 whole ones, 22 for all other rows, without the two above


def test_errors_come_before_any_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MEMFORMER_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("MEMFORMER_CACHE", str(tmp_path / "cache"))
    places = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    for arguments, message in (
        (["tabel1"], "there is no experiment 'tabel1' (did you mean table1?): choose one of"),
        (["table1"], f"mnist was not found in {tmp_path}/nowhere/mnist: put its files into a folder mnist"),
        (["table1", "--only", "gru"], "table1 has no row whose name contains 'gru': see memformer reproduce table1 --list"),
        (["table1", "--only", "gru", "--list"], "table1 has no row whose name contains 'gru'"),
        (["table1", "--workers", "0"], "workers is 0, but must be at least 1"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["reproduce", *arguments, *places])
        assert stopped.value.code == 2
        error = capsys.readouterr().err.strip()
        assert error.startswith(f"memformer: {message}")
        assert "\n" not in error
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "out").exists()


def results(readme, out, *more):
    main(["results", "--readme", str(readme), "--out", str(out), *more])


def test_pictures_stand_below_the_tables(out, tmp_path, capsys):
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}\n{END}\n")
    for samples in (False, True):
        if samples:
            (out / "table1-samples.png").touch()  # drawn once, where the runs are
        main(["reproduce", "table1", "--render", "--out", str(out), "--runs", str(tmp_path / "runs")])
        results(readme, out)
        for text, folder in (((out / "table1.md").read_text(), ""), (readme.read_text(), "results/quality/")):
            assert f"]({folder}table1.png)" in text
            assert (f"]({folder}table1-samples.png)" in text) == samples


def test_the_readme_says_what_the_results_say(out, tmp_path, capsys):
    readme = tmp_path / "README.md"
    readme.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nThe rest.\n")
    with pytest.raises(SystemExit) as stopped:
        results(readme, out, "--check")
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith(f"memformer: {readme} does not say what {out} says: memformer results --readme")
    results(readme, out)
    results(readme, out, "--check")
    text = readme.read_text()
    assert text.startswith(f"# Title\n\n{BEGIN}\n**Table 1")
    assert text.endswith(f"\n{END}\n\nThe rest.\n")
    assert "([results/quality/table1.md](results/quality/table1.md), `memformer reproduce table1`)" in text
    assert "| Memformer 4+8 |" in text
    assert "temperature" not in text  # in brief
    assert "reproduce horizon" in text
    assert "reproduce slots" not in text  # shares rows with others, and has none of its own
    assert "All 58 rows together, those that decide on learning rates too: 58 min of one core." in text  # none counted twice
    path = out / "table1" / "without-memory-seed-0.json"
    record = json.loads(path.read_text())
    record["test"]["perplexity"] = 9.99
    path.write_text(json.dumps(record))
    with pytest.raises(SystemExit):
        results(readme, out, "--check")


def test_a_readme_without_place_and_results_without_content(out, tmp_path, capsys):
    readme = tmp_path / "README.md"
    readme.write_text("# Title\n")
    with pytest.raises(SystemExit):
        results(readme, out)
    assert f"{readme} has no place for results: put the lines {BEGIN} and {END} where they belong" in capsys.readouterr().err
    readme.write_text(f"{BEGIN}\n{END}\n")
    with pytest.raises(SystemExit):
        results(readme, tmp_path / "empty")
    assert f"there are no results in {tmp_path}/empty yet: memformer reproduce" in capsys.readouterr().err


def test_our_own_readme_is_not_stale(capsys):
    results(ROOT / "README.md", ROOT / "results" / "quality", "--check")  # stops with an error where they differ
    assert "README.md says what" in capsys.readouterr().out
