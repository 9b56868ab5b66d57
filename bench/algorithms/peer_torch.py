"""Losses in torch eager as trainers write them: padded [sequences, tokens] matrices, a mask, forward and backward, and
the figures that are reported. Reads a loss's name a line, answers with a line of JSON."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

folder, repeats = Path(sys.argv[1]), int(sys.argv[2])
lengths = np.fromfile(folder / "lengths.i32", np.int32)
columns = torch.arange(int(lengths.max()))
valid = columns[None] < torch.from_numpy(lengths)[:, None]
mask = valid.float()
counts = mask.sum(-1)
N = int(lengths.sum())


def read(name: str) -> torch.Tensor:
    padded = torch.zeros(valid.shape)
    padded[valid] = torch.from_numpy(np.fromfile(folder / f"{name}.f32", np.float32))
    return padded


lp, old, ref, adv, ent, val, ret, vold = map(read, ("lp", "old", "ref", "adv", "ent", "val", "ret", "vold"))
LOW, HIGH = 0.8, 1.2


def token_mean(x):
    return (x * mask).sum() / mask.sum()


def row_mean(x):
    return (x * mask).sum(-1) / counts


def clamped(d):
    return torch.clamp(d, -20.0, 20.0)


def figures(d, clipped=None):
    with torch.no_grad():
        found = {"kl": -token_mean(d).item()}
        if clipped is not None:
            found["clipped"] = token_mean(clipped.float()).item()
        return found


def ppo_tokens(d, dual=None):
    ratio = torch.exp(d)
    first, second = -adv * ratio, -adv * torch.clamp(ratio, LOW, HIGH)
    loss = torch.maximum(first, second)
    if dual is not None:
        loss = torch.where(adv < 0, torch.minimum(-adv * dual, loss), loss)
    return loss, second > first


def importance_sampling(lp):
    d = clamped(lp - old)
    figures(d)
    return token_mean(-torch.exp(d) * adv)


def ppo(lp):
    d = clamped(lp - old)
    loss, clipped = ppo_tokens(d)
    figures(d, clipped)
    return token_mean(loss)


def ppo_dual_clip(lp):
    d = clamped(lp - old)
    loss, clipped = ppo_tokens(d, 3.0)
    figures(d, clipped)
    return token_mean(loss)


def ppo_kl_entropy(lp, ent):
    x = clamped(ref - lp)
    kl = torch.clamp(torch.exp(x) - x - 1, -10.0, 10.0)
    return ppo(lp) + 0.1 * token_mean(kl) - 0.01 * token_mean(ent)


def cispo(lp):
    d = clamped(lp - old)
    ratio = torch.exp(d)
    weight = torch.clamp(ratio, LOW, HIGH).detach()
    figures(d, ratio != weight)
    return token_mean(-weight * adv * lp)


def dro(lp):
    d = lp - old
    figures(d)
    return token_mean(0.025 * d.square() - lp * adv)


def gpg(lp):
    figures(lp - old)
    return token_mean(-lp * adv)


def gspo(lp):
    d = lp - old
    s = torch.clamp(lp - lp.detach() + row_mean(d)[:, None].detach(), max=10.0)
    ratio = torch.exp(s)
    first, second = -adv * ratio, -adv * torch.clamp(ratio, LOW, HIGH)
    figures(d, second > first)
    return row_mean(torch.maximum(first, second)).mean()


def gmpo(lp):
    d = lp - old
    sign = torch.sign(adv)
    bounded = torch.clamp(d, LOW - 1, HIGH - 1)
    chosen = sign * torch.minimum(sign * d, sign * bounded)
    figures(d, bounded != d)
    return (-row_mean(adv) * torch.exp(row_mean(chosen))).mean()


def cpgd(lp):
    d = lp - old
    most, least = float(np.log(HIGH)), float(np.log(LOW))
    x = torch.where(adv > 0, torch.minimum(lp, old + most), torch.maximum(lp, old + least))
    drift = torch.exp(clamped(d)) - 1 - d
    figures(d, x != lp)
    return token_mean(-x * adv + 0.1 * drift)


def sapo(lp):
    d = clamped(lp - old)
    tau = torch.where(adv > 0, 1.0, 1.05)
    figures(d)
    return row_mean(-4 / tau * torch.sigmoid(tau * (torch.exp(d) - 1)) * adv).mean()


def covariance(lp):
    return (adv - token_mean(adv)) * (lp - token_mean(lp))


def kl_cov(lp):
    d = clamped(lp - old)
    loss = -adv * torch.exp(d)
    with torch.no_grad():
        chosen = torch.topk(covariance(lp)[valid], int(N * 2e-4)).indices
        places = valid.view(-1).nonzero()[:, 0][chosen]
        penalty = torch.zeros(valid.numel())
        penalty[places] = 0.1
    figures(d)
    return token_mean(loss + penalty.view(valid.shape) * d.abs())


def clip_cov(lp):
    d = clamped(lp - old)
    loss, clipped = ppo_tokens(d)
    with torch.no_grad():
        cov = covariance(lp)
        candidates = torch.nonzero((cov < 5) & (cov > 1) & valid & ~clipped)
        chosen = candidates[torch.randperm(len(candidates))[: int(N * 2e-4)]]
        keep = torch.ones_like(adv)
        keep[chosen[:, 0], chosen[:, 1]] = 0
    figures(d, keep == 0)
    return token_mean(loss * keep)


def value(val):
    held = torch.clamp(val, vold - 0.2, vold + 0.2)
    first, second = (val - ret).square(), (held - ret).square()
    with torch.no_grad():
        token_mean((second > first).float()).item(), token_mean(val).item()
    return 0.5 * token_mean(torch.maximum(first, second))


INPUTS = {"ppo_kl_entropy": (lp, ent), "value": (val,)}

for line in sys.stdin:
    name = line.strip()
    leaves = [leaf.clone().requires_grad_() for leaf in INPUTS.get(name, (lp,))]
    times = []
    for _ in range(2 * repeats):
        for leaf in leaves:
            leaf.grad = None
        begin = time.perf_counter()
        loss = globals()[name](*leaves)
        loss.backward()
        loss.item()
        times.append(time.perf_counter() - begin)
    leaves[0].grad[valid].numpy().tofile(folder / "gradient.f32")
    answer = {"loss": loss.item(), "seconds": sorted(times[repeats:])[repeats // 2]}
    print(json.dumps(answer | {"threads": torch.get_num_threads(), "torch": torch.__version__}), flush=True)
