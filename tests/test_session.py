"""Sessions: pieces equal the whole, cached generation equals full passes, documents never mix, nothing grows."""

import itertools
import json
import struct
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memformer_torch import Session
from memformer_torch.data.bpe import BPE
from memformer_torch.data.tokenizer import Bytes, Words
from memformer_torch.types import BOS, IGNORE, PAD, Segment
from tests.conftest import tiny_memformer
from tests.test_contract import TABLE, build, every_model

LENGTH, VOCAB = 16, 128


def wild(name, dtype=torch.float64, gain=4.0):
    """A model of weights so large that its likeliest continuation wanders; larger ones make rounding grow without bound."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "d_model": 32, "segment_length": LENGTH}
    if name.startswith("memformer"):
        sizes |= {"num_decoder_layers": 3}
    else:
        sizes |= {"lstm": {"hidden_size": 32}}.get(name, {"num_layers": 3})
        sizes |= {"decoder": {"max_length": 4096}}.get(name, {})
    if name in ("transformer-xl", "compressive"):
        sizes |= {"memory_length": 24}
    model = build(name, dtype, **sizes).eval()
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if weight.dim() == 2 and "embedding" not in weight_name:
                weight *= gain
    return model


@torch.no_grad()
def full_passes(model, ids):
    """The logits of every token of a document, (len(ids), V), by the model's own forward pass, segment by segment."""
    state, logits = model.initial_state(1), []
    source = torch.full((1, LENGTH), PAD)
    source[0, 0] = BOS
    for start in range(0, len(ids), LENGTH):
        target = torch.full((1, LENGTH), IGNORE)
        target[0, : len(ids) - start] = torch.tensor(ids[start : start + LENGTH])
        output = model(Segment(source, target), state)
        logits.append(output.logits[0])
        source, state = target, output.state
    return torch.cat(logits)[: len(ids)]


@every_model
def test_2000_tokens_equal_argmax_of_full_passes(name):
    """With a few random ids in between: even a wild model's likeliest continuation may go round in a circle."""
    model = wild(name)
    session, document, generated = Session(model), [], []
    for _ in range(200):
        given = torch.randint(VOCAB, (3,)).tolist()
        session.feed(given)
        new = list(session.generate(10, temperature=0))
        generated += range(len(document) + 3, len(document) + 13)
        document += given + new
    ids = [document[n] for n in generated]
    assert len({tuple(ids[n : n + 8]) for n in range(1992)}) > 0.5 * 1992, "it repeats itself: the test would see little"
    assert full_passes(model, document)[generated].argmax(-1).tolist() == ids
    assert session.position == len(document) == 2600


@every_model
def test_log_probabilities_in_single_precision(name):
    model = wild(name, torch.float32, gain=2.0)
    ids = torch.randint(VOCAB, (100,)).tolist()
    session = Session(model)
    found = [session.feed([token]) for token in ids]
    expected = full_passes(model, ids).log_softmax(-1)[range(100), ids]
    torch.testing.assert_close(torch.tensor(found), expected, atol=1e-4, rtol=0)


@every_model
def test_batch_of_unequal_lengths_gives_what_each_gives_alone(name):
    model = wild(name)
    prompts = [torch.randint(VOCAB, (length,)).tolist() for length in (1, 40, 16, 33, 0)]
    together = Session(model, batch_size=len(prompts))
    scores = together.feed(prompts)
    steps = list(together.generate(60, temperature=0))
    more = together.feed([[5] * n for n in (0, 1, 20, 3, 16)])
    after = list(together.generate(40, temperature=0.7, seed=3))
    for row, prompt in enumerate(prompts):
        alone = Session(model)
        assert alone.feed(prompt) == pytest.approx(scores[row], abs=1e-8)
        assert list(alone.generate(60, temperature=0)) == [step[row] for step in steps]
        assert alone.feed([5] * (0, 1, 20, 3, 16)[row]) == pytest.approx(more[row], abs=1e-8)
        assert list(alone.generate(40, temperature=0.7, seed=3 + row)) == [step[row] for step in after]


