"""Messages, rows and turns: streaming, abort, versions, several policies, errors, memory."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hone_worker.attention.decode import Block
from hone_worker.errors import UserMistake
from hone_worker.sampling.rows import parse_requests
from sampling_helpers import Bench, FixedPolicy, model, request, sample


def test_streamed_tokens_are_those_of_the_samples() -> None:
    bench = Bench("llama")
    bench.add(4, [request([5, 6], seed=1, max_tokens=4), request([7], seed=2, max_tokens=6)], stream=True)
    bench.add(5, [request([8], seed=3)])
    bench.finish()
    streamed: dict[int, list[tuple[int, float]]] = {0: [], 1: []}
    order = [header for header, _ in bench.events if header["id"] == 4]
    for header, arrays in bench.events:
        if header.get("event") == "token":
            assert header["id"] == 4
            for place, token, logprob in zip(arrays["requests"], arrays["tokens"], arrays["logprobs"]):
                streamed[int(place)].append((int(token), float(logprob)))
    for place, (_, arrays) in enumerate(bench.samples(4)):
        assert streamed[place] == list(zip(arrays["tokens"].tolist(), arrays["logprobs"].tolist()))
    assert order[-1] == {"id": 4, "ok": True} and sum("ok" in header for header in order) == 1


def test_abort_answers_with_what_there_is() -> None:
    bench = Bench("llama", max_rows=2)
    asked = [request([place + 3], seed=place, max_tokens=50) for place in range(4)]
    whole = [arrays["tokens"].tolist() for _, arrays in sample("llama", asked)]
    bench.add(1, asked)
    bench.add(2, [request([9], max_tokens=3)])
    bench.steps(3)
    bench.sampler.abort(1, requests=[0])
    assert [header["request"] for header, _ in bench.samples(1)] == [0]
    bench.steps(2)
    bench.sampler.abort(1)
    bench.sampler.abort(1)
    bench.sampler.abort(77)
    found = bench.samples(1)
    assert [header["stop_reason"] for header, _ in found] == ["aborted"] * 4
    assert [len(arrays["tokens"]) for _, arrays in found] == [3, 5, 2, 0]
    for expected, (_, arrays) in zip(whole, found):
        assert arrays["tokens"].tolist() == expected[: len(arrays["tokens"])]
    bench.finish()
    assert len(bench.samples(2)[0][1]["tokens"]) == 3
    assert bench.events.count(({"id": 1, "ok": True}, {})) == 1


def test_rows_in_flight_take_the_version_of_each_step() -> None:
    bench = Bench("llama")
    bench.policy.version = 3
    bench.add(1, [request([5], seed=1, max_tokens=2), request([6], seed=2, max_tokens=6)])
    bench.steps(4)
    bench.policy.version = 4
    bench.add(2, [request([6], seed=3, max_tokens=2)])
    bench.finish()
    short, long = bench.samples(1)
    assert short[0]["policy_version"] == 3 and "token_versions" not in short[1]
    assert long[0]["policy_version"] == 4
    assert long[1]["token_versions"].tolist() == [3, 3, 3, 3, 4, 4]
    assert bench.samples(2)[0][0]["policy_version"] == 4
    # The prompt [6] was read again with the new weights.
    assert bench.counters["prompts_shared"] == 0


def test_policies_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hone_worker.sampling.sampler._SLICE", 3)
    bench = Bench("llama")
    used: list[str] = []

    class Watched(FixedPolicy):
        def __init__(self, name: str):
            super().__init__(model("llama"))
            self.name = name

        def use_published(self):
            used.append(self.name)
            return self.model

    first, second = Watched("first"), Watched("second")
    bench.add(1, [request([5], seed=1, max_tokens=9)], policy=first)
    bench.add(2, [request([5], seed=1, max_tokens=5)], policy=second)
    bench.finish()
    turns = [name for place, name in enumerate(used) if place == 0 or used[place - 1] != name]
    assert turns == ["first", "second", "first", "second", "first"]
    long, short = (bench.samples(job)[0][1]["tokens"].tolist() for job in (1, 2))
    assert long[:5] == short
    bench.add(3, [request([5], max_tokens=100)], policy=first)
    bench.add(4, [request([5], max_tokens=100)], policy=second)
    bench.steps(2)
    bench.sampler.abort_policy(first)
    assert bench.samples(3)[0][0]["stop_reason"] == "aborted" and not bench.samples(4)
    bench.finish()


def test_rows_wait_for_a_publish_where_the_policy_needs_one() -> None:
    bench = Bench("llama")
    other = FixedPolicy(bench.model)
    bench.add(1, [request([5], seed=1, max_tokens=6)])
    bench.steps(2)
    bench.policy.can_sample = False
    bench.add(2, [request([6], max_tokens=2)])
    assert not bench.sampler.busy
    bench.add(3, [request([7], max_tokens=4)], policy=other)
    bench.finish()
    assert bench.samples(3) and not bench.samples(1) and not bench.samples(2)
    bench.policy.can_sample, bench.policy.version = True, 1
    bench.finish()
    assert bench.samples(1)[0][1]["token_versions"].tolist() == [0, 0, 1, 1, 1, 1] and bench.samples(2)


@contextmanager
def failing(bench: Bench, error: Exception, after: int):
    """The model's output layer fails once, at its call number `after`."""
    real, calls = bench.model.logits, iter(range(10**9))

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        if next(calls) == after:
            raise error
        return real(hidden)

    bench.model.logits = logits
    try:
        yield
    finally:
        del bench.model.logits


