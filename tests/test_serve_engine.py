"""The engine: many documents at once, each as if alone, and none that keeps the others waiting."""

import threading

import pytest
import torch
from safetensors.torch import load

from memformer_torch.data.tokenizer import Bytes
from memformer_torch.lanes import Lanes
from memformer_torch.sampling import Sampling
from memformer_torch.serve.engine import Engine
from memformer_torch.serve.jobs import Generation, Job
from memformer_torch.serve.limits import Limits, Refusal
from memformer_torch.serve.seats import Seats
from memformer_torch.serve.slots import describe
from memformer_torch.session import Session
from memformer_torch.types import Segment
from tests.serving import LENGTH, until, wild_model
from tests.test_contract import every_model
from tests.test_session import VOCAB, wild


class Heard:
    """A job and what is told of it."""

    def __init__(self, engine, **options):
        self.events, self.done = [], threading.Event()
        if "ids" in options:
            options["ids"] = torch.tensor(options["ids"], dtype=torch.int64)
        self.job = Job(on_event=self.hear, **options)
        engine.submit(self.job)

    def hear(self, event):
        self.done.set() if event is None else self.events.append(event)

    def wait(self):
        assert self.done.wait(60)
        return self

    @property
    def ids(self):
        return [event.token for event in self.events if event.token is not None]

    @property
    def text(self):
        return "".join(event.text for event in self.events)


@pytest.fixture
def make(request):
    """Engines, which end with the test."""
    made = []

    def make(model, tokenizer=None, begin=True, **limits):
        engine = Engine(model, tokenizer, Limits(**limits))
        made.append(engine)
        if begin:
            engine.start()
        return engine

    yield make
    for engine in made:
        engine.close()


def asked(number=20, seed=0, stop_ids=(), stop_texts=(), **sampling):
    return Generation(
        max_tokens=number, seed=seed, sampling=Sampling(**sampling), stop_ids=frozenset(stop_ids), stop_texts=tuple(stop_texts)
    )


OPTIONS = [{}, {"temperature": 0.7, "top_k": 9}, {"temperature": 0}, {"top_p": 0.8, "repetition_penalty": 1.3}, {"min_p": 0.01}]


@every_model
def test_each_document_is_as_if_alone(name, make):
    """Prompts of all lengths that begin, come in and end at different times, with sampling of their own."""
    model = wild(name)
    engine = make(model, begin=False, max_batch=7)
    prompts = [torch.randint(VOCAB, (n * 7 % 41,)).tolist() for n in range(20)]
    numbers = [5 + 13 * n % 37 for n in range(20)]
    heard = [
        Heard(engine, ids=prompt, generation=asked(number, seed=n, **OPTIONS[n % 5]))
        for n, (prompt, number) in enumerate(zip(prompts, numbers, strict=True))
    ]
    engine.start()
    for n, each in enumerate(heard):
        session = Session(model)
        score = session.feed(prompts[n])
        expected = list(session.generate(numbers[n], seed=n, **OPTIONS[n % 5]))
        assert each.wait().ids == expected
        assert each.job.reason == "length"
        assert each.job.score == pytest.approx(score, abs=1e-8)
    assert engine.tokens_written == sum(numbers)
    assert engine.tokens_read == sum(map(len, prompts))


def test_one_pass_serves_all(make, monkeypatch):
    model = wild_model()
    passes, extend = [], model.extend
    monkeypatch.setattr(model, "extend", lambda *given: passes.append(len(given[1])) or extend(*given))
    engine = make(model, begin=False)
    heard = [Heard(engine, generation=asked(4 * LENGTH, seed=n)) for n in range(32)]
    engine.start()
    assert len({tuple(each.wait().ids) for each in heard}) == 32
    assert engine.steps == 4 * LENGTH
    assert len(passes) <= 4 * LENGTH + 4  # and one at each segment's end
    assert set(passes) == {32}


def test_a_long_text_keeps_nobody_waiting(make):
    """Who writes gets a token for each segment that is read of the long text."""
    engine = make(wild_model(), begin=False)
    book = Heard(engine, ids=[7] * 100 * LENGTH)
    quick = Heard(engine, generation=asked(50))
    engine.start()
    assert quick.wait().job.reason == "length"
    assert book.job.read <= 60 * LENGTH
    assert book.wait().job.read == 100 * LENGTH