def test_64_interleaved_sessions_never_mix():
    """Sessions of their own, joined to go on together, taken apart and joined with others."""
    model = wild("memformer")
    prompts = [torch.randint(VOCAB, (n % 37,)).tolist() for n in range(64)]
    alone, sessions = [], []
    for prompt in prompts:
        session = Session(model)
        session.feed(prompt)
        sessions.append(session)
        single = session.fork()
        alone.append(list(single.generate(30, temperature=0)))
    found = [[] for _ in prompts]
    groups = [range(64), [*range(0, 64, 2)], [*range(1, 64, 2)], range(64)]
    for group, number in zip(groups, (9, 12, 12, 9), strict=True):
        joined = Session.join([sessions[n] for n in group])
        for step in joined.generate(number, temperature=0):
            for n, token in zip(group, step, strict=True):
                found[n].append(token)
        for row, n in enumerate(group):
            sessions[n] = joined.take([row])
    assert found == alone


def test_only_sessions_of_one_tokenizer_are_joined():
    """What one of them holds back, an unfinished word, would be read in the words of another."""
    model = wild("memformer")
    letters, others = (Words(["<unk>", "<eos>", *words]) for words in ("ab", "qz"))
    sessions = [Session(model, letters), Session(model, Words(["<unk>", "<eos>", "a", "b"]))]
    assert Session.join(sessions).batch_size == 2
    for other in (Session(model, others), Session(model)):
        with pytest.raises(ValueError, match="different tokenizers"):
            Session.join([*sessions, other])


@every_model
def test_a_state_that_was_given_out_stays(name):
    """Also where one document of several goes on to its next segment alone."""
    session = Session(wild(name), batch_size=2)
    session.feed([[1] * 7, [2]])
    given_out = session.state
    before = [member.clone() for member in given_out]
    session.feed([[3] * 30, [4]])
    assert all(map(torch.equal, given_out, before))


@every_model
@settings(max_examples=5)
@given(pieces=st.lists(st.integers(0, 40), max_size=12), data=st.data())
def test_pieces_of_any_size_equal_the_whole(name, pieces, data):
    model = build(name)
    ids = torch.randint(11, (sum(pieces),))
    whole, parts = Session(model), Session(model)
    total = whole.feed(ids)
    assert sum(parts.feed(piece) for piece in ids.split(pieces)) == pytest.approx(total, abs=1e-8)
    for ours, theirs in zip(whole.state, parts.state, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)
    follow = data.draw(st.lists(st.integers(0, 10), min_size=1, max_size=9))
    assert whole.feed(follow) == pytest.approx(parts.feed(follow), abs=1e-8)


TEXT = "the cat sat on the mat\nand the dog — naïve — saw the cat  sit \n" * 2
TOKENIZERS = {
    "bytes": Bytes(),
    "words": Words.from_counts({"the": 9, "cat": 3, "sat": 2, "dog": 1, "on": 1, "mat": 1}),
    "bpe": BPE.train([TEXT], 280),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=6).map(sorted))
def test_text_in_pieces_of_any_size(kind, cuts):
    tokenizer = TOKENIZERS[kind]
    model = tiny_memformer(vocab_size=tokenizer.vocab_size)
    by_ids, by_text = Session(model, tokenizer), Session(model, tokenizer)
    total = by_ids.feed(tokenizer.encode(TEXT))
    pieces = [TEXT[start:end] for start, end in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)]
    assert sum(by_text.feed(piece) for piece in pieces) == pytest.approx(total, abs=1e-8)
    assert by_text.position == by_ids.position == len(tokenizer.encode(TEXT))
    assert list(by_text.generate(9, seed=1)) == list(by_ids.generate(9, seed=1))


@pytest.mark.parametrize(
    ("kind", "unit"), [("words", "cat\t"), ("words", "sat\u3000"), ("bpe", "cat\n"), ("bpe", "cat—"), ("bytes", "猫")]
)
def test_text_without_single_blanks_in_pieces(kind, unit):
    tokenizer, text = TOKENIZERS[kind], unit * 400
    model = tiny_memformer(vocab_size=tokenizer.vocab_size, segment_length=128)
    for cut in (398, len(text) - 2):
        session = Session(model, tokenizer)
        session.feed(text[:cut])
        session.feed(text[cut:])
        assert session.position == len(tokenizer.encode(text))