def test_an_error_ends_the_messages_concerned_and_no_others() -> None:
    bench = Bench("llama", max_rows=2)
    bench.add(1, [request([5], max_tokens=10), request([6], max_tokens=10)])
    bench.add(2, [request([7], max_tokens=4)])
    with failing(bench, ValueError("broken"), after=3):
        bench.finish()
    assert str(bench.failures[1]) == "broken" and list(bench.failures) == [1]
    assert len(bench.samples(2)[0][1]["tokens"]) == 4


@pytest.mark.parametrize("after", [0, 4])
def test_out_of_memory_means_fewer_rows_and_the_same_samples(after: int) -> None:
    asked = [request([place + 3, 9], seed=place, max_tokens=8, prompt_logprobs=True) for place in range(6)]
    expected = sample("llama", asked)
    bench = Bench("llama")
    bench.add(1, asked)
    with failing(bench, torch.OutOfMemoryError("no room"), after=after):
        bench.finish()
    assert not bench.failures and bench.counters["memory_retreats"] == 1
    for (_, wanted), (_, found) in zip(expected, bench.samples(1)):
        assert wanted["tokens"].tolist() == found["tokens"].tolist()
        np.testing.assert_allclose(wanted["logprobs"], found["logprobs"], atol=1e-4)
        np.testing.assert_allclose(wanted["prompt_logprobs"][1:], found["prompt_logprobs"][1:], atol=1e-4)


def test_out_of_memory_for_a_single_row_is_an_error() -> None:
    bench = Bench("llama")
    bench.add(1, [request([5])])
    with failing(bench, torch.OutOfMemoryError("no room"), after=2):
        bench.finish()
    assert isinstance(bench.failures[1], torch.OutOfMemoryError)


def test_memory_bounds_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is room for few caches, rows wait for others to end; a single one is always let in."""
    monkeypatch.setattr("hone_worker.sampling.packed_batch.available_bytes", lambda device: 1)
    bench = Bench("llama")
    bench.add(1, [request([place + 3], seed=place, max_tokens=3) for place in range(3)])
    bench.steps(1)
    bench.add(2, [request([50], max_tokens=3)])
    bench.finish()
    assert bench.counters["decode_steps"] == 6
    assert len(bench.samples(2)) == 1


def test_caches_go_with_their_rows() -> None:
    """At once, and not at the next garbage collection: they are what fills the memory."""
    gc.collect()
    gc.disable()
    try:
        bench = Bench("llama")
        bench.add(1, [request([place + 3], seed=place, max_tokens=4 + place) for place in range(3)])
        bench.finish()
        assert not [found for found in gc.get_objects() if type(found) is Block]
    finally:
        gc.enable()


def test_damaged_weights_are_told() -> None:
    bench = Bench("llama")
    real = bench.model.logits
    bench.model.logits = lambda hidden: real(hidden) * float("nan")
    try:
        bench.add(1, [request([5])])
        bench.finish()
    finally:
        del bench.model.logits
    assert isinstance(bench.failures[1], UserMistake) and "not finite" in str(bench.failures[1])


def parse(fields: dict, prompt: Sequence[int] = (5, 6)):
    tokens = np.array(prompt, np.int32)
    return parse_requests([fields], tokens, np.array([0, len(prompt)], np.int32), 100, 32, [2, 7])


@pytest.mark.parametrize(
    "fields, prompt, words",
    [
        ({"max_tokens": 31}, [5, 6], "2 tokens and max_tokens 31 make 33; the model's limit is 32"),
        ({"max_tokens": 0}, [5], "max_tokens is 0"),
        ({"max_tokens": 1}, [], "no tokens"),
        ({"max_tokens": 1}, [100], "token 100; this model's vocabulary has 100"),
        ({"max_tokens": 1}, [-1], "token -1"),
        ({"max_tokens": 1, "temperature": -0.1}, [5], "temperature is -0.1"),
        ({"max_tokens": 1, "temperature": "NaN"}, [5], "temperature is 'NaN'"),
        ({"max_tokens": 1, "top_p": 1.5}, [5], "top_p is 1.5"),
        ({"max_tokens": 1, "min_p": True}, [5], "min_p is True"),
        ({"max_tokens": 1, "top_k": -2}, [5], "top_k is -2"),
        ({"max_tokens": 1, "top_logprobs": 101}, [5], "top_logprobs is 101"),
    ],
)
def test_bad_requests_are_the_users_mistake(fields: dict, prompt: list[int], words: str) -> None:
    with pytest.raises(UserMistake) as caught:
        parse(fields, prompt)
    assert words in caught.value.message


def test_requests_are_read() -> None:
    (found,) = parse({"max_tokens": 30, "seed": -1, "stop_ids": [3], "stop_strings": ["x"], "top_k": 4})
    assert found.prompt == [5, 6] and found.seed == 2**64 - 1 and found.stop_strings == ("x",)
    assert found.stop_ids == {2, 3, 7} and found.draw.top_k == 4
    assert parse({"max_tokens": 1, "stop_ids": [3], "ignore_eos": True})[0].stop_ids == {3}
