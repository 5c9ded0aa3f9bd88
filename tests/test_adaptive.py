"""Large vocabularies: adaptive embedding and softmax, and losses without full logits."""

import json
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from memformer_torch import (
    BOS,
    IGNORE,
    PAD,
    LSTMConfig,
    Output,
    Segment,
    TransformerDecoder,
    TransformerDecoderConfig,
    bptt,
    checkpointed,
    mrbp,
)
from memformer_torch.bench.bytes import peak_bytes
from memformer_torch.losses import cross_entropy_sum, segment_loss
from memformer_torch.models import MODELS
from memformer_torch.nn.adaptive import AdaptiveEmbedding
from memformer_torch.nn.embedding import Embedding
from memformer_torch.nn.vocabulary import make_embedding
from tests.test_backprop import assert_same, rollout, run
from tests.test_golden import CONFIGS

VOCAB, CUTOFFS, WIDTH = 61, (7, 20, 40), 128
every_model = pytest.mark.parametrize("name", MODELS)
every_kind = pytest.mark.parametrize("cutoffs", [(), (7,), CUTOFFS])


def hidden_and_target(padded=True, batch_size=3, length=9, width=WIDTH, vocab_size=VOCAB):
    hidden = torch.randn(batch_size, length, width, dtype=torch.float64, requires_grad=True)
    target = torch.randint(vocab_size, (batch_size, length))
    if padded:
        target[0, 4:], target[1] = IGNORE, IGNORE
    return hidden, target


def plain_loss(embedding, hidden, token):
    """-log p of one token (Grave et al. 2017): of its id in the first cluster, or of its cluster and of its id therein."""
    bounds = [0, *CUTOFFS, VOCAB]
    head = [hidden @ row for row in embedding.weight]
    assert len(head) == CUTOFFS[0] + 3
    probabilities = torch.stack(head).softmax(0)
    if token < CUTOFFS[0]:
        return -probabilities[token].log()
    cluster = max(i for i, start in enumerate(bounds[:-1]) if token >= start)
    tail = embedding.tails[cluster - 1]
    vectors = [tail.projection.weight @ row for row in tail.weight]  # the input's, so the output is tied to it
    assert len(vectors) == bounds[cluster + 1] - bounds[cluster]
    within = torch.stack([hidden @ vector for vector in vectors]).softmax(0)
    return -(probabilities[CUTOFFS[0] + cluster - 1] * within[token - bounds[cluster]]).log()


def model_with(name, dtype=torch.float64, **changes):
    """One of the golden models; 11 ids in three clusters, as `rollout` has them."""
    config, model = MODELS[name]
    return model(config(**CONFIGS[name] | {"vocab_size": 11, "d_model": 32, "cutoffs": (3, 7)} | changes)).to(dtype)


def test_losses_are_those_of_the_definition():
    embedding = AdaptiveEmbedding(VOCAB, WIDTH, CUTOFFS).double()
    hidden, target = hidden_and_target()
    target[2] = torch.tensor([0, 6, 7, 19, 20, 39, 40, 60, 3])  # the ends of all clusters
    losses = embedding.losses(hidden, target)
    assert losses.shape == target.shape
    for b in range(3):
        for n, token in enumerate(target[b].tolist()):
            wanted = 0.0 if token == IGNORE else plain_loss(embedding, hidden[b, n], token).item()
            assert losses[b, n].item() == pytest.approx(wanted, rel=1e-12)


@every_kind
def test_logits_are_a_distribution_and_losses_are_theirs(cutoffs):
    embedding, (hidden, target) = make_embedding(VOCAB, WIDTH, cutoffs).double(), hidden_and_target()
    logits = embedding.logits(hidden)
    assert logits.shape == (3, 9, VOCAB)
    if cutoffs:
        torch.testing.assert_close(logits.exp().sum(-1), torch.ones(3, 9, dtype=torch.float64), rtol=1e-12, atol=0)
        torch.testing.assert_close(logits.log_softmax(-1), logits, rtol=1e-10, atol=1e-12)
    wanted = -logits.log_softmax(-1).gather(2, target.clamp(min=0)[..., None])[..., 0].masked_fill(target == IGNORE, 0)
    torch.testing.assert_close(embedding.losses(hidden, target), wanted, rtol=1e-12, atol=1e-12)