def test_a_document_is_left_as_it_was_and_another_comes_back(make):
    model = wild_model()
    session = Session(model, Bytes())
    session.feed("some text")
    lanes, before = session._lanes, load(session.to_bytes(""))
    engine = make(model, Bytes())
    heard = [Heard(engine, lanes=lanes, generation=asked(9, seed=3), keep=True).wait() for _ in range(2)]
    assert heard[0].text == heard[1].text == "".join(session.fork().generate(9, seed=3))
    for name, tensor in load(session.to_bytes("")).items():
        assert torch.equal(tensor, before[name])
    assert lanes._cache is None
    assert heard[0].job.result.position == [18]
    goes_on = Heard(engine, lanes=heard[0].job.result, generation=asked(9, seed=4)).wait().text
    list(session.generate(9, seed=3))
    assert goes_on == "".join(session.generate(9, seed=4))


def test_stops_and_ends_of_text(make):
    model = wild_model()
    engine = make(model, Bytes())
    session = Session(model, Bytes())
    whole = "".join(session.fork().generate(60, seed=1))
    stop = whole[11:13]
    heard = Heard(engine, generation=asked(60, seed=1, stop_texts=[stop, "never there"])).wait()
    assert heard.text == "".join(session.fork().generate(60, seed=1, stop=[stop, "never there"]))
    assert heard.job.reason == "stop"
    ids = list(session.fork().generate(30, seed=1, text=False))
    heard = Heard(engine, generation=asked(30, seed=1, stop_ids=[ids[9]])).wait()
    assert heard.ids == ids[: ids.index(ids[9])]
    assert Heard(engine, generation=asked(0)).wait().job.reason == "length"


def test_cancelled_stopped_and_refused(make):
    engine = make(wild_model(), max_batch=2, max_wait=1.0)
    endless = [Heard(engine, generation=asked(10**6), keep=True) for _ in range(2)]
    until(lambda: all(each.events for each in endless))
    waiting = Heard(engine, generation=asked(3))
    gone = Heard(engine, generation=asked(3))
    gone.job.cancelled = True
    assert gone.wait().job.reason == "cancelled"
    assert isinstance(waiting.wait().job.error, Refusal)
    assert waiting.job.error.status == 503
    endless[0].job.stopped, endless[1].job.cancelled = True, True
    assert endless[0].wait().job.reason == "stopped"
    assert endless[0].job.result.position == [len(endless[0].ids)] == [endless[0].job.written]
    assert endless[1].wait().job.result is None
    until(lambda: engine.running == 0)
    engine.close()
    with pytest.raises(Refusal, match="ending"):
        engine.submit(Job())


def test_a_bad_job_fails_alone(make):
    engine = make(wild_model(), Bytes())
    good = Heard(engine, generation=asked(40))
    bad = Heard(engine, ids=[256]).wait()
    assert isinstance(bad.job.error, ValueError)
    assert "allowed are 0 to 255" in str(bad.job.error)
    assert good.wait().job.error is None
    growing = make(wild("decoder"))
    assert "max_length is 4,096" in str(Heard(growing, generation=asked(5000)).wait().job.error)


def test_a_step_that_fails_takes_only_its_jobs(make, monkeypatch, caplog):
    engine = make(wild_model())
    model = engine.model
    endless = Heard(engine, generation=asked(10**6))
    until(lambda: endless.events)
    with monkeypatch.context() as patched:
        patched.setattr(model, "extend", lambda *given: 1 / 0)
        assert isinstance(endless.wait().job.error, ZeroDivisionError)
    assert Heard(engine, generation=asked(3)).wait().job.reason == "length"


def test_a_job_that_cannot_begin_to_write_fails_alone(make):
    """Its document holds ids that the model knows, and the tokenizer does not."""
    model = wild_model(vocab_size=260)
    session = Session(model)
    session.feed([255, 256, 257])
    engine = make(model, Bytes(), begin=False)
    book = Heard(engine, ids=[7] * 3 * LENGTH)
    bad = [Heard(engine, ids=[1, 259], generation=asked(3)), Heard(engine, lanes=session._lanes, generation=asked(3))]
    engine.start()
    for each, token in zip(bad, (259, 256), strict=True):
        assert f"id {token} is not in this vocabulary" in str(each.wait().job.error)
        assert each.job.reason == "failed"
    assert book.wait().job.reason == "read"
    assert engine.running == 0


