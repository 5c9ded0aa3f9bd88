"""Text comes back from its ids, in whole characters, and pieces of a text encode as the whole does."""

import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memformer_torch.data import load_tokenizer
from memformer_torch.data.bpe import BPE
from memformer_torch.data.prepare import Piece, text_pieces
from memformer_torch.data.tokenizer import Bytes, TextStream, Words

TRAINING = ["the naïve café 日本語 says the end\n\nthe 日本 “quoted” 🙂🙂 text's end\n    \n        in \n"] * 20
BYTES, SMALL_BPE = Bytes(), BPE.train(TRAINING, 300)
WORDS = Words.from_counts({"b": 2, "a": 2, "c": 5, "<eos>": 3})
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.text("abé 日\n🙂' \t", max_size=200)

TRICKY = st.text("are'l!1²日、\u0301\x1c \t\n\u3000", max_size=12)


@pytest.mark.parametrize("tokenizer", [BYTES, SMALL_BPE], ids=["bytes", "bpe"])
@given(text=TEXTS)
def test_every_text_comes_back_whole_and_character_by_character(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    stream, shown = TextStream(tokenizer), ""
    for token in ids.tolist():
        shown += stream.feed(token)
        assert text.startswith(shown)  # so no part of a character, which would show as U+FFFD
    assert shown + stream.finish() == text


def test_bytes_that_are_no_text_show_as_such():
    assert BYTES.decode([0x61, 0xE6, 0x97]) == "a\ufffd"
    stream = TextStream(BYTES)
    assert (stream.feed([0x61, 0xE6, 0x97]), stream.finish()) == ("a", "\ufffd")


def test_bpe_merges_what_is_frequent():
    assert SMALL_BPE.vocab_size == 300
    assert len(SMALL_BPE.encode(TRAINING[0])) < len(TRAINING[0].encode()) / 2
    assert BPE.train(TRAINING, 300).fingerprint == SMALL_BPE.fingerprint


def test_words_are_numbered_by_frequency_then_alphabet():
    assert WORDS.words == ["c", "<eos>", "a", "b", "<unk>"]
    assert WORDS.encode("c  zebra\n a").tolist() == [0, 4, 1, 2]
    assert WORDS.decode([0, 4, 1, 2, 1]) == "c <unk>\na\n"
    assert Words.from_counts({"b": 2, "a": 2, "c": 5, "<eos>": 3}, vocab_size=3).words == ["c", "<eos>", "<unk>"]


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=4), min_size=1, max_size=5))
def test_known_words_come_back_with_their_lines(lines):
    text = "\n".join(" ".join(line) for line in lines)
    assert WORDS.decode(WORDS.encode(text)) == text


@pytest.mark.parametrize("tokenizer", [WORDS, SMALL_BPE], ids=["words", "bpe"])
@given(text=TEXTS, cuts=st.lists(st.integers(0, 400), max_size=6))
def test_pieces_encode_as_the_whole(tokenizer, text, cuts):
    data = text.encode()
    edges = sorted([0, len(data), *[min(cut, len(data)) for cut in cuts]])  # inside characters too
    pieces = [Piece(data[start:stop], False) for start, stop in pairwise(edges)]
    pieces += [Piece(b"", True), Piece(b"b c", True)]
    parts = list(text_pieces(pieces, tokenizer.safe_cut))
    first = np.concatenate([tokenizer.encode(part) for part, _ in parts[:-1]])
    assert first.tolist() == tokenizer.encode(text).tolist()
    assert parts[-1] == ("b c", True)


@pytest.mark.parametrize("tokenizer", [WORDS, SMALL_BPE], ids=["words", "bpe"])
def test_a_text_may_come_cut_at_any_byte(tokenizer):
    data = (TRAINING[0] + "in    in\n\n  end").encode()
    whole = tokenizer.encode(data.decode()).tolist()
    for cut in range(len(data)):
        parts = text_pieces([Piece(data[:cut], False), Piece(data[cut:], True)], tokenizer.safe_cut)
        assert np.concatenate([tokenizer.encode(part) for part, _ in parts]).tolist() == whole


