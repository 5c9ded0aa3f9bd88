"""The datasets that need no files: digits, Python's documents and the synthetic tasks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memformer_torch.data import DATASETS, Stream, load_corpus, option_names
from memformer_torch.data.copying import Copy
from memformer_torch.data.pydocs import split_of
from memformer_torch.data.recall import Recall
from memformer_torch.data.synthetic import TASKS
from memformer_torch.types import IGNORE, check_segment


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMFORMER_CACHE", str(tmp_path / "cache"))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_digits():
    datasets = pytest.importorskip("sklearn.datasets", reason="digits needs scikit-learn")
    corpus = load_corpus("digits")
    assert corpus.sizes() == {
        "train": {"documents": 1437, "tokens": 1437 * 64},
        "valid": {"documents": 180, "tokens": 180 * 64},
        "test": {"documents": 180, "tokens": 180 * 64},
    }
    images = datasets.load_digits().images
    assert np.array_equal(corpus["test"][179].reshape(corpus.image_shape), images[-1])
    assert np.array_equal(corpus["train"][0].reshape(corpus.image_shape), images[0])
    assert corpus.vocab_size == max(int(part.ids.max()) for part in corpus.splits.values()) + 1 == 17


def test_pydocs_are_pythons_documents_each_in_one_split():
    from pydoc_data.topics import topics

    corpus = load_corpus("pydocs")
    for split, part in corpus.splits.items():
        expected = [topics[name] for name in sorted(topics) if split_of(name) == split]
        assert [corpus.tokenizer.decode(document) for document in part] == expected
        assert len(part) >= 3
    assert sum(len(part) for part in corpus.splits.values()) == len(topics)
    assert [split_of(name) for name in ("lambda", "dict", "assignment")] == ["train", "valid", "test"]  # fixed for ever


@pytest.mark.parametrize("name", TASKS)
def test_documents_of_a_task_give_its_rollouts(name):
    options = {"num_train": 20, "num_valid": 5, "num_test": 5, "max_difficulty": 3}
    corpus = load_corpus(name, **options)
    task = TASKS[name](predict_all=True)
    assert [len(part) for part in corpus.splits.values()] == [20, 5, 5]
    assert len({len(document) for document in corpus["train"]}) == (3 if name == "copy" else 4)
    for segment in Stream(corpus["train"], batch_size=3, segment_length=task.segment_length):
        check_segment(segment, task.vocab_size, task.segment_length)
    assert load_corpus(name, **options).fingerprint == corpus.fingerprint
    assert load_corpus(name, **options, seed=1).fingerprint != corpus.fingerprint
    assert corpus["valid"].ids.tolist() != corpus["test"].ids.tolist()
    assert "segment_length" in option_names(name)
    assert "predict_all" not in option_names(name)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.integers(0, 3), st.integers(0, 6), st.booleans())
def test_recall_asks_for_what_was_shown_and_noise_looks_like_nothing_else(pairs, queries, per, distractors, extra, all_):
    task = Recall(
        num_pairs=max(pairs, queries), num_queries=queries, pairs_per_segment=per, num_keys=7, num_values=5,
        segment_length=max(3, 2 * per) + extra, predict_all=all_,
    )  # fmt: skip
    segments = task.rollout(4, distractors, generator())
    for segment in segments:
        check_segment(segment, task.vocab_size, task.segment_length)
    shows = -(-task.num_pairs // per)
    told = shows * (1 + distractors)
    texts = [segment.source for segment in segments[1:]] + [segments[-1].target]
    counts = [0, 0]
    for row in range(4):
        shown: dict[int, int] = {}
        for number, text in enumerate(texts[:told]):
            tokens = text[row].tolist()
            keys = [token for token in tokens if 5 <= token < 12]
            assert (not keys) == (number % (1 + distractors) != 0)
            for place, key in enumerate(keys):
                assert tokens[2 * place] == key
                shown[key] = tokens[2 * place + 1]
            assert all(12 <= token < task.vocab_size - 1 for token in tokens[2 * len(keys) :])
        assert len(shown) == task.num_pairs
        asked = []
        for segment in segments[told:]:
            target, answers = segment.target[row], task.answers(segment.target)[row]
            assert target[0] == task.ask_token
            for place in answers.nonzero().flatten().tolist():
                asked.append(int(target[place - 1]))
                assert shown[asked[-1]] == target[place]
        assert len(asked) == len(set(asked)) == queries
    for segment in segments[:told]:
        counts[0] += int((segment.target != IGNORE).sum())
        counts[1] += int(task.answers(segment.target).sum())
    assert (counts[0] > 0) == all_
    assert counts[1] == 0


@pytest.mark.parametrize("predict_all", [False, True])
def test_recall_may_name_what_it_will_ask_for(predict_all):
    task = Recall(num_pairs=6, num_queries=5, segment_length=8, announce=True, predict_all=predict_all)
    segments = task.rollout(4, 1, generator())
    assert len(segments) == 2 * 2 + 2 * 2  # each twice: pairs and noise, keys and answers
    for named, asked in ((4, 5), (6, 7)):
        assert segments[asked].source.equal(segments[named].target) or not predict_all
        answers = task.answers(segments[asked].target)
        for row in range(4):
            keys, source = answers[row].roll(-1), segments[asked].source[row]
            assert source[0] == task.ask_token
            assert source[keys].equal(segments[asked].target[row][keys])  # at the places where they will be asked for
            assert (source[1:][~keys[1:]] >= task.num_values + task.num_keys).all()
        assert not task.answers(segments[named].target).any()
        assert (segments[named].target != IGNORE).any() == predict_all


@given(st.integers(1, 20), st.integers(1, 6), st.booleans())
def test_copy_repeats_its_string(length, segment_length, predict_all):
    task = Copy(num_symbols=9, segment_length=segment_length, predict_all=predict_all)
    segments = task.rollout(3, length, generator())
    for segment in segments:
        check_segment(segment, task.vocab_size, segment_length)
    document = torch.cat([*[segment.source for segment in segments[1:]], segments[-1].target], dim=1)[:, : 2 * length + 1]
    assert torch.equal(document[:, :length], document[:, length + 1 :])
    assert (document[:, length] == task.delimiter).all()
    assert document[:, :length].max() < task.delimiter
    answers = torch.cat([s.target[m].reshape(3, -1) for s, m in zip(segments, task.answers(segments), strict=True)], dim=1)
    assert torch.equal(answers, document[:, :length])
    targets = sum(int((segment.target != IGNORE).sum()) for segment in segments)
    assert targets == 3 * (2 * length + 1) if predict_all else targets < 3 * (length + 1 + segment_length)


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        (Recall, {"segment_length": 6}, "segment_length is 6, but 4 pairs"),
        (Recall, {"num_queries": 5}, "5 queries, 4 pairs"),
        (Recall, {"num_values": 1}, "2 values"),
        (Copy, {"num_symbols": 1}, "2 symbols"),
    ],
)
def test_tasks_that_cannot_be(task, options, message):
    with pytest.raises(ValueError, match=message):
        task(**options)


def test_names():
    real = {"mnist", "wikitext-2", "wikitext-103", "enwik8", "text"}
    assert set(DATASETS) == {"digits", "pydocs", *TASKS} | real
    with pytest.raises(ValueError, match=r"no dataset 'wikitext2' \(did you mean wikitext-2\?\): choose one of digits"):
        load_corpus("wikitext2")
    with pytest.raises(ValueError, match="digits has no option 'size': it has none"):
        load_corpus("digits", size=3)
    with pytest.raises(ValueError, match="there is no split 'dev': choose one of train, valid, test"):
        load_corpus("copy", num_train=2)["dev"]
