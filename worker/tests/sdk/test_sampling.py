"""Sampling: seeds, stops, log-probabilities against plain transformers, frozen weights."""

from __future__ import annotations

import asyncio
import pickle

import numpy as np
import pytest
import tinker
import torch
from conftest import TEXT, text
from reference import Reference
from tinker import types


@pytest.fixture
def trained(trainer: tinker.TrainingClient, reference: Reference) -> Reference:
    """`trainer` and its reference after a step that moves them."""
    targets = {"target_tokens": TEXT[1:] + [50], "weights": [1.0] * 8}
    datum = types.Datum(model_input=text(TEXT), loss_fn_inputs=targets)
    adam = types.AdamParams(learning_rate=1e-2)
    trainer.forward_backward([datum], "cross_entropy").result()
    trainer.optim_step(adam).result()
    reference.loss([datum], "cross_entropy", {}).backward()
    reference.step(adam)
    return reference


@pytest.fixture
def sampler(trainer: tinker.TrainingClient, trained: Reference) -> tinker.SamplingClient:
    return trainer.save_weights_and_get_sampling_client().result()


def params(**more) -> types.SamplingParams:
    return types.SamplingParams(**{"max_tokens": 12, "seed": 1, "stop": [], **more})


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_logprobs(sampler: tinker.SamplingClient, trained: Reference, temperature: float):
    response = sampler.sample(text(TEXT), 4, params(temperature=temperature, top_k=40), topk_sample_logprobs=3).result()
    for sequence in response.sequences:
        tokens = sequence.tokens
        logits = trained.model(torch.tensor([TEXT + tokens])).logits[0, len(TEXT) - 1 : -1].float()
        own = torch.log_softmax(logits / temperature, -1).detach()
        expected = own.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        np.testing.assert_allclose(sequence.logprobs, expected, rtol=5e-3, atol=5e-3)
        likeliest = own.topk(3, -1)
        np.testing.assert_allclose(sequence.topk_logprobs_np.logprobs, likeliest.values, rtol=5e-3, atol=5e-3)
    assert len({tuple(sequence.tokens) for sequence in response.sequences}) > 1


def test_greedy(sampler: tinker.SamplingClient, trained: Reference):
    (sequence,) = sampler.sample(text(TEXT), 1, params(temperature=0.0, max_tokens=6)).result().sequences
    tokens = list(TEXT)
    for token, logprob in zip(sequence.tokens, sequence.logprobs, strict=True):
        own = trained.all_logprobs(tokens)[-1]
        assert token == int(own.argmax())
        assert logprob == pytest.approx(float(own[token]), abs=5e-3)
        tokens.append(token)
    assert sequence.stop_reason == "length"


def test_seeds(sampler: tinker.SamplingClient):
    def tokens(**more):
        return [sequence.tokens for sequence in sampler.sample(text(TEXT), 3, params(**more)).result().sequences]

    assert tokens(seed=5) == tokens(seed=5)
    assert tokens(seed=5) != tokens(seed=6)
    first = tokens(seed=None)
    assert first != tokens(seed=None)


def test_stops(sampler: tinker.SamplingClient):
    def run(**more) -> list:
        return sampler.sample(text(TEXT), 16, params(max_tokens=60, temperature=1.5, **more)).result().sequences

    never = run()
    assert all(len(sequence.tokens) == 60 and sequence.stop_reason == "length" for sequence in never)
    often = max(range(3, 259), key=lambda token: sum(token in sequence.tokens for sequence in never))
    by_token = run(stop=[often])
    assert any(sequence.stop_reason == "stop" for sequence in by_token)
    for sequence in by_token:
        assert often not in sequence.tokens[:-1]
        assert (sequence.stop_reason == "stop") == (sequence.tokens[-1] in (often, 2))
    tokenizer = sampler_tokenizer()
    printable = max(
        (token for token in range(3, 259) if tokenizer.decode([token]).isalnum()),
        key=lambda token: sum(token in sequence.tokens for sequence in never),
    )
    word = tokenizer.decode([printable])
    for stop in (word, [word, "never this text"]):
        by_text = run(stop=stop)
        assert any(sequence.tokens[-1] == printable for sequence in by_text)
        for sequence in by_text:
            assert word not in tokenizer.decode(sequence.tokens[:-1])
    assert all(2 not in sequence.tokens[:-1] for sequence in run(stop=None))