@pytest.mark.parametrize("tokenizer", [BYTES, WORDS, SMALL_BPE], ids=["bytes", "words", "bpe"])
@pytest.mark.parametrize("unit", ["end\t", "end\n", "in\u3000", "日本語、", "it's,we're!", "12ab", "a\x1c!\n"])
def test_a_text_without_single_blanks_has_places_to_cut(tokenizer, unit):
    text = unit * 300
    for end in range(len(text) - 2 * len(unit), len(text)):
        cut = tokenizer.safe_cut(text[:end])
        assert np.concatenate([tokenizer.encode(text[:cut]), tokenizer.encode(text[cut:])]).tolist() == whole_ids(
            tokenizer, text
        )
        assert cut > end - 20 or (tokenizer is WORDS and not any(character.isspace() for character in unit))


def whole_ids(tokenizer, text):
    """By the package alone where there is one, without a cut of ours."""
    return (
        tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
        if tokenizer is SMALL_BPE
        else tokenizer.encode(text).tolist()
    )


@pytest.mark.parametrize("tokenizer", [WORDS, SMALL_BPE], ids=["words", "bpe"])
@given(before=TRICKY, after=TRICKY)
def test_a_cut_is_safe_whatever_follows(tokenizer, before, after):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("memformer_torch.data.bpe.NEAR", 1)  # texts so short would else be cut at single blanks alone
        cut = tokenizer.safe_cut(before)
    parts = [tokenizer.encode(before[:cut]), tokenizer.encode(before[cut:] + after)]
    assert np.concatenate(parts).tolist() == whole_ids(tokenizer, before + after)


def test_a_long_text_is_shared_out_without_changing_it():
    text = " ".join(TRAINING) * 100
    whole = SMALL_BPE._tokenizer.encode(text, add_special_tokens=False).ids
    assert len(list(SMALL_BPE._parts(text))) > 1
    assert SMALL_BPE.encode(text).tolist() == whole


def test_text_without_a_blank_stays_bounded(monkeypatch):
    monkeypatch.setattr("memformer_torch.data.prepare.LONGEST", 100)
    pieces = [Piece(b"x" * 60, False)] * 50 + [Piece(b"", True)]
    parts = [part for part, _ in text_pieces(pieces, WORDS.safe_cut)]
    assert "".join(parts) == "x" * 3000
    assert max(map(len, parts)) <= 160


@pytest.mark.parametrize("tokenizer", [BYTES, WORDS, SMALL_BPE], ids=["bytes", "words", "bpe"])
def test_saved_as_json_and_loaded_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert json.loads((tmp_path / "tokenizer.json").read_text())["kind"] == tokenizer.kind
    assert type(loaded) is type(tokenizer)
    assert (loaded.fingerprint, loaded.vocab_size) == (tokenizer.fingerprint, tokenizer.vocab_size)
    assert loaded.encode("the 日本 c a\n").tolist() == tokenizer.encode("the 日本 c a\n").tolist()


def test_fingerprints_tell_tokenizers_apart():
    others = [BYTES, WORDS, SMALL_BPE, BPE.train(TRAINING, 301), Words(["<eos>", "c", "a", "b", "<unk>"])]
    assert len({tokenizer.fingerprint for tokenizer in others}) == len(others)


@pytest.mark.parametrize("text", ["", "[]", '{"kind": "chars"}', '{"kind": "words"}', '{"kind": "bpe", "tokenizer": {}}'])
def test_a_file_that_is_no_tokenizer(tmp_path, text):
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"tokenizer\.json holds no tokenizer"):
        load_tokenizer(path)


def test_ids_outside_the_vocabulary_are_refused():
    for token in (-100, 256):
        with pytest.raises(ValueError, match=f"id {token} is not in this vocabulary of 256 bytes"):
            BYTES.decode([token])


def test_sizes_that_cannot_be():
    with pytest.raises(ValueError, match="at least 256"):
        BPE.train(TRAINING, 100)
    with pytest.raises(ValueError, match="alone need 2"):
        Words.from_counts({"a": 1}, 1)


def test_importing_the_package_imports_no_package_of_a_single_dataset():
    code = "import sys, memformer_torch.data; print({'sklearn', 'tokenizers', 'datasets', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