@pytest.mark.parametrize("ids", [[], [1, 2]])
def test_a_job_on_its_way_to_a_seat_fails_with_the_step(make, monkeypatch, ids):
    engine, enter = make(wild_model()), Seats.enter
    failures = iter([RuntimeError("no memory")])

    def fail_first(seats, arrivals):
        for failure in failures:
            raise failure
        enter(seats, arrivals)

    monkeypatch.setattr(Seats, "enter", fail_first)
    lost = Heard(engine, ids=ids, generation=asked(3)).wait()
    assert (lost.job.reason, str(lost.job.error)) == ("failed", "no memory")
    assert Heard(engine, ids=ids, generation=asked(3)).wait().job.reason == "length"


def test_a_cancelled_call_is_not_made(make):
    engine, made = make(wild_model(), begin=False), []
    assert engine.call(lambda: made.append("cancelled")).cancel()
    engine.start()
    assert Heard(engine, generation=asked(3)).wait().job.reason == "length"
    engine.call(lambda: made.append("wanted")).result(60)
    assert made == ["wanted"]


def test_a_call_at_the_end_is_refused(make):
    engine = make(wild_model())
    engine.stop_all()
    with pytest.raises(Refusal, match="the server is ending"):
        engine.call(lambda: None)


def test_the_slots_are_watched(make):
    """Each segment that ends is told of, read or written; the record is that of the model's own write."""
    model = wild_model()
    engine = make(model, Bytes())
    heard = Heard(engine, ids=list(b"the cat sat on the mat"), generation=asked(9), watch=True, keep=True).wait()
    records = [event.slots for event in heard.events if event.slots]
    assert [record["segment"] for record in records] == list(range((22 + 9) // LENGTH))
    assert "".join(records[0]["tokens"]) == "the ca"
    for record in records:
        assert len(record["moved"]) == len(record["types"]) == len(record["took"]) == model.config.num_slots
        for own, took in zip(record["own"], record["took"], strict=True):
            assert own + sum(share for _, share in took) <= 1.01
    session = Session(model)
    session.feed(list(b"the ca"))
    source, state = session._lanes.window.source, session.state
    after = model.advance(Segment(source, source), state)
    angles = torch.arccos((after.memory * state.memory).sum(-1).clamp(-1, 1))[0]
    assert records[0]["moved"] == pytest.approx(angles.tolist(), abs=1e-3)
    assert describe(model, Bytes(), source, state)[0] | {"segment": 0} == records[0]
    assert not any(event.slots for event in Heard(engine, ids=[1] * 50).wait().events)
    lstm = make(wild("lstm"))
    assert not any(event.slots for event in Heard(lstm, ids=[1] * 50, watch=True).wait().events)


@every_model
def test_seats_copy_one_lane(name):
    """A document in a seat that was another's goes on as alone; all are copied only to grow and to shrink."""
    model = wild(name)
    documents = []
    for number in (3, 40, 17, 33, 9):
        lanes = Lanes(model, 1)
        lanes.read([torch.randint(VOCAB, (number,))])
        documents.append(lanes)
    expected = [lanes.take([0]).next_logits() for lanes in documents]
    seats = Seats()
    seats.enter(list(zip("abc", documents[:3], strict=True)))
    shared = seats.lanes
    seats.leave([1])
    seats.enter([("d", documents[3])])
    assert seats.lanes is shared
    assert seats.guests == ["a", "d", "c"]
    found = seats.lanes.next_logits()
    torch.testing.assert_close(found, torch.cat([expected[n] for n in (0, 3, 2)]), atol=1e-9, rtol=0)
    seats.leave([0, 2])
    assert seats.guests == ["d"]
    seats.enter([("e", documents[4])])
    found = seats.lanes.next_logits()
    torch.testing.assert_close(found, torch.cat([expected[3], expected[4]]), atol=1e-9, rtol=0)
    assert len(seats) == 2
    seats.leave([0, 1])
    assert not seats