def sampler_tokenizer():
    import os

    import transformers

    return transformers.AutoTokenizer.from_pretrained(os.environ["HONE_MODEL"])


def test_prompt_logprobs(sampler: tinker.SamplingClient, trained: Reference):
    own = trained.all_logprobs(TEXT).detach()
    expected = own[:-1].gather(1, torch.tensor(TEXT[1:])[:, None])[:, 0].numpy()
    found = sampler.compute_logprobs(text(TEXT)).result()
    assert found[0] is None
    np.testing.assert_allclose(found[1:], expected, rtol=5e-3, atol=5e-3)
    last = sampler.compute_logprobs(text(TEXT), prompt_logprobs_last_n=2).result()
    assert last[:-2] == [None] * 6 and last[-2:] == found[-2:]

    targets = types.TensorData.from_numpy(np.array([[TEXT[i + 1], 90 + i if i % 2 else -1] for i in range(7)]))
    response = sampler.sample(
        text(TEXT),
        1,
        params(),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=4,
        target_prompt_logprobs=targets,
    ).result()
    np.testing.assert_allclose(response.prompt_logprobs[1:], expected, rtol=5e-3, atol=5e-3)
    rows = response.topk_prompt_logprobs
    assert len(rows) == 8 and rows[0] is None
    for place in range(1, 8):
        likeliest = own[place - 1].topk(4)
        assert [token for token, _ in rows[place]] == likeliest.indices.tolist()
        np.testing.assert_allclose([value for _, value in rows[place]], likeliest.values, rtol=5e-3, atol=5e-3)
    scored = response.target_prompt_logprobs.to_numpy()
    assert scored.shape == (7, 2)
    np.testing.assert_allclose(scored[:, 0], expected, rtol=5e-3, atol=5e-3)
    for place in range(7):
        wanted = float(own[place, 90 + place]) if place % 2 else 0.0
        assert scored[place, 1] == pytest.approx(wanted, rel=5e-3, abs=5e-3)


def test_tokenizers(service: tinker.ServiceClient, trainer: tinker.TrainingClient):
    """A sampling client knows the name of its base model only, so the name has to be one that has a tokenizer."""
    folder = trainer.get_info().model_data.tokenizer_id
    expected = trainer.get_tokenizer().encode("ab")
    for name in (folder, folder.replace("/", "/./", 1)):
        sampler = service.create_sampling_client(base_model=name).result()
        assert sampler.get_tokenizer().encode("ab") == expected
        assert service.create_lora_training_client(name, rank=2).result().get_info().model_name == name


def test_prompt_alt_tokens(sampler: tinker.SamplingClient, trained: Reference):
    """The one feature of sampling that was refused."""
    drawn = sampler.sample(text(TEXT), 1, params(max_tokens=1), prompt_alt_tokens_k=500).result().prompt_alt_tokens
    tokens, logprobs = drawn.tokens.to_torch(), drawn.logprobs.to_torch()
    assert tokens.shape == logprobs.shape == (7, 500)
    own = trained.all_logprobs(TEXT)[:-1].detach()
    np.testing.assert_allclose(logprobs, own.gather(1, tokens), rtol=5e-3, atol=5e-3)
    assert float(logprobs.mean()) == pytest.approx(float((own.exp() * own).sum(-1).mean()), abs=0.1)
    greedy = sampler.sample(text(TEXT), 1, params(max_tokens=1, temperature=0.0), prompt_alt_tokens_k=2).result()
    expected = own.argmax(-1)[:, None].expand(-1, 2)
    assert (greedy.prompt_alt_tokens.tokens.to_torch() == expected).all()


