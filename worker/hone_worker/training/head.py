"""From hidden states to log-probabilities and entropies, a chunk of logits at a time.

If the output layer is frozen, the forward keeps the derivatives of each position's outputs by its hidden
state, `[D]` per position, instead of logits, and the backward scales them. With logits l = W h, p =
softmax(l), target t and entropy H: dlogp_t/dh = W'(e_t - p), dH/dh = -W'(p (log p + H)).
"""

import torch
from torch import Tensor


def token_outputs(
    model, hidden: Tensor, targets: Tensor, names: list[str], chunk: int, trained_head: bool
) -> Tensor:
    """hidden `[N,D]`, targets `[N]` -> fp32 `[len(names), N]`. Names are `logprobs`, `entropy` and, without a
    gradient, `concentration`. `model` is a LanguageModel; with `trained_head` its output layer gets
    gradients."""
    if not torch.is_grad_enabled():
        parts = [
            outputs_of_logits(model.logits(hidden[i : i + chunk]), targets[i : i + chunk], names)
            for i in range(0, len(targets), chunk)
        ]
        return torch.cat(parts, 1) if parts else torch.zeros(len(names), 0, device=hidden.device)
    if trained_head:
        if uses_library(model, hidden.device.type) and names == ["logprobs"]:
            return _logprobs_by_library(model, hidden, targets, chunk)
        return _TrainedHead.apply(hidden, torch.zeros((), requires_grad=True), model, targets, names, chunk)
    return _FrozenHead.apply(hidden, model, targets, names, chunk)


def uses_library(model, device: str) -> bool:
    """Whether torch's chunked cross-entropy (2.15) computes the log-probabilities of an output layer that is trained itself: then both
    compute the logits twice. A frozen layer's slopes need them only once (`_FrozenHead`)."""
    known = hasattr(torch.nn, "LinearCrossEntropyOptions")
    return known and device == "cuda" and model.plain_head and model.head_group.trained_in_place


def _logprobs_by_library(model, hidden: Tensor, targets: Tensor, chunk: int) -> Tensor:
    head, options = model.head, torch.nn.LinearCrossEntropyOptions(batch_chunk_size=chunk, chunking_method=None)
    loss = torch.nn.functional.linear_cross_entropy(
        hidden, head.weight, targets, linear_bias=head.bias, reduction="none", options=options
    )
    return -loss.float()[None]


def outputs_of_logits(logits: Tensor, targets: Tensor, names: list[str]) -> Tensor:
    """`[len(names), n]` from logits `[n,V]`, differentiable by autograd."""
    logits = logits.float()
    total = torch.logsumexp(logits, -1)
    found = {"logprobs": logits.gather(1, targets[:, None])[:, 0] - total}
    if "entropy" in names:
        found["entropy"] = total - (torch.exp(logits - total[:, None]) * logits).sum(-1)
    if "concentration" in names:
        found["concentration"] = torch.exp(2 * (logits - total[:, None])).sum(-1)
    return torch.stack([found[name] for name in names])


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, model, targets: Tensor, names: list[str], chunk: int) -> Tensor:
        outputs = torch.empty(len(names), len(targets), device=hidden.device)
        slopes = [torch.empty_like(hidden) for _ in names]
        differentiate = _plain_slopes if model.plain_head else _slopes_by_autograd
        for i in range(0, len(targets), chunk):
            part = slice(i, i + chunk)
            outputs[:, part], found = differentiate(model, hidden[part], targets[part], names)
            for slope, value in zip(slopes, found):
                slope[part] = value
        ctx.save_for_backward(*slopes)
        return outputs

    @staticmethod
    def backward(ctx, gradient: Tensor):
        parts = [slope * g[:, None].to(slope.dtype) for slope, g in zip(ctx.saved_tensors, gradient)]
        return sum(parts[1:], parts[0]), None, None, None, None


def _plain_slopes(model, hidden: Tensor, targets: Tensor, names: list[str]) -> tuple[Tensor, list[Tensor]]:
    weight = model.head.weight
    logits = model.logits(hidden).float()
    logits -= logits.amax(-1, keepdim=True)
    of_target = logits.gather(1, targets[:, None])[:, 0]
    entropy = "entropy" in names
    p = torch.exp(logits) if entropy else logits.exp_()
    total = p.sum(-1)
    values = {"logprobs": of_target - total.log()}
    mean = (p.to(hidden.dtype) @ weight).float() / total[:, None]
    slopes = {"logprobs": (weight[targets].float() - mean).to(hidden.dtype)}
    if entropy:
        p /= total[:, None]
        logits -= total.log()[:, None]
        values["entropy"] = -torch.linalg.vecdot(p, logits)
        p *= logits.add_(values["entropy"][:, None])
        slopes["entropy"] = -(p.to(hidden.dtype) @ weight)
    return torch.stack([values[name] for name in names]), [slopes[name] for name in names]


def _slopes_by_autograd(
    model, hidden: Tensor, targets: Tensor, names: list[str]
) -> tuple[Tensor, list[Tensor]]:
    """For output layers with a soft-cap, a scale or an unknown form."""
    with torch.enable_grad():
        x = hidden.detach().requires_grad_()
        outputs = outputs_of_logits(model.logits(x), targets, names)
        slopes = [
            torch.autograd.grad(row.sum(), x, retain_graph=i + 1 < len(names))[0]
            for i, row in enumerate(outputs)
        ]
    return outputs.detach(), slopes


class _TrainedHead(torch.autograd.Function):
    """A trained output layer needs the logits for its gradient: the backward recomputes each chunk."""

    @staticmethod
    def forward(
        ctx, hidden: Tensor, anchor: Tensor, model, targets: Tensor, names: list[str], chunk: int
    ) -> Tensor:
        ctx.save_for_backward(hidden, targets)
        ctx.model, ctx.names, ctx.chunk = model, names, chunk
        with torch.no_grad():
            return token_outputs(model, hidden, targets, names, chunk, False)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        hidden, targets = ctx.saved_tensors
        dh = torch.zeros_like(hidden)
        # Often only a reply's places have a gradient.
        chosen = (gradient != 0).any(0)
        # On the meta device (memory_plan.py) all of them.
        places = torch.arange(len(targets), device="meta") if chosen.is_meta else torch.nonzero(chosen)[:, 0]
        for part in places.split(ctx.chunk) if len(places) > 0 else ():
            with torch.enable_grad():
                x = hidden[part].detach().requires_grad_()
                outputs = outputs_of_logits(ctx.model.logits(x), targets[part], ctx.names)
            outputs.backward(gradient[:, part])
            dh[part] = x.grad
        return dh, None, None, None, None, None