def test_sampling_with_a_seed_repeats_and_differs_without():
    session = Session(wild("memformer", gain=1.0))
    runs = [list(session.fork().generate(30, seed=seed)) for seed in (7, 7, 8)]
    assert runs[0] == runs[1] != runs[2]
    assert list(session.fork().generate(30)) != list(session.fork().generate(30))


def test_the_session_has_read_what_was_yielded():
    model = wild("memformer")
    session, other = Session(model), Session(model)
    taken = [token for _, token in zip(range(21), session.generate(None, temperature=0), strict=False)]
    assert session.position == len(taken) == 21
    other.feed(taken)
    assert list(session.generate(5, temperature=0)) == list(other.generate(5, temperature=0))


def test_score_and_fork_leave_the_session_where_it_is():
    session = Session(wild("memformer"))
    session.feed([1, 2, 3] * 9)
    fork = session.fork()
    assert session.score([4, 5]) == session.score([4, 5]) == fork.feed([4, 5])
    fork.feed([6] * 50)
    assert (session.position, fork.position) == (27, 79)
    again = Session(session.model)
    again.feed([1, 2, 3] * 9)
    assert session.feed([4, 5]) == again.feed([4, 5])


def say(session, ids):
    """Have a session generate these ids."""
    session._lanes.next_logits = lambda: torch.nn.functional.one_hot(torch.tensor([ids[session.position]]), 256) * 9.0


def test_a_character_is_never_split():
    """Bytes of a four-byte character come one by one: nothing is shown until it is whole, over a stop between calls too."""
    model = tiny_memformer(vocab_size=256)
    session = Session(model, Bytes())
    wanted = list("a😀é".encode())
    say(session, wanted)
    pieces = [*session.generate(3, temperature=0), *session.generate(2, temperature=0), *session.generate(2, temperature=0)]
    assert [piece for piece in pieces if piece] == ["a", "😀", "é"]


def test_stops():
    model = tiny_memformer(vocab_size=256)
    text = "one; two END three"

    def generate(**options):
        session = Session(model, Bytes())
        session._lanes.next_logits = lambda: (
            torch.nn.functional.one_hot(torch.tensor([text.encode()[session.position]]), 256) * 9.0
        )
        pieces = list(session.generate(18, temperature=0, **options))
        assert session.position <= 18
        return pieces, session.position

    pieces, position = generate(stop="END")
    assert ("".join(pieces), position) == ("one; two ", 12)
    assert "".join(generate(stop=["xyz", "D t", "two"])[0]) == "one; "
    assert "".join(generate(stop=ord(";"))[0]) == "one"
    assert "".join(generate(stop="thrEE")[0]) == text  # held back, and shown when it did not come
    assert generate(stop=[ord("e")], text=False) == (list(b"on"), 3)


@every_model
def test_saved_and_loaded_goes_on_to_the_bit(name, tmp_path):
    model = wild(name, torch.float32, gain=2.0)
    session = Session(model, batch_size=2)
    session.feed([torch.randint(VOCAB, (37,)), torch.randint(VOCAB, (64,))])
    list(session.generate(5, seed=0))
    session.save(tmp_path / "saved")
    loaded = Session.load(tmp_path / "saved", model)
    assert loaded.position == session.position == [42, 69]
    assert list(loaded.generate(40, seed=1)) == list(session.generate(40, seed=1))
    assert loaded.feed([[1] * 20, [2] * 3]) == session.feed([[1] * 20, [2] * 3])
    assert not [path for path in tmp_path.iterdir() if path.name != "saved"]


def test_saved_inside_a_word(tmp_path):
    tokenizer = TOKENIZERS["words"]
    model = tiny_memformer(vocab_size=tokenizer.vocab_size)
    session = Session(model, tokenizer)
    session.feed("the ca")
    session.save(tmp_path / "saved")
    loaded = Session.load(tmp_path / "saved", model, tokenizer)
    assert loaded.feed("t sat") == session.feed("t sat")
    assert session.position == 3
    session = Session(model, tokenizer)
    session.feed("the cat sat")
    assert session.feed(" ") == 0
    with pytest.raises(ValueError, match="pass the tokenizer"):
        Session.load(tmp_path / "saved", model)


