"""From logits to sampled tokens: temperature, filters, the draw itself, and log-probabilities.

Log-probabilities are those of the model's own distribution (temperature 1, no filter), whatever the draw used;
where a row asks for it, those at its temperature, still without filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# The draw looks for a block first and for a token within it second: about the square root of a vocabulary.
_BLOCK = 256
# Rows are handled in parts of about this many logits, so that a part stays in the processor's cache between
# passes.
_PART_ELEMENTS = 1 << 20
# Candidates looked at first for top_p; a flatter distribution gets more.
_NUCLEUS = 512


class NotFinite(Exception):
    """The model gave NaN or infinite logits. `rows` are the rows concerned."""

    def __init__(self, rows: list[int]):
        super().__init__(
            "the model's logits are not finite: its weights are damaged, or overflow in this dtype"
        )
        self.rows = rows


@dataclass(frozen=True)
class Draw:
    """How one row is drawn. `temperature` 0 is greedy; `top_p` 1, `top_k` <= 0 and `min_p` 0 are off.
    `tempered_logprobs`: log-probabilities at its temperature (at 1 where that is 0)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    tempered_logprobs: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def tempered(self) -> bool:
        return self.temperature not in (0, 1)

    @property
    def filtered(self) -> bool:
        return not self.greedy and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)


@dataclass
class Drawn:
    """Lists have one entry a row; `log_sum` is the log of the sum of the exponentiated logits, `[N]`, which
    are divided by `temperature` `[N, 1]` first where there is one."""

    tokens: list[int]
    logprobs: list[float]
    log_sum: Tensor
    temperature: Tensor | None = None


