"""Sequence parallelism (Ulysses, Jacobs et al., 2023): each rank has a part of every sequence's tokens. For attention, the
ranks exchange data, so that each rank has all tokens for a part of the heads."""

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hone_worker.errors import UserMistake
from hone_worker.models.plain_model import PlainModel
from hone_worker.training.sequences import PaddedRows
from torch import Tensor
from transformers import AttentionInterface

NAME = "hone_ulysses"
"""No mask function is registered under this name, so transformers does not build a mask."""

_group: dist.ProcessGroup | None = None


def open_groups(ranks: int) -> None:
    """Creates the groups of `ranks` neighboring ranks that share each sequence. All ranks call this once."""
    global _group
    for first in range(0, dist.get_world_size(), ranks):
        members = list(range(first, first + ranks))
        group = dist.new_group(members)
        if dist.get_rank() in members:
            _group = group


def enable(model: PlainModel, ranks: int) -> None:
    """Raises UserMistake if the model's attention cannot be divided."""
    config = model.config
    heads = config.num_attention_heads
    if heads % ranks:
        raise UserMistake(
            f"local.sequence_parallel={ranks} does not divide the {heads} attention heads of {model.source.name}",
            "choose a divisor",
        )
    if getattr(config, "attn_logit_softcapping", None) or model.module.config.model_type == "gpt_oss":
        raise UserMistake(
            f"local.sequence_parallel: the attention of {model.source.name} has a soft-cap or sinks, which is not supported",
            "use local.sequence_parallel=1",
        )
    model.module.set_attn_implementation(NAME)
    if model.module.config._attn_implementation != NAME:
        raise UserMistake(
            f"local.sequence_parallel: {type(model.module).__name__} does not call transformers' attention registry",
            "use local.sequence_parallel=1",
        )


def part(rows: PaddedRows, where: np.ndarray, index: int, ranks: int) -> tuple[PaddedRows, np.ndarray, np.ndarray]:
    """Returns this rank's columns of the rows, the indices of the outputs in them, and the columns' positions `[1,L]`."""
    length = rows.ids.shape[1] if rows.ids.shape[1] % ranks == 0 else ranks
    ids = np.zeros((len(rows.ids), length), np.int64)
    ids[:, : rows.ids.shape[1]] = rows.ids
    width = length // ranks
    row, column = np.divmod(rows.sources, rows.ids.shape[1])
    mine = (column // width == index) if len(where) else np.zeros(0, bool)
    kept = np.flatnonzero(mine)
    sources = row[kept] * width + column[kept] - index * width
    columns = slice(index * width, (index + 1) * width)
    positions = np.arange(length, dtype=np.int64)[None, columns]
    taken = PaddedRows(np.ascontiguousarray(ids[:, columns]), rows.lengths, sources, rows.targets[kept])
    return taken, where[kept], positions


class _Exchange(torch.autograd.Function):
    """Splits dimension `scatter` over the group and joins dimension `gather`."""

    @staticmethod
    def forward(ctx, x: Tensor, scatter: int, gather: int) -> Tensor:
        ctx.dims = scatter, gather
        return _exchange(x, scatter, gather)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        scatter, gather = ctx.dims
        return _exchange(gradient, gather, scatter), None, None


def _exchange(x: Tensor, scatter: int, gather: int) -> Tensor:
    sent = torch.stack(x.chunk(dist.get_world_size(_group), scatter)).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=_group)
    return torch.cat(received.unbind(), gather)


def _attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, sliding_window=None, **_):
    """transformers' signature: query `[B,H,L/R,D]`, key and value `[B,KH,L/R,D]` -> (`[B,L/R,H,Dv]`, None)."""
    ranks, heads = dist.get_world_size(_group), query.shape[1]
    if key.shape[1] % ranks:  # fewer key heads than ranks
        key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
    query, key, value = (_Exchange.apply(x, 1, 2) for x in (query, key, value))
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    mask = None
    if sliding_window and sliding_window < query.shape[2]:
        at = torch.arange(query.shape[2], device=query.device)
        distance = at[:, None] - at
        mask = (distance >= 0) & (distance < sliding_window)
    attended = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling
    )
    return _Exchange.apply(attended, 2, 1).transpose(1, 2), None


AttentionInterface.register(NAME, _attention)