def test_size_does_not_depend_on_what_was_read(tmp_path):
    session = Session(tiny_memformer(vocab_size=256), Bytes())
    sizes = []
    for number in (0, 1_000, 20_001):
        session.feed("a b" * ((number - session.position) // 3))
        session.save(tmp_path / "saved")
        sizes.append((tmp_path / "saved").stat().st_size)
    assert len(set(sizes)) == 1
    assert session.state_bytes < 3_000
    assert not session.grows


def test_a_growing_state_says_so():
    model = build("decoder", max_length=12)
    session = Session(model)
    assert session.grows
    assert "growing" in repr(session)
    session.feed([1] * 12)
    with pytest.raises(ValueError, match=r"reaches 13 tokens.*max_length is 12"):
        session.feed([1])
    with pytest.raises(ValueError, match="grows"):
        list(session.generate(1))
    assert session.position == 12
    assert "growing" not in repr(Session(build("memformer")))


def damaged(content, kind):
    if kind == "truncated":
        return content[:-10]
    if kind == "empty":
        return b""
    if kind == "header":
        return content[:4]
    if kind == "flipped":
        return content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"]["kind"] = "other"
    header = json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + content[8 + size :]


@pytest.mark.parametrize("kind", ["truncated", "empty", "header", "flipped", "kind"])
def test_damaged_file(kind, tmp_path):
    model = tiny_memformer()
    session = Session(model)
    session.feed([1, 2, 3])
    session.save(tmp_path / "saved")
    (tmp_path / "saved").write_bytes(damaged((tmp_path / "saved").read_bytes(), kind))
    with pytest.raises(ValueError, match=r"saved.*(not a session|cut off)"):
        Session.load(tmp_path / "saved", model)


def test_a_header_with_any_one_bit_flipped():
    model, tokenizer = tiny_memformer(vocab_size=256), Bytes()
    content = Session(model, tokenizer).to_bytes("of the model")
    for bit in range(8 * (8 + struct.unpack("<Q", content[:8])[0])):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r"saved.*(not a session|cut off|another model|another tokenizer)"):
            Session.from_bytes(bytes(flipped), "of the model", "saved", model, tokenizer)


def test_another_model_or_tokenizer_is_refused(tmp_path):
    model = tiny_memformer(vocab_size=256)
    session = Session(model, TOKENIZERS["bytes"])
    session.save(tmp_path / "saved")
    with pytest.raises(ValueError, match="another model"):
        Session.load(tmp_path / "saved", tiny_memformer(vocab_size=256))
    with pytest.raises(ValueError, match="another tokenizer"):
        Session.load(tmp_path / "saved", model, TOKENIZERS["words"])
    with torch.no_grad():
        model.norm_decoder.bias[0] += 1e-3
    with pytest.raises(ValueError, match="another model"):
        Session.load(tmp_path / "saved", model, TOKENIZERS["bytes"])


class StoppedAt:
    """Ctrl-C before the n-th line that is run of a session and its lanes."""

    def __init__(self, number):
        self.left, self.old = number, sys.gettrace()

    def __enter__(self):
        sys.settrace(self.trace)

    def __exit__(self, *_):
        sys.settrace(self.old)

    def trace(self, frame, event, _):
        if not frame.f_code.co_filename.endswith(("memformer_torch/session.py", "memformer_torch/lanes.py")):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.trace


@pytest.mark.parametrize(
    ("name", "given"), [("memformer", "t sat on th"), ("lstm", [1, 2, 3, 1, 2, 3, 1]), ("decoder", "t sat"), ("lstm", None)]
)
def test_stopped_at_any_moment_state_and_last_word_agree(name, given):
    tokenizer = TOKENIZERS["words"]
    model = build(name, vocab_size=tokenizer.vocab_size)
    first = Session(model, tokenizer, batch_size=2)
    first.feed(["the cat sat on ca", "the ca"])

    def go_on(session):
        if given is None:
            session.generate(0)
        else:
            session.feed([given] * 2)

    after = first.fork()
    go_on(after)
    expected = [(each.position, each._tails, each.score(["t the "] * 2)) for each in (first, after)]
    seen, finished = set(), False
    for number in itertools.count(1):
        session = first.fork()
        try:
            with StoppedAt(number):
                go_on(session)
                finished = True
        except KeyboardInterrupt:
            pass
        found = session.position, session._tails, session.score(["t the "] * 2)
        which = 1 if found[:2] == expected[1][:2] else 0
        assert found[:2] == expected[which][:2]
        assert found[2] == pytest.approx(expected[which][2], abs=1e-8)
        seen.add(which)
        if finished:
            break
    assert seen == {0, 1}


BAD_INPUT = {
    "id too large": (lambda s: s.feed([1, 2, 256]), "allowed are 0 to 255"),
    "special id": (lambda s: s.feed([1, -1]), "allowed are 0 to 255"),
    "not whole": (lambda s: s.feed([0.5]), "whole numbers"),
    "too many documents": (lambda s: s.feed(["a", "b"]), "1 documents"),
    "cannot be encoded": (lambda s: s.feed("ab\ud800"), "cannot be encoded"),
    "top_p": (lambda s: s.generate(3, top_p=1.5), "top_p is 1.5"),
    "max_tokens": (lambda s: s.generate(-1), "max_tokens is -1"),
    "stop": (lambda s: s.generate(3, stop=""), "empty"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_leaves_the_session_usable(case):
    model = tiny_memformer(vocab_size=256)
    session, other = Session(model, Bytes()), Session(model, Bytes())
    for each in (session, other):
        each.feed("some text")
    call, message = BAD_INPUT[case]
    with pytest.raises(ValueError, match=message):
        call(session)
    assert session.position == other.position
    assert session.feed("more") == other.feed("more")


def test_text_needs_a_tokenizer():
    session = Session(tiny_memformer())
    for call in (lambda: session.feed("a"), lambda: session.generate(3, text=True), lambda: session.generate(3, stop="a")):
        with pytest.raises(ValueError, match="no tokenizer"):
            call()


@pytest.mark.parametrize("vocab_size", [11, 255])
def test_the_tokenizer_may_not_have_more_ids_than_the_model(vocab_size):
    with pytest.raises(ValueError, match=f"256 ids, but the model {vocab_size}: use the tokenizer"):
        Session(tiny_memformer(vocab_size=vocab_size), Bytes())


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 100.0}, {"repetition_penalty": 5.0}])
def test_a_vocabulary_may_be_padded(options):
    """Ids that the tokenizer does not know can be read, and are never written."""
    model = tiny_memformer(vocab_size=2000)
    session = Session(model, Bytes())
    session.feed([3, 256, 1999])
    assert all(token < 256 for token in session.generate(40, **options, seed=0, text=False))
    session.feed([3, 256, 1999])
    assert isinstance("".join(session.generate(10, **options, seed=0)), str)