class Drawer:
    """Keeps its working memory from step to step: fresh pages for the logits cost more than arithmetic."""

    def __init__(self, device: torch.device):
        self._device = device
        self._wide = torch.float32 if device.type == "mps" else torch.float64
        self._memory = torch.empty(0, device=device)

    def draw(self, logits: Tensor, draws: Sequence[Draw], uniforms: np.ndarray) -> Drawn:
        """`logits` `[N, V]`; `uniforms` in [0, 1), `[N]`. Raises NotFinite."""
        count, vocabulary = logits.shape
        part = max(1, min(count, _PART_ELEMENTS // vocabulary))
        if self._device.type != "cpu":
            part = count
        picks = torch.from_numpy(uniforms).to(device=self._device, dtype=self._wide)[:, None]
        tokens = torch.empty(count, dtype=torch.long, device=self._device)
        log_sum = torch.empty(count, dtype=torch.float32, device=self._device)
        for begin in range(0, count, part):
            rows = slice(begin, min(begin + part, count))
            self._draw_part(logits[rows], draws[rows], picks[rows], tokens[rows], log_sum[rows])
        # Before the tokens are used: one drawn from NaN may lie anywhere.
        if not torch.isfinite(log_sum).all():
            raise NotFinite((~torch.isfinite(log_sum)).nonzero()[:, 0].tolist())
        chosen = logits.gather(1, tokens[:, None])[:, 0].float()
        temperature = None
        tempered = [row for row, draw in enumerate(draws) if draw.tempered and draw.tempered_logprobs]
        if tempered:
            temperature = torch.ones(count, 1, device=self._device)
            temperature[tempered, 0] = torch.tensor(
                [draws[row].temperature for row in tempered], device=self._device
            )
            log_sum[tempered] = (logits[tempered].float() / temperature[tempered]).logsumexp(-1)
            chosen = chosen / temperature[:, 0]
        return Drawn(tokens.tolist(), (chosen - log_sum).tolist(), log_sum, temperature)

    def _draw_part(
        self, logits: Tensor, draws: Sequence[Draw], picks: Tensor, tokens: Tensor, log_sum: Tensor
    ) -> None:
        count, vocabulary = logits.shape
        padded, weights = self._scratch(count, vocabulary)
        weights.copy_(logits)
        peak = weights.amax(-1, keepdim=True)
        greedy = [row for row, draw in enumerate(draws) if draw.greedy]
        if greedy:
            tokens[greedy] = weights[greedy].argmax(-1) if len(greedy) < count else weights.argmax(-1)
        weights.sub_(peak).exp_()
        mass = padded.sum(-1)
        log_sum.copy_((peak[:, 0] + mass.sum(-1, dtype=self._wide).log()).float())
        if len(greedy) == count:
            return

        changed = [row for row, draw in enumerate(draws) if draw.tempered or draw.filtered]
        if changed:
            some = len(changed) < count
            chosen = weights[changed] if some else weights
            _reweigh(
                chosen,
                logits[changed] if some else logits,
                peak[changed] if some else peak,
                [draws[r] for r in changed],
            )
            if some:
                weights[changed] = chosen
            mass = padded.sum(-1)
        block, rest = _invert(mass.to(self._wide), picks, scale=True)
        inner = padded[torch.arange(count, device=self._device), block[:, 0]].to(self._wide)
        drawn = block * _BLOCK + _invert(inner, rest, scale=False)[0]
        keep = torch.tensor([not draw.greedy for draw in draws], device=self._device)
        torch.where(keep, drawn[:, 0], tokens, out=tokens)

    def _scratch(self, count: int, vocabulary: int) -> tuple[Tensor, Tensor]:
        """Two views of the working memory: `[count, blocks, block]`, zero beyond the vocabulary, and `[count,
        V]`."""
        blocks = -(-vocabulary // _BLOCK)
        size = count * blocks * _BLOCK
        if self._memory.numel() < size:
            self._memory = torch.empty(size, device=self._device)
        flat = self._memory[:size].view(count, blocks * _BLOCK)
        flat[:, vocabulary:] = 0
        return flat.view(count, blocks, _BLOCK), flat[:, :vocabulary]


def _reweigh(weights: Tensor, logits: Tensor, peak: Tensor, draws: Sequence[Draw]) -> None:
    """Turns weights at temperature 1 without filters, `[n, V]`, into those of the draws, in place."""
    device = weights.device
    if any(draw.tempered for draw in draws):
        temperature = torch.tensor([draw.temperature or 1.0 for draw in draws], device=device)
        weights.copy_(logits).sub_(peak).div_(temperature[:, None]).exp_()
    if any(draw.filtered for draw in draws):
        weights.masked_fill_(weights < _cuts(weights, draws)[:, None], 0)


def draw_many(logits: Tensor, temperature: float, uniforms: np.ndarray) -> tuple[Tensor, Tensor]:
    """`[N, K]` tokens, drawn independently at the temperature without filters, and their log-probabilities at
    temperature 1. `uniforms` `[N, K]`."""
    logits = logits.float()
    if temperature == 0:
        tokens = logits.argmax(-1, keepdim=True).expand(-1, uniforms.shape[1])
    else:
        wide = torch.float32 if logits.device.type == "mps" else torch.float64
        picks = torch.from_numpy(uniforms).to(device=logits.device, dtype=wide)
        weights = ((logits - logits.amax(-1, keepdim=True)).to(wide) / temperature).exp_()
        tokens = _invert(weights, picks, scale=True)[0]
    return tokens, logits.gather(1, tokens) - logits.logsumexp(-1, keepdim=True)


def _invert(mass: Tensor, picks: Tensor, scale: bool) -> tuple[Tensor, Tensor]:
    """The first index at which the running sum of `mass` `[n, m]` exceeds each pick `[n, k]`, and what is left
    of the pick there. With `scale`, picks are fractions of the total. Never an index without mass."""
    running = mass.cumsum(-1)
    total = running[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))
    picks = torch.minimum(picks * total if scale else picks, below).clamp_(min=0)
    index = torch.searchsorted(running, picks, right=True).clamp_(max=mass.shape[1] - 1)
    before = torch.where(index > 0, running.gather(1, (index - 1).clamp_(min=0)), torch.zeros_like(picks))
    return index, picks - before


def _cuts(weights: Tensor, draws: Sequence[Draw]) -> Tensor:
    """`[n]`: the least weight that each row's filters keep. top_k comes first, top_p keeps the fewest of what
    top_k left whose share reaches p, min_p is relative to the likeliest token, whose weight is 1."""
    count, vocabulary = weights.shape
    device = weights.device
    cuts = torch.tensor([draw.min_p for draw in draws], device=device)
    sorting = [row for row, draw in enumerate(draws) if draw.top_k > 0 or draw.top_p < 1]
    if not sorting:
        return cuts
    chosen = weights[sorting] if len(sorting) < count else weights
    limits = [min(draws[row].top_k, vocabulary) if draws[row].top_k > 0 else vocabulary for row in sorting]
    width = min(vocabulary, max(_NUCLEUS if limit == vocabulary else limit for limit in limits))
    limit = torch.tensor(limits, device=device)[:, None]
    share = torch.tensor([draws[row].top_p for row in sorting], device=device)[:, None]
    totals = chosen.sum(-1, keepdim=True)
    while True:
        values = chosen.topk(width, dim=-1).values
        allowed = torch.arange(width, device=device) < limit
        values = torch.where(allowed, values, torch.zeros_like(values))
        running = values.cumsum(-1)
        totals = torch.where(limit <= width, running[:, -1:], totals)
        # Is the last candidate needed, there might be more behind it.
        if width == vocabulary or bool(
            ((running[:, -1:] >= share * totals) & (share < 1) | (limit <= width)).all()
        ):
            break
        width = min(vocabulary, width * 8)
    kept = allowed & ((running - values < share * totals) | (share >= 1))
    kept[:, 0] = True
    least = torch.where(kept, values, torch.full_like(values, torch.inf)).amin(-1)
    cuts[sorting] = torch.maximum(cuts[sorting], least)
    return cuts


def most_likely(logits: Tensor, log_sum: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` likeliest tokens of each row, in order, and their log-probabilities: `[N, count]` each."""
    values, tokens = logits.float().topk(min(count, logits.shape[-1]), dim=-1)
    return tokens, values - log_sum[:, None]
