"""The writer and the forgetting mechanism: claims of section 3.4."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from memformer_torch.bench.bytes import peak_bytes
from memformer_torch.nn.memory import Forgetting, MemoryWriter
from tests import plain


def random_write(batch=2, slots=4, tokens=5, d_model=12, heads=3, temperature=0.25, dtype=torch.float64):
    writer = MemoryWriter(d_model, heads, temperature).to(dtype)
    return writer, torch.randn(batch, slots, d_model, dtype=dtype), torch.randn(batch, tokens, d_model, dtype=dtype)


@given(
    batch=st.integers(1, 3),
    slots=st.integers(1, 5),
    tokens=st.integers(1, 6),
    heads=st.sampled_from([1, 2, 4]),
    temperature=st.sampled_from([0.125, 0.25, 1.0, 2.0]),
)
def test_writer_is_the_papers_equations(batch, slots, tokens, heads, temperature):
    writer, memory, x = random_write(batch, slots, tokens, 8, heads, temperature)
    lengths = torch.randint(1, tokens + 1, (batch,))
    mask = (torch.arange(tokens) < lengths[:, None])[:, None, None]
    written = writer(memory, x, mask)
    w_query, w_key, w_value = writer.query_key_value.weight.chunk(3)
    for b in range(batch):
        for k in range(slots):
            expected = plain.write_slot(memory[b, k], x[b, : lengths[b]], (w_query, w_key, w_value), heads, temperature)
            torch.testing.assert_close(written[b, k], expected, rtol=1e-10, atol=1e-10)


def test_writer_gradients_are_the_equations():
    writer, memory, x = random_write(1, 2, 3, 8, 2)
    memory.requires_grad_()
    x.requires_grad_()
    inputs = [memory, x, writer.query_key_value.weight]
    direction = torch.randn(2, 8, dtype=torch.float64)
    ours = torch.autograd.grad((writer(memory, x)[0] * direction).sum(), inputs)
    w_query, w_key, w_value = writer.query_key_value.weight.chunk(3)
    rows = [plain.write_slot(slot, x[0], (w_query, w_key, w_value), 2, 0.25) for slot in memory[0]]
    theirs = torch.autograd.grad((torch.stack(rows) * direction).sum(), inputs)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-9, atol=1e-9)


def test_a_slot_cannot_see_another():
    writer, memory, x = random_write()
    changed = memory.clone()
    changed[0, 1] += 1.0
    moved = (writer(memory, x) != writer(changed, x)).any(-1)
    assert moved.tolist() == [[False, True, False, False], [False] * 4]


def test_a_slot_that_attends_to_itself_alone_stays():
    writer, memory, x = random_write(heads=1)
    d_model = memory.shape[-1]
    with torch.no_grad():  # W_Q = W_K = 100: a slot's score with itself is its square, far above that with any token
        writer.query_key_value.weight[: 2 * d_model] = torch.eye(d_model).repeat(2, 1) * 100
    torch.testing.assert_close(writer(memory, x * 1e-3), memory, rtol=0, atol=0)


def test_temperature_sharpens():
    """A lower temperature moves what a slot takes nearer to one single value."""

    def distance_to_nearest_value(temperature):
        torch.manual_seed(0)
        writer, memory, x = random_write(heads=1, temperature=temperature)
        choices = torch.cat([memory[:, :, None], (x @ writer.query_key_value.weight[-12:].T)[:, None].expand(-1, 4, -1, -1)], 2)
        return (choices - writer(memory, x)[:, :, None]).norm(dim=-1).min(-1).values.mean()

    assert distance_to_nearest_value(0.01) < distance_to_nearest_value(0.25) < distance_to_nearest_value(1.0)


def test_many_slots_cost_linear_memory():
    def cost(slots):
        writer, memory, x = random_write(1, slots, 128, 64, 4, dtype=torch.float32)
        memory.requires_grad_()
        return peak_bytes(lambda: writer(memory, x).sum().backward())

    small, large = cost(1024), cost(16_384)
    assert large < 16.5 * small
    assert large < 16_384**2 * 4 / 20  # nowhere near one float a pair of slots


def test_forgetting_is_the_papers_formula():
    forgetting = Forgetting(4, 8).double()
    slots = torch.randn(2, 4, 8, dtype=torch.float64)
    new = forgetting(slots)
    for b in range(2):
        for k in range(4):
            torch.testing.assert_close(new[b, k], plain.forget(slots[b, k], forgetting.bias[k]))
    torch.testing.assert_close(forgetting.bias.norm(dim=-1), torch.full((4,), 0.1, dtype=torch.float64))
    torch.testing.assert_close(forgetting.initial(), forgetting.bias / forgetting.bias.norm(dim=-1, keepdim=True))


def test_ablations_of_forgetting():
    slots = torch.randn(2, 4, 8, dtype=torch.float64)
    kept_norm = Forgetting(4, 8, add_bias=False).double()
    torch.testing.assert_close(kept_norm(slots), F.normalize(slots, dim=-1))
    nothing = Forgetting(4, 8, add_bias=False, normalize=False).double()
    assert torch.equal(nothing(slots), slots)


def test_a_slot_that_is_not_written_returns_to_its_start():
    forgetting = Forgetting(1, 8).double()
    slot, home = F.normalize(torch.randn(1, 1, 8, dtype=torch.float64), dim=-1), forgetting.initial()
    distances = []
    for _ in range(300):
        slot = forgetting(slot)
        distances.append((slot - home).norm().item())
    assert all(after <= before + 1e-12 for before, after in itertools.pairwise(distances))
    assert distances[-1] < 1e-6


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_it_returns_more_slowly_the_further_it_points_away(steps):
    """The paper's forgetting figure: of two slots, the one nearly opposite to the state of rest loses less."""
    forgetting = Forgetting(1, 8).double()
    home = forgetting.initial()[0]
    aside = F.normalize(torch.randn(8, dtype=torch.float64), dim=0)
    aside = F.normalize(aside - (aside @ home) * home, dim=0)

    def angle(slot):
        return torch.acos((slot @ home).clamp(-1, 1)).item()

    ends = []
    for start in (0.5, 1.5, 2.9):  # radians from home
        slot = (torch.cos(torch.tensor(start)) * home + torch.sin(torch.tensor(start)) * aside)[None, None]
        for _ in range(steps):
            slot = forgetting(slot)
        ends.append(angle(slot[0, 0]))
    kept = [end / start for end, start in zip(ends, (0.5, 1.5, 2.9), strict=True)]
    assert kept == sorted(kept)
    assert kept[0] < kept[2] - 0.005


def test_a_longer_bias_forgets_faster():
    slot = F.normalize(torch.randn(1, 1, 8, dtype=torch.float64), dim=-1)
    forgetting = Forgetting(1, 8).double()
    near = (forgetting(slot) - forgetting.initial()).norm()
    with torch.no_grad():
        forgetting.bias *= 3
    assert (forgetting(slot) - forgetting.initial()).norm() < near


@pytest.mark.parametrize("length", [0.1, 0.01])
def test_a_slot_left_alone_is_forgotten_in_about_one_over_length_segments(length):
    """It turns to its vector: the tangent of half the angle between them falls by a factor e in 1 / length writes."""
    forgetting = Forgetting(1, 8, bias_length=length).double()
    home = forgetting.initial().detach()
    slot = F.normalize(torch.randn(1, 8, dtype=torch.float64) @ (torch.eye(8) - home.T @ home), dim=-1)
    for times in (1, 2, 3):
        for _ in range(round(1 / length)):
            slot = forgetting(slot)
        angle = torch.arccos((slot * home).sum())
        assert torch.tan(angle / 2).item() == pytest.approx(math.exp(-times), rel=2 * length)