def test_ids_may_come_as_lists_arrays_and_tensors():
    model = tiny_memformer()
    ids = [1, 2, 3, 4, 5, 6, 7]
    read_only = np.frombuffer(bytes(ids), np.uint8)
    given = [ids, tuple(ids), np.array(ids, np.uint16), read_only, torch.tensor(ids, dtype=torch.int32), torch.tensor([ids])]
    assert len({Session(model).feed(each) for each in given}) == 1
    assert Session(model).feed([]) == 0


def test_dropout_is_off_and_training_goes_on():
    model = tiny_memformer(dropout=0.5).train()
    session = Session(model)
    assert session.score([1, 2, 3]) == session.score([1, 2, 3])
    model.train()
    assert session.score([1, 2, 3] * 5) == session.score([1, 2, 3] * 5)
    assert all(parameter.grad is None for parameter in model.parameters())


@every_model
def test_dropout_is_off_inside_a_segment_too(name):
    model = build(name, dropout=0.5)
    whole, session = Session(model), Session(model)
    expected = whole.feed([1, 2, 3, 4])
    found = session.feed([1, 2])
    model.train()
    assert found + session.feed([3, 4]) == pytest.approx(expected, abs=1e-8)
    model.train()
    assert list(session.generate(9, temperature=0)) == list(whole.generate(9, temperature=0))


def test_every_model_of_the_table_is_here():
    from memformer_torch.models import MODELS

    assert set(MODELS) <= set(TABLE)
