"""Tables of models that are trained alike: which rows there are, at which rates, and whose they are."""

from dataclasses import replace

from memformer_torch.reproduce.plan import plan
from memformer_torch.reproduce.row import Results
from memformer_torch.reproduce.table import Variant
from tests.reproducing import MODEL, TABLE, TRAIN, put


def states(table, results, runs):
    return {task.row.name: task.state for task in plan(table.rows, results, runs)}


def test_tuning_decides_the_rate_and_settings_whether_a_result_counts(tmp_path):
    results, runs = Results(tmp_path / "out"), tmp_path / "runs"
    low, high = TABLE.tuning_rows("memformer")
    finals = {"tiny-seed-0": "later", "none-seed-0": "later"}
    assert states(TABLE, results, runs) == {low.name: "to do", high.name: "to do"} | finals
    put(results, low, 1.0)
    assert states(TABLE, results, runs) == {low.name: "done", high.name: "to do"} | finals
    put(results, high, 0.5)
    rows = TABLE.rows(results)
    assert [row.train["learning_rate"] for row in rows] == [1e-3, 1e-2, 1e-2, 1e-2]
    assert rows[2].train["updates"] == 2
    put(results, rows[2], 0.4)
    assert states(TABLE, results, runs)["tiny-seed-0"] == "done"
    assert len(TABLE.found(results)["tiny"]) == 1
    put(results, high, 2.0)  # now the other rate is better, and the result of another rate
    assert states(TABLE, results, runs) == {low.name: "done", high.name: "done", "tiny-seed-0": "stale", "none-seed-0": "to do"}
    assert not TABLE.found(results)["tiny"]
    longer = replace(TABLE, budget=replace(TABLE.budget, tuning={"updates": 5}))
    assert states(longer, results, runs)[low.name] == "stale"  # and decides on nothing
    assert longer.rate("memformer", results) is None


def test_whole_runs_decide_between_the_best_rates(tmp_path):
    """The rate that is best after a short run loses after a whole one; the run that won is the first variant's first row."""
    results = Results(tmp_path)
    budget = replace(TABLE.budget, rates=(1e-3, 1e-2, 1e-1), finals=2)
    tiny, none = TABLE.variants
    table = replace(TABLE, budget=budget, variants=[replace(tiny, seeds=2), none])
    assert table.final_rows("memformer", results) == []
    for row, loss in zip(table.tuning_rows("memformer"), (1.0, 3.0, 2.0), strict=True):
        put(results, row, loss)
    low, high = table.final_rows("memformer", results)
    assert [row.name for row in (low, high)] == ["tiny-rate-0.001-seed-0", "tiny-rate-0.1-seed-0"]
    assert low.train == {**TRAIN, "updates": 2, "learning_rate": 1e-3}
    assert not low.tuning
    put(results, low, 2.0)
    assert table.rate("memformer", results) is None
    assert table.rows(results)[3:] == [low, high]
    put(results, high, 1.0)
    assert table.rate("memformer", results) == 1e-1
    assert table.seeds(table["tiny"], results, [0])[0] == high
    assert [row.name for row in table.rows(results)[3:]] == [low.name, high.name, "tiny-seed-1", "none-seed-0"]
    assert table.found(results)["tiny"] == [results.get(high)]
    other = replace(TABLE, experiment="other", budget=budget, base=table)
    assert other.seeds(other["tiny"], results, [0]) == [high]  # taken over from the other table
    assert other.rate("memformer", results) == 1e-1


def test_the_best_contender_gets_more_seeds(tmp_path):
    results = Results(tmp_path / "out")
    table = replace(TABLE, budget=replace(TABLE.budget, rates=(1e-3,)), contenders=["tiny", "none"])
    first, second = table.rows(results)
    put(results, first, 1.0)
    assert len(table.rows(results)) == 2
    put(results, second, 0.5)
    assert [row.name for row in table.rows(results)[2:]] == ["none-seed-1", "none-seed-2"]


def test_a_table_takes_rates_and_rows_of_another(tmp_path):
    results = Results(tmp_path / "out")
    other = Variant(label="Four", slug="four", model={**MODEL, "num_slots": 4})
    same = Variant(label="Two", slug="two", model=MODEL, train={"batch_size": 30})
    table = replace(TABLE, experiment="more", variants=[same, other], base=TABLE)
    assert table.rows(results) == TABLE.tuning_rows("memformer")
    for row in table.rows(results):
        put(results, row, 1.0)
    assert [row.path.as_posix() for row in table.rows(results)[2:]] == ["tiny/tiny-seed-0.json", "more/four-seed-0.json"]
