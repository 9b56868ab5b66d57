"""The sampler against plain transformers, while rows join, end and share prompts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sampling_helpers import Bench, folder, model, reference, request, sample, teacher_forced
from tiny_models import CONFIGURATIONS, VOCABULARY

ARCHITECTURES = list(CONFIGURATIONS)
PADDED = {"bloom"}
END = frozenset(range(2, VOCABULARY, 17))


def prompts(count: int, seed: int = 0, longest: int = 14) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(3, VOCABULARY, generator.integers(1, longest)).tolist() for _ in range(count)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logprobs_are_those_of_plain_transformers(name: str) -> None:
    """Prompts of many lengths, several samples each, ends anywhere, rows that join late or must wait."""
    assert (model(name).attention == "padded") == (name in PADDED), model(name).attention_reason
    bench = Bench(name, max_rows=20)
    messages = {}
    for job, (count, copies, tokens, wait) in enumerate(
        [(5, 3, 20, 6), (3, 2, 30, 1), (4, 4, 9, 3), (1, 1, 12, 0)]
    ):
        messages[job] = [
            request(prompt, seed=100 * job + place, max_tokens=tokens, stop_ids=END, prompt_logprobs=True)
            for place, prompt in enumerate(prompt for prompt in prompts(count, job) for _ in range(copies))
        ]
        bench.add(job, messages[job])
        bench.steps(wait)
    bench.finish()
    assert not bench.failures
    reasons = set()
    for job, requests in messages.items():
        samples = bench.samples(job)
        assert len(samples) == len(requests)
        for asked, (header, arrays) in zip(requests, samples):
            tokens = arrays["tokens"].tolist()
            expected = teacher_forced(name, asked.prompt + tokens)
            chosen = expected[:-1].gather(1, torch.tensor(asked.prompt + tokens)[1:, None])[:, 0].numpy()
            split = len(asked.prompt) - 1
            np.testing.assert_allclose(arrays["logprobs"], chosen[split:], atol=1e-4)
            np.testing.assert_allclose(arrays["prompt_logprobs"][1:], chosen[:split], atol=1e-4)
            assert np.isnan(arrays["prompt_logprobs"][0])
            ended = tokens[-1] in END
            assert header["stop_reason"] == ("stop" if ended else "length")
            assert ended or len(tokens) == asked.max_tokens
            assert not END & set(tokens[:-1])
            reasons.add(header["stop_reason"])
    assert reasons == {"stop", "length"}
    if name not in PADDED:
        assert bench.counters["prompts_shared"] >= 20


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_is_transformers_greedy(name: str) -> None:
    asked = prompts(4, seed=7)
    samples = sample(name, [request(prompt, max_tokens=12, temperature=0, stop_ids=[2]) for prompt in asked])
    for prompt, (_, arrays) in zip(asked, samples):
        expected = reference(name).generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=2,
            pad_token_id=0,
            use_cache=False,
        )
        assert arrays["tokens"].tolist() == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", ["llama", "qwen2-window", "bloom"])
def test_a_sample_does_not_depend_on_its_company(name: str) -> None:
    asked = [
        request(prompt, seed=1000 + place, max_tokens=10, temperature=0.8, top_p=0.9, stop_ids=END)
        for place, prompt in enumerate(prompts(6, seed=3))
    ]
    together = [arrays["tokens"].tolist() for _, arrays in sample(name, asked)]
    alone = [sample(name, [one])[0][1]["tokens"].tolist() for one in asked]
    assert together == alone
    assert len(set(map(tuple, together))) == len(together)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_long_prompts_are_read_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hone_worker.sampling.packed_batch.PackedBatch.prefill_tokens", 7)
    for asked in [prompts(5, seed=4, longest=40), prompts(1, seed=5, longest=3)]:
        requests = [
            request(prompt, seed=place, max_tokens=6, prompt_logprobs=True)
            for place, prompt in enumerate(asked)
        ]
        for prompt, (_, arrays) in zip(asked, sample(name, requests)):
            whole = prompt + arrays["tokens"].tolist()
            chosen = teacher_forced(name, whole)[:-1].gather(1, torch.tensor(whole)[1:, None])[:, 0].numpy()
            found = np.concatenate([arrays["prompt_logprobs"][1:], arrays["logprobs"]])
            np.testing.assert_allclose(found, chosen, atol=1e-4)


def test_top_logprobs_are_the_most_likely_tokens() -> None:
    prompt = prompts(1, seed=9)[0]
    three, none, one = sample(
        "llama",
        [
            request(prompt, seed=seed, max_tokens=5, top_logprobs=k, temperature=2.0)
            for seed, k in ((1, 3), (2, 0), (3, 1))
        ],
    )
    assert "top_tokens" not in none[1]
    assert one[1]["top_tokens"].shape == (5, 1)
    tokens = three[1]["tokens"].tolist()
    values, ids = teacher_forced("llama", prompt + tokens)[len(prompt) - 1 : -1].topk(3)
    assert three[1]["top_tokens"].tolist() == ids.tolist()
    np.testing.assert_allclose(three[1]["top_logprobs"], values.numpy(), atol=1e-4)


def test_many_rows_in_small_batches_and_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without slack every length gets a bucket of its own; with three rows at a time everything waits."""
    asked = [
        request(prompt, seed=place, max_tokens=9, stop_ids=END)
        for place, prompt in enumerate(prompts(12, seed=6))
    ]
    expected = [arrays["tokens"].tolist() for _, arrays in sample("llama", asked)]
    assert [arrays["tokens"].tolist() for _, arrays in sample("llama", asked, max_rows=3)] == expected
    monkeypatch.setattr("hone_worker.sampling.packed_batch.PackedBatch.slack", 0)
    assert [arrays["tokens"].tolist() for _, arrays in sample("llama", asked)] == expected


def test_a_tokenizer_is_only_read_for_stop_strings() -> None:
    assert (folder("llama") / "tokenizer.json").exists()
    bench = Bench("llama")
    bench.sampler._open_tokenizer = lambda: pytest.fail("no stop string was asked for")
    bench.add(1, [request([5, 6])])
    bench.finish()
    assert len(bench.samples(1)) == 1
