"""The draw: exact probabilities, exact supports, raw log-probabilities, and random numbers without state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hone_worker.sampling.draw import Draw, Drawer, NotFinite, most_likely, uniforms
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

CPU = torch.device("cpu")


def logits_row(vocabulary: int, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


def reference_probabilities(logits: torch.Tensor, draw: Draw) -> torch.Tensor:
    """transformers' own processors, in the order in which it applies them."""
    scores = logits[None].double()
    scores = TemperatureLogitsWarper(draw.temperature)(None, scores) if draw.temperature != 1 else scores
    scores = TopKLogitsWarper(draw.top_k)(None, scores) if draw.top_k > 0 else scores
    scores = TopPLogitsWarper(draw.top_p)(None, scores) if draw.top_p < 1 else scores
    scores = MinPLogitsWarper(draw.min_p)(None, scores) if draw.min_p > 0 else scores
    return scores.softmax(-1)[0]


DRAWS = [
    Draw(),
    Draw(temperature=0.5),
    Draw(temperature=1.7),
    Draw(top_k=1),
    Draw(top_k=5),
    Draw(top_p=0.8),
    Draw(top_p=0.999),
    Draw(top_p=0.0001),
    Draw(min_p=0.1),
    Draw(temperature=0.7, top_k=40, top_p=0.9, min_p=0.02),
    Draw(temperature=3.0, top_p=0.97),
    Draw(top_k=100000),
]


@pytest.mark.parametrize("vocabulary", [3, 256, 300, 6000])
@pytest.mark.parametrize("draw", DRAWS, ids=str)
def test_every_slice_of_the_unit_interval_gives_its_token(draw: Draw, vocabulary: int) -> None:
    """Evenly spaced picks invert the distribution: the share of each token is its probability."""
    logits = logits_row(vocabulary)
    expected = reference_probabilities(logits, draw)
    count = 20000 if vocabulary <= 300 else 400
    picks = (np.arange(count) + 0.5) / count
    drawer = Drawer(CPU)
    tokens: list[int] = []
    for part in np.split(picks, 4):
        drawn = drawer.draw(logits.expand(len(part), -1), [draw] * len(part), part)
        tokens += drawn.tokens
    assert set(tokens) <= set(expected.nonzero()[:, 0].tolist())
    found = torch.bincount(torch.tensor(tokens), minlength=vocabulary)
    assert (found / count - expected).abs().max() < 1.01 / count + 1e-6
    # The draws come in the order of the tokens, so no mass is skipped or counted twice.
    assert tokens == sorted(tokens)


def test_random_draws_follow_the_distribution() -> None:
    """Chi-square at a fixed seed, rare tokens pooled."""
    logits = logits_row(300)
    expected = logits.double().softmax(-1).numpy()
    count = 20000
    picks = uniforms(np.arange(count, dtype=np.uint64), np.zeros(count, np.uint64))
    tokens = Drawer(CPU).draw(logits.expand(count, -1), [Draw()] * count, picks).tokens
    found = np.bincount(tokens, minlength=300)
    common = expected * count >= 5
    observed = np.append(found[common], found[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum()) * count
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    freedom = len(wanted) - 1
    assert abs(statistic - freedom) < 4 * np.sqrt(2 * freedom)


def test_rows_of_every_kind_in_one_batch() -> None:
    """Each row is drawn as if it were alone, and its log-probability is the raw one, also in bf16."""
    draws = [*DRAWS, Draw(temperature=0), Draw(temperature=0, top_k=3)] * 3
    logits = torch.stack([logits_row(5000, seed) for seed in range(len(draws))]).bfloat16()
    picks = uniforms(np.full(len(draws), 11, np.uint64), np.arange(len(draws)))
    drawer = Drawer(CPU)
    drawn = drawer.draw(logits, draws, picks)
    raw = logits.float().log_softmax(-1)
    for row, draw in enumerate(draws):
        alone = Drawer(CPU).draw(logits[row : row + 1], [draw], picks[row : row + 1])
        assert alone.tokens == [drawn.tokens[row]]
        assert drawn.logprobs[row] == pytest.approx(float(raw[row, drawn.tokens[row]]), abs=1e-5)
        if draw.greedy:
            assert drawn.tokens[row] == int(logits[row].argmax())
    ids, values = most_likely(logits, drawn.log_sum, 4)
    assert torch.equal(ids, logits.float().topk(4).indices)
    torch.testing.assert_close(values, raw.gather(1, ids), atol=1e-5, rtol=0)


@pytest.mark.parametrize("pick", [0.0, 1.0 - 2.0**-53])
def test_impossible_tokens_are_never_drawn(pick: float) -> None:
    """First and last tokens, whole blocks and all but one token without mass."""
    logits = torch.full((1, 1000), -1e4)
    logits[0, 600] = 3.0
    assert Drawer(CPU).draw(logits, [Draw()], np.array([pick])).tokens == [600]
    logits[0, 300] = 3.0
    assert Drawer(CPU).draw(logits, [Draw()], np.array([pick])).tokens == [300 if pick == 0 else 600]


def test_memory_is_clean_between_vocabularies() -> None:
    """The working memory of a larger vocabulary leaves no mass behind the end of a smaller one."""
    drawer = Drawer(CPU)
    drawer.draw(torch.zeros(4, 1024), [Draw()] * 4, np.full(4, 0.5))
    assert drawer.draw(torch.zeros(4, 300), [Draw()] * 4, np.full(4, 1 - 2.0**-53)).tokens == [299] * 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_an_error(bad: float) -> None:
    logits = torch.zeros(3, 10)
    logits[1, 4] = bad
    with pytest.raises(NotFinite) as caught:
        Drawer(CPU).draw(logits, [Draw(), Draw(temperature=0), Draw()], np.full(3, 0.5))
    assert caught.value.rows == [1]


def test_uniforms_depend_on_seed_and_position_alone() -> None:
    seeds = np.array([0, 1, 2**64 - 1, 12345], np.uint64)
    grid = np.stack([uniforms(seeds, np.full(4, position)) for position in range(1000)])
    assert ((0 <= grid) & (grid < 1)).all()
    assert len(np.unique(grid)) == grid.size
    assert abs(grid.mean() - 0.5) < 0.02
    assert np.abs(np.corrcoef(grid.T) - np.eye(4)).max() < 0.1
    assert np.abs(np.corrcoef(grid[:-1, 0], grid[1:, 0])[0, 1]) < 0.1
    assert uniforms(seeds[2:3], np.array([7]))[0] == grid[7, 2]


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("draw", [Draw(top_k=1), Draw(top_k=3), Draw(top_p=0.3), Draw(top_k=7, top_p=0.6), Draw(top_k=4, min_p=0.9)])
def test_of_equal_logits_the_first_ids_are_kept_and_no_more_than_asked(draw: Draw, asks: bool) -> None:
    """Logits in bfloat16 are often equal. As many are kept as the filters of transformers keep when nothing is equal."""
    torch.manual_seed(3)
    logits = (torch.randn(16, 300) * 2).round().float()  # about ten different values
    drawer = Drawer(logits.device)
    drawer._asks = asks
    drawn: list[set[int]] = [set() for _ in range(16)]
    for pick in np.linspace(0, 1, 200, endpoint=False):
        for row, token in enumerate(drawer.draw(logits, [draw] * 16, np.full(16, pick)).tokens):
            drawn[row].add(token)
    distinct = logits - torch.arange(300) * 1e-6  # the same order, nothing equal
    for row in range(16):
        assert drawn[row] == set(reference_probabilities(distinct[row], draw).nonzero()[:, 0].tolist())
