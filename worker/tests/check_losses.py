"""Policy losses by autograd on a plain padded model with PEFT, to compare the engine's steps with.

    python check_losses.py < {"base", "before", "rate", "sequences", "trained", "advantages", "old", "reference",
                              "weights", "cases": [{"loss", "after", "marks"?, "kl"?, "entropy"?, "high_entropy"?}]}

against_autograd.py says what is printed.
"""

from __future__ import annotations

import math

import torch
from against_autograd import answer
from torch import Tensor

LOW, HIGH, DUAL, BETA, DRIFT, TAU, KL_COV = 0.8, 1.2, 1.5, 0.05, 0.2, (1.0, 1.05), 0.1


def outputs(model: torch.nn.Module, request: dict) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probabilities and entropies of the trained tokens, a tensor a sequence."""
    longest = max(map(len, request["sequences"]))
    tokens = torch.zeros(len(request["sequences"]), longest, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, sequence in enumerate(request["sequences"]):
        tokens[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
    distribution = model(tokens, attention_mask=mask).logits.log_softmax(-1)
    logprobs = distribution[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]
    entropy = -(distribution.exp() * distribution).sum(-1)[:, :-1]
    flags = [torch.tensor(trained, dtype=torch.bool) for trained in request["trained"]]
    pick = lambda values: [values[row, : len(flag)][flag] for row, flag in enumerate(flags)]  # noqa: E731
    return pick(logprobs), pick(entropy)


def token_losses(name: str, lp: Tensor, old: Tensor, a: Tensor, marks: Tensor) -> Tensor:
    """The losses of one sequence's tokens."""
    d = lp - old
    ratio = d.exp()
    clipped = torch.maximum(-ratio * a, -ratio.clamp(LOW, HIGH) * a)
    if name == "ppo":
        return torch.where(a < 0, torch.minimum(-DUAL * a, clipped), clipped)
    if name == "importance_sampling":
        return -ratio * a
    if name == "cispo":
        return -ratio.clamp(LOW, HIGH).detach() * a * lp
    if name == "dro":
        return -(lp * a - BETA / 2 * d.square())
    if name in ("cross_entropy", "gpg"):
        return -lp * a
    if name in ("gspo", "gspo_sequence"):
        mean = d.mean() if name == "gspo_sequence" else lp - lp.detach() + d.mean().detach()
        s = mean.exp().expand(len(lp))
        return torch.maximum(-s * a, -s.clamp(LOW, HIGH) * a)
    if name == "gmpo":
        sign = a.sign()
        x = sign * torch.minimum(sign * d, sign * d.clamp(LOW - 1, HIGH - 1))
        return (-a.mean() * x.mean().exp()).expand(len(lp))
    if name == "cpgd":
        high, low = torch.minimum(lp, old + math.log(HIGH)), torch.maximum(lp, old + math.log(LOW))
        return -torch.where(a > 0, high, low) * a + DRIFT * (ratio - 1 - d)
    if name == "sapo":
        tau = torch.where(a > 0, *TAU)
        return -4 / tau * torch.sigmoid(tau * (ratio - 1)) * a
    if name == "clip_cov":
        return clipped * (1 - marks)
    if name == "kl_cov":
        return -ratio * a + KL_COV * marks * d.abs()
    raise ValueError(name)


KL = {
    "k1": lambda d: d,
    "k2": lambda d: d.square() / 2,
    "k3": lambda d: (-d).exp() - 1 + d,
    "abs": lambda d: d.abs(),
}


def total(case: dict, rows: list[tuple[Tensor, ...]]) -> Tensor:
    """The case's loss over the batch; `rows` are lp, entropy, old, reference, advantages, weights and marks."""
    name, by_row = case["loss"], case["loss"] in ("gspo", "gspo_sequence", "gmpo", "sapo")
    rows = [row for row in rows if len(row[0])]
    kept = []
    for row in rows:
        share = case.get("high_entropy")
        count = len(row[0]) if share is None else max(1, int(len(row[0]) * share))
        kept.append(row[1].detach().topk(count).indices.sort().values)
    policy_tokens, tokens = sum(map(len, kept)), sum(len(row[0]) for row in rows)
    loss = torch.zeros(())
    for (lp, entropy, old, reference, advantages, weights, marks), keep in zip(rows, kept, strict=True):
        at = lambda n, of: 1 / (n * len(rows)) if by_row else 1 / of  # noqa: E731
        w = weights[keep]
        if name == "gmpo":
            w = w.log().mean().exp()
        own = token_losses(name, lp[keep], old[keep], advantages[keep], marks[keep]) * w
        loss = loss + own.sum() * at(len(keep), policy_tokens)
        weight = at(len(lp), tokens)
        if "kl" in case:
            loss = loss + 0.3 * weight * KL[case["kl"]](lp - reference).sum()
        loss = loss - case.get("entropy", 0.0) * weight * entropy.sum()
    return loss


def loss_of(model: torch.nn.Module, request: dict, case: dict) -> Tensor:
    counts = [sum(trained) for trained in request["trained"]]
    split = lambda values: torch.tensor(values, dtype=torch.float32).split(counts)  # noqa: E731
    given = [split(request[name]) for name in ("old", "reference", "advantages", "weights")]
    marks = split(case.get("marks", [0] * sum(counts)))
    return total(case, list(zip(*outputs(model, request), *given, marks, strict=True)))


if __name__ == "__main__":
    answer(loss_of)
