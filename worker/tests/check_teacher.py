"""Losses against a teacher by autograd on a plain padded model with PEFT, to compare the engine's steps with.

    python check_teacher.py < {"base", "before", "rate", "sequences", "trained", "teacher", "ids", "likely",
                               "cases": [{"mode", "beta"?, "tail"?, "after"}]}

For each trained token, `teacher` is the teacher's log-probability of the sampled token, `ids` and `likely` are the
teacher's most likely tokens and their log-probabilities. The loss is the mean over tokens. against_autograd.py says what
is printed.
"""

from __future__ import annotations

import torch
from against_autograd import answer
from torch import Tensor
from torch.nn.functional import kl_div


def distributions(model: torch.nn.Module, request: dict) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the vocabulary at each trained token, and the sampled tokens."""
    rows, sampled = [], []
    for sequence, trained in zip(request["sequences"], request["trained"], strict=True):
        flags = torch.tensor(trained, dtype=torch.bool)
        if not flags.any():
            continue
        tokens = torch.tensor([sequence])
        rows.append(model(tokens).logits[0, :-1].log_softmax(-1)[flags])
        sampled.append(tokens[0, 1:][flags])
    return torch.cat(rows), torch.cat(sampled)


def completed(logprobs: Tensor, tail: bool) -> Tensor:
    if not tail:
        return logprobs.log_softmax(-1)
    rest = (1 - logprobs.exp().sum(-1, keepdim=True)).log()
    return torch.cat([logprobs, rest], -1)


def jsd(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    kl = lambda p, q: kl_div(q, p, log_target=True, reduction="none").sum(-1)  # noqa: E731
    if beta in (0, 1):
        return kl(student, teacher) if beta else kl(teacher, student)
    middle = ((1 - beta) * student.exp() + beta * teacher.exp()).log()
    return beta * kl(teacher, middle) + (1 - beta) * kl(student, middle)


def loss_of(case: dict, request: dict, every: Tensor, sampled: Tensor) -> Tensor:
    mode = case["mode"]
    own = every.gather(1, sampled[:, None])[:, 0]
    teacher = torch.tensor(request["teacher"])
    d = own - teacher
    if mode == "k2":
        return (d.square() / 2).mean()
    if mode == "k3":
        return ((-d).exp() - 1 + d).mean()
    if mode == "abs":
        return d.abs().mean()
    ids, likely = torch.tensor(request["ids"]), torch.tensor(request["likely"])
    student = every.gather(1, ids)
    if mode == "forward_kl_topk":
        return (likely.exp() * (likely - student)).sum(-1).clamp(min=0).mean()
    if mode == "cross_entropy_topk":
        return -(likely.softmax(-1) * student).sum(-1).mean()
    if mode == "reverse_kl_topk":
        return jsd(completed(student, False), completed(likely, False), 1).mean()
    # One token at a time: a sampled token that is among the likely ones counts once.
    values = []
    for at, token in enumerate(sampled):
        support, theirs = ids[at], likely[at]
        if case["beta"] == 1:
            support, theirs = token[None], teacher[at][None]
        elif case["beta"] > 0 and token not in support:
            support, theirs = torch.cat([support, token[None]]), torch.cat([theirs, teacher[at][None]])
        compared = completed(every[at, support], case["tail"]), completed(theirs, case["tail"])
        values.append(jsd(*compared, case["beta"]))
    return torch.stack(values).mean()


if __name__ == "__main__":
    answer(lambda model, request, case: loss_of(case, request, *distributions(model, request)))
