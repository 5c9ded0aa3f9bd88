"""Which ids may be chosen, and how often."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memformer_torch.sampling import Sampling

LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.125, 0.0625, 0.0625], [0.1, 0.1, 0.6, 0.1, 0.1]]))
NONE = torch.full((2, 1), -1)


def kept(**options):
    return [(row > 0).nonzero()[:, 0].tolist() for row in Sampling(**options).probabilities(LOGITS)]


def test_what_is_left():
    assert kept() == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    assert kept(top_k=2) == [[0, 1], [0, 2]]  # of equals, the first
    assert kept(top_k=9) == kept(top_p=1.0) == kept(min_p=0.0) == kept()
    assert kept(top_p=0.7) == [[0, 1], [0, 2]]
    assert kept(top_p=0.01) == [[0], [2]]
    assert kept(min_p=0.3) == [[0, 1], [2]]
    assert kept(top_k=3, top_p=0.8) == [[0, 1], [0, 2]]  # top_p of what top_k left
    assert kept(top_k=3, top_p=0.8, min_p=0.9) == [[0], [2]]


def test_temperature_sharpens():
    shares = Sampling(temperature=0.5).probabilities(LOGITS)
    torch.testing.assert_close(shares[0, :2], torch.tensor([4.0, 1.0], dtype=torch.float64) * shares[0, 1])
    assert Sampling(temperature=0).choose(LOGITS, NONE, torch.rand(2)).tolist() == [0, 2]


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-300, 1e-308, 1e-320, 5e-324])
@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}, {"repetition_penalty": 1.5}])
def test_a_tiny_temperature_takes_the_likeliest(temperature, options):
    sampling = Sampling(temperature=temperature, **options)
    for logits in (LOGITS, LOGITS + 40, LOGITS.bfloat16()):
        assert sampling.choose(logits, NONE, torch.tensor([0.0, 0.999])).tolist() == [0, 2]
        assert sampling.probabilities(logits).isfinite().all()


def test_chosen_as_often_as_likely():
    uniform = torch.linspace(0, 1, 100_001, dtype=torch.float64)[:-1]
    chosen = Sampling(top_k=3).choose(LOGITS[:1].expand(len(uniform), -1), NONE[:1].expand(len(uniform), -1), uniform)
    shares = torch.bincount(chosen, minlength=5) / len(uniform)
    torch.testing.assert_close(shares, torch.tensor([4 / 7, 2 / 7, 1 / 7, 0, 0]), atol=1e-4, rtol=0)


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 6), st.floats(0.01, 1), st.floats(0, 1))
def test_never_chooses_what_was_left_out(number, top_k, top_p, min_p):
    sampling = Sampling(top_k=top_k, top_p=top_p, min_p=min_p)
    chosen = sampling.choose(LOGITS, NONE, torch.tensor([number, number], dtype=torch.float64))
    assert (sampling.probabilities(LOGITS).gather(1, chosen[:, None]) > 0).all()


def test_repetition_penalty():
    logits = torch.tensor([[2.0, 1.5, -1.0, -1.5]])
    penalized = Sampling(repetition_penalty=2.0)._penalize(logits, torch.tensor([[0, 2, -1, -2, 0]]))
    assert penalized.tolist() == [[1.0, 1.5, -2.0, -1.5]]
    assert Sampling(temperature=0, repetition_penalty=2.0).choose(logits, torch.tensor([[0]]), torch.zeros(1)).tolist() == [1]


@pytest.mark.parametrize("penalty", [5e-324, 1e-320, 1e-38, 1e-3, 1e3, 1e38, 1e300, float("inf")])
@pytest.mark.parametrize("temperature", [0, 1e-320, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_penalties_of_any_size_keep_the_order(penalty, temperature, dtype):
    logits = torch.tensor([[-300.0, 0.0, 200.0, 300.0, -200.0]], dtype=dtype)
    sampling, recent = Sampling(repetition_penalty=penalty, temperature=temperature), torch.arange(5)[None]
    assert sampling._penalize(logits, recent)[0].argsort().tolist() == [0, 4, 1, 2, 3]
    assert sampling.probabilities(sampling._penalize(logits, recent)).isfinite().all()
    assert sampling.choose(logits, recent, torch.tensor([0.999])).tolist() == [3]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", -1),
        ("top_k", 0),
        ("top_p", 0),
        ("top_p", 1.01),
        ("min_p", -0.1),
        ("min_p", 2),
        ("repetition_penalty", 0),
    ],
)
def test_bad_options(option, value):
    with pytest.raises(ValueError, match=f"{option} is {value}"):
        Sampling(**{option: value})