@every_kind
@pytest.mark.parametrize("tokens", ["all clusters", "first cluster", "last cluster", "none"])
def test_gradients_are_those_through_full_logits(cutoffs, tokens):
    embedding, (hidden, target) = make_embedding(VOCAB, WIDTH, cutoffs).double(), hidden_and_target()
    low, high = {"first cluster": (0, 7), "last cluster": (40, VOCAB)}.get(tokens, (0, VOCAB))
    target = target.where(target == IGNORE, torch.randint(low, high, target.shape))
    if tokens == "none":
        target.fill_(IGNORE)
    weights = torch.rand(3, 9, dtype=torch.float64)  # every token's own gradient

    def gradients(losses):
        inputs = {"hidden": hidden} | {name: p for name, p in embedding.named_parameters() if name != "bos"}
        return dict(zip(inputs, torch.autograd.grad((losses * weights).sum(), list(inputs.values())), strict=True))

    logits = embedding.logits(hidden).flatten(0, 1)
    full = F.cross_entropy(logits, target.flatten(), ignore_index=IGNORE, reduction="none").view_as(target)
    ours, theirs = gradients(embedding.losses(hidden, target)), gradients(full)
    assert len(ours) == 2 + 2 * len(cutoffs)
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-10, atol=1e-12)


@given(
    data=st.data(),
    vocab_size=st.integers(2, 40),
    d_model=st.sampled_from([1, 6, 20, 100]),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4)),
)
def test_any_cutoffs(data, vocab_size, d_model, shape):
    """Also clusters of one id, and models narrower than the narrowest cluster."""
    cutoffs = sorted(data.draw(st.sets(st.integers(1, vocab_size - 1), max_size=5)))
    embedding = AdaptiveEmbedding(vocab_size, d_model, cutoffs).double()
    hidden, target = hidden_and_target(False, *shape, d_model, vocab_size)
    logits = embedding.logits(hidden)
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(shape, dtype=torch.float64))
    wanted = -logits.gather(2, target[..., None])[..., 0]
    torch.testing.assert_close(embedding.losses(hidden, target), wanted, rtol=1e-10, atol=1e-12)
    assert embedding(target).shape == (*shape, d_model)


def test_input_and_output_are_tied():
    """What the input puts in for an id is what the output multiplies by: there is no other parameter but the clusters' rows."""
    embedding = AdaptiveEmbedding(VOCAB, WIDTH, CUTOFFS).double()
    shapes = {name: tuple(p.shape) for name, p in embedding.named_parameters()}
    widths = {0: 32, 1: 16, 2: 16}  # a quarter each time, 16 at least
    assert shapes == {"weight": (7 + 3, WIDTH), "bos": (WIDTH,)} | {
        f"tails.{i}.{name}": shape
        for i, num_ids in enumerate([13, 20, 21])
        for name, shape in (("weight", (num_ids, widths[i])), ("projection.weight", (WIDTH, widths[i])))
    }
    hidden = torch.randn(1, 1, WIDTH, dtype=torch.float64)
    vectors = embedding(torch.arange(VOCAB)[None])[0] / WIDTH**0.5
    scores, logits = vectors @ hidden[0, 0], embedding.logits(hidden)[0, 0]
    for start, end in [(0, 7), (7, 20), (20, 40), (40, VOCAB)]:
        torch.testing.assert_close(scores[start:end].log_softmax(0), logits[start:end].log_softmax(0))


def test_input_has_unit_variance_in_every_cluster():
    embedding = AdaptiveEmbedding(4_000, 512, (1_000, 2_000, 3_000))
    vectors = embedding(torch.arange(4_000)[None])[0]
    for cluster in vectors.split(1_000):
        assert 0.9 < cluster.std() < 1.1
        assert cluster.mean().abs() < 0.05
    assert 0.8 < embedding(torch.tensor([[BOS]])).std() < 1.2
    # ... and logits the spread of a single table's, so that no cluster starts out as more certain
    hidden = torch.randn(200, 512)
    for tail in embedding.tails:
        assert 0.8 < tail.logits(hidden).std() < 1.2


def test_special_ids_at_the_input():
    embedding = AdaptiveEmbedding(VOCAB, WIDTH, CUTOFFS).double()
    vectors = embedding(torch.tensor([[BOS, 3, PAD], [50, BOS, 8]]))
    torch.testing.assert_close(vectors[0, 0], embedding.bos * WIDTH**0.5)
    torch.testing.assert_close(vectors[1, 1], embedding.bos * WIDTH**0.5)
    torch.testing.assert_close(vectors[1, 0], embedding(torch.tensor([[50]]))[0, 0])
    assert vectors.isfinite().all()
    vectors[:, 1:].sum().backward()
    assert embedding.bos.grad.any()
    assert embedding.tails[2].weight.grad is not None
    assert not embedding.weight.grad[CUTOFFS[0] :].any(), "the clusters' own rows are no input"


