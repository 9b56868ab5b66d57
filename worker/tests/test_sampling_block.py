"""Tokens that are drawn before the host looks at them are those that it would have drawn one by one."""

import pytest
import torch
from hone_worker.sampling.sampler import Sampler
from sampling_helpers import Bench, request
from torch.utils._python_dispatch import TorchDispatchMode


def mixed() -> list:
    return [
        request([5, 6, 7], seed=1, max_tokens=20),
        request([5, 6, 7], seed=2, max_tokens=3),
        request([9], seed=3, max_tokens=11, temperature=0.7),
        request([9, 8], seed=4, max_tokens=17, temperature=0.0),
        request([4, 4], seed=5, max_tokens=30, temperature=1.3, top_k=5),
        request([4, 4, 4], seed=6, max_tokens=30, top_p=0.8),
        request([7, 7], seed=7, max_tokens=40, stop_ids=range(60, 200)),
        request([3], seed=8, max_tokens=16, stop_strings=["a", "e"]),
    ]


def run(name: str, block: int, stream: bool = False) -> Bench:
    bench = Bench(name, max_rows=6, block=block)  # rows wait and join between blocks
    bench.add(1, mixed(), stream=stream)
    bench.steps(2)
    bench.add(2, [request([6, 5], seed=9, max_tokens=9, top_logprobs=4), request([2], seed=10, max_tokens=12, temperature=0.7, top_logprobs=2)])
    bench.finish()
    assert not bench.failures
    return bench


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt-oss", "bloom", "mamba"])
@pytest.mark.parametrize("block", [4, 16])
def test_blocks_give_the_same_samples(name: str, block: int):
    one, several = run(name, 1), run(name, block)
    for job in (1, 2):
        for (header, arrays), (expected_header, expected) in zip(several.samples(job), one.samples(job), strict=True):
            assert header == expected_header
            assert arrays["tokens"].tolist() == expected["tokens"].tolist()
            torch.testing.assert_close(torch.tensor(arrays["logprobs"]), torch.tensor(expected["logprobs"]), rtol=1e-4, atol=1e-4)
            if "top_tokens" in expected:
                assert arrays["top_tokens"].tolist() == expected["top_tokens"].tolist()
                torch.testing.assert_close(arrays["top_logprobs"], expected["top_logprobs"], rtol=1e-4, atol=1e-4)
    assert several.counters["sampled_tokens"] == one.counters["sampled_tokens"]


def test_streams_are_in_order_and_end_with_their_row():
    bench = run("llama", 8, stream=True)
    streamed: dict[int, list[int]] = {}
    for header, arrays in bench.events:
        if header["id"] == 1 and header.get("event") == "token":
            for place, token in zip(arrays["requests"], arrays["tokens"]):
                streamed.setdefault(int(place), []).append(int(token))
    for place, (_, arrays) in enumerate(bench.samples(1)):
        assert streamed[place] == arrays["tokens"].tolist()


def test_a_row_that_is_not_finite_ends_only_its_message(monkeypatch):
    bench = Bench("llama", block=8)
    bench.add(1, [request([5], seed=1, max_tokens=20)])
    bench.add(2, [request([6], seed=2, max_tokens=20)])
    bench.steps(1)
    real = bench.model.logits

    def damaged(hidden):
        logits = real(hidden).clone()
        logits[1] = torch.nan
        return logits

    bench.model.logits = damaged
    bench.steps(1)
    del bench.model.logits
    bench.finish()
    assert list(bench.failures) == [2] and len(bench.samples(1)[0][1]["tokens"]) == 20


def test_blocks_stay_within_the_model_and_wait_once(monkeypatch):
    counts = []
    draw_block = Sampler._draw_block
    monkeypatch.setattr(Sampler, "_draw_block", lambda self, queue, count: (counts.append(count), draw_block(self, queue, count)))
    bench = Bench("llama", block=16)
    room = bench.model.max_length
    bench.add(1, [request([5] * (room - 20), seed=1, max_tokens=20)])
    bench.finish()
    assert sum(counts) <= 19 and max(counts) > 4 and len(bench.samples(1)[0][1]["tokens"]) == 20


class Waits(TorchDispatchMode):
    """Counts the numbers that the host reads from tensors, and those it sends. For each of them it would wait for a GPU."""

    def __init__(self):
        super().__init__()
        self.reads = self.sends = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation._schema.name
        self.reads += name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")
        self.sends += name == "aten::lift_fresh"  # torch.tensor, or a list as an index
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "options",
    [
        [{}],
        [{"temperature": 0.7}],
        [{"temperature": 0.0}],
        [{"min_p": 0.1}],
        [{"top_k": 5}, {"top_p": 0.8}, {"top_k": 7, "top_p": 0.9}, {}],
        [{"top_logprobs": 3}, {}, {"top_logprobs": 1, "tempered_logprobs": True, "temperature": 0.7}, {}],
        [{}, {"temperature": 0.0}, {"temperature": 0.7, "min_p": 0.1}, {"temperature": 1.3, "tempered_logprobs": True}],
    ],
)
def test_the_host_waits_for_nothing_within_a_block(options):
    bench = Bench("llama", block=8)
    bench.sampler._drawer._asks = False  # as on a device
    bench.add(1, [request([5] * (3 + row), seed=row, max_tokens=40, **options[row % len(options)]) for row in range(4)])
    bench.steps(2)
    with Waits() as waits:
        bench.steps(1)
    assert waits.reads == 0 and bench.counters["sampled_tokens"] == 4 * (1 + 8 + 8)
    assert waits.sends <= 3  # at its begin: tokens, positions, random numbers