def test_a_sampler_is_frozen(service: tinker.ServiceClient, trainer: tinker.TrainingClient, sampler: tinker.SamplingClient):
    before = sampler.compute_logprobs(text(TEXT)).result()
    named = trainer.save_weights_for_sampler("frozen").result().path
    targets = {"target_tokens": [70] * 8, "weights": [1.0] * 8}
    trainer.forward_backward([types.Datum(model_input=text(TEXT), loss_fn_inputs=targets)], "cross_entropy").result()
    trainer.optim_step(types.AdamParams(learning_rate=0.05)).result()
    newer = trainer.save_weights_and_get_sampling_client().result()
    assert sampler.compute_logprobs(text(TEXT)).result() == before
    assert newer.compute_logprobs(text(TEXT)).result() != before
    from_path = service.create_sampling_client(model_path=named).result()
    assert from_path.get_base_model() == "tiny"
    np.testing.assert_allclose(from_path.compute_logprobs(text(TEXT)).result()[1:], before[1:], atol=1e-5)
    both = service.create_sampling_client(model_path=named, base_model="tiny").result()
    np.testing.assert_allclose(both.compute_logprobs(text(TEXT)).result()[1:], before[1:], atol=1e-5)


def test_copies_of_a_client(sampler: tinker.SamplingClient):
    """Handles and pickled copies count their requests apart from each other."""
    expected = sampler.sample(text(TEXT), 2, params()).result()
    copies = [
        tinker.SamplingClient.from_sampler_handle(sampler.get_sampler_handle(), api_key="tml-local"),
        pickle.loads(pickle.dumps(sampler)),
    ]
    for copy in copies:
        for _ in range(2):
            found = copy.sample(text(TEXT), 2, params()).result()
            assert [s.tokens for s in found.sequences] == [s.tokens for s in expected.sequences]
            assert {s.sequence_id for s in found.sequences}.isdisjoint({s.sequence_id for s in expected.sequences})


def test_many_at_once(sampler: tinker.SamplingClient):
    alone = [sampler.sample(text(TEXT), 1, params(seed=seed, max_tokens=20)).result() for seed in range(8)]

    async def together():
        return await asyncio.gather(
            *[sampler.sample(text(TEXT), 1, params(seed=seed % 8, max_tokens=20)) for seed in range(64)]
        )

    for index, response in enumerate(asyncio.run(together())):
        expected = alone[index % 8].sequences[0]
        assert response.sequences[0].tokens == expected.tokens
        np.testing.assert_allclose(response.sequences[0].logprobs, expected.logprobs, atol=1e-3)


def test_to_the_end_of_the_context(service: tinker.ServiceClient):
    base = service.create_sampling_client(base_model="tiny").result()
    prompt = text([40] * 4090)
    (sequence,) = base.sample(prompt, 1, types.SamplingParams(stop=[])).result().sequences
    assert len(sequence.tokens) == 6 and sequence.stop_reason == "length"


def test_in_flight_weights(trainer: tinker.TrainingClient):
    save = getattr(trainer, "save_weights_and_get_sampling_client")
    try:
        first = save(kind="inflight").result()
    except TypeError:
        pytest.skip("this SDK has no in-flight samplers in its public client")
    before = first.compute_logprobs(text(TEXT)).result()
    targets = {"target_tokens": [70] * 8, "weights": [1.0] * 8}
    trainer.forward_backward([types.Datum(model_input=text(TEXT), loss_fn_inputs=targets)], "cross_entropy").result()
    trainer.optim_step(types.AdamParams(learning_rate=0.05)).result()
    save(kind="inflight").result()
    assert first.compute_logprobs(text(TEXT)).result() != before