@every_model
def test_token_losses_are_the_cross_entropy_of_forward(name):
    """With dropout on, from one seed; state and auxiliary loss are the same to the bit."""
    model = model_with(name, cutoffs=(3, 7)).train()
    state = model.initial_state(3)
    for segment in rollout(4):
        torch.manual_seed(5)
        output = model(segment, state)
        torch.manual_seed(5)
        losses, after, auxiliary = model.token_losses(segment, state)
        assert losses.shape == segment.target.shape
        assert not losses[segment.target == IGNORE].any()
        wanted = F.cross_entropy(output.logits.mT, segment.target, ignore_index=IGNORE, reduction="none")
        torch.testing.assert_close(losses, wanted, rtol=1e-12, atol=1e-12)
        assert type(after) is type(output.state)
        assert all(map(torch.equal, after, output.state))
        assert (auxiliary is None) == (output.auxiliary is None)
        assert auxiliary is None or torch.equal(auxiliary, output.auxiliary)
        state = after
    assert torch.equal(segment_loss(model.eval(), segment, state)[0], model.token_losses(segment, state).losses.sum())


@every_model
@pytest.mark.parametrize("method", [mrbp, checkpointed])
def test_replay_gives_the_gradients_of_bptt(name, method):
    model, segments = model_with(name).train(), rollout(4)
    assert_same(run(method, model, segments), run(bptt, model, segments), 1e-10)


@every_model
def test_every_model_trains_with_clusters(name):
    model, segments = model_with(name, torch.float32, dropout=0.0), rollout(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        loss, _ = mrbp(model, segments, model.initial_state(3))
        assert all(p.grad is not None for p in model.embedding.parameters())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


@every_model
def test_under_autocast(name):
    model, segments = model_with(name, torch.float32).train(), rollout(3)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = run(mrbp, model, segments), run(bptt, model, segments)
        assert model(segments[0], model.initial_state(3)).logits.dtype == torch.float32
    assert ours.loss.dtype == torch.float32
    assert_same(ours, theirs, 2e-2)


@every_model
def test_only_large_vocabularies_offer_token_losses(name):
    """So that a model of one table is asked through `forward`, which its users may have wrapped or overridden."""
    assert hasattr(model_with(name, cutoffs=(3, 7)), "token_losses")
    assert not hasattr(model_with(name, cutoffs=()), "token_losses")


def test_a_model_without_token_losses_is_asked_for_logits():
    model, (segment,) = model_with("lstm").eval(), rollout(1)

    def plain(segment, state):
        return Output(model(segment, state).logits, state, torch.ones(()))

    loss, _, auxiliary = segment_loss(plain, segment, model.initial_state(3))
    assert torch.equal(loss, cross_entropy_sum(model(segment, model.initial_state(3)).logits, segment.target))
    assert auxiliary == 1
    torch.testing.assert_close(loss, segment_loss(model, segment, model.initial_state(3))[0])


def test_wikitext_103s_vocabulary_fits():
    """267,735 words at width 512: forward and backward hold a small part of one full logits tensor, and evaluation too."""
    vocab_size, cutoffs, shape = 267_735, (20_000, 40_000, 200_000), (4, 128)
    sizes = {"d_model": 512, "num_heads": 8, "d_ff": 64, "num_layers": 1, "segment_length": 128}
    model = TransformerDecoder(TransformerDecoderConfig(vocab_size=vocab_size, cutoffs=cutoffs, **sizes))
    frequencies = 1 / torch.arange(1, vocab_size + 1)  # Zipf's law
    ids = torch.multinomial(frequencies, shape[0] * shape[1], replacement=True).view(shape)
    ids[0, :3] = torch.tensor([30_000, 100_000, 267_734])
    segment, full = Segment(ids, ids), 4 * ids.numel() * vocab_size

    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        evaluated = peak_bytes(lambda: model.token_losses(segment, model.initial_state(4)))
    trained = peak_bytes(lambda: mrbp(model, [segment], model.initial_state(4)))
    parameters = 4 * sum(p.numel() for p in model.embedding.parameters())
    assert parameters < 0.2 * 4 * vocab_size * 512
    assert evaluated < 0.2 * full
    assert trained < 0.5 * full
    assert all(p.grad.any() for p in model.embedding.tails.parameters())


@every_model
@pytest.mark.parametrize("cutoffs", [(0, 5), (5, 5), (6, 5), (5, 11), (-1,), (12,), (2.5,), ("5",), 5, None])
def test_bad_cutoffs(name, cutoffs):
    with pytest.raises(ValueError, match="cutoffs is"):
        MODELS[name][0](vocab_size=11, cutoffs=cutoffs)
    with pytest.raises(ValueError, match="cutoffs is"):
        AdaptiveEmbedding(11, 16, cutoffs)


def test_cutoffs_come_back_from_json():
    config = LSTMConfig(vocab_size=11, cutoffs=(3, 7))
    again = LSTMConfig(**json.loads(json.dumps(asdict(config))))
    assert again == config
    assert hash(again) == hash(config)
    assert again.cutoffs == (3, 7)
    assert isinstance(make_embedding(11, 16), Embedding)
