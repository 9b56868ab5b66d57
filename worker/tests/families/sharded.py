"""`python -m families.sharded [kind...]` in worker/tests: whether two FSDP2 ranks compute what one process computes, for each
family. Without kinds, measures all families and writes the column into record.json; with some, only prints."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from hone_sharded.model import load_plain
from hone_sharded.policy import ShardedPolicies
from hone_sharded.sharding import ShardingOptions
from hone_sharded.trainer import Trainer as ShardedTrainer
from hone_worker.errors import UserMistake, first_line
from hone_worker.models.plain_model import find_source
from hone_worker.policies.policy import Policy
from hone_worker.policies.registry import Policies
from hone_worker.training.trainer import Trainer

from .measure import _ADAPTER, _SEQUENCES, _TOLERANCE, _WEIGHTS, _exchange, _load, _relative, shake
from .record import read, write
from .text import TEXT, Family, build, quiet

_RANKS = 2
_ADAPTERS = ({**_ADAPTER, "targets": ["attn", "mlp", "unembed"]}, {"kind": "full"})


def measure(kinds: list[str]) -> dict[str, bool | str]:
    """The column "FSDP2" by kind. Forks ranks, so no autograd may have run in this process."""
    context = get_context("fork")
    results, families = context.SimpleQueue(), [family for family in TEXT if family.kind in kinds]
    with TemporaryDirectory() as folder:
        ranks = [context.Process(target=_rank, args=(rank, families, Path(folder), results)) for rank in range(_RANKS)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    assert all(rank.exitcode == 0 for rank in ranks), "a rank failed"
    return results.get()


def _rank(rank: int, families: list[Family], folder: Path, results: Any) -> None:
    quiet()
    store = dist.FileStore(str(folder / "store"), _RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=_RANKS, timeout=timedelta(seconds=300))
    found = {}
    for family in families:
        found[family.kind] = result = _result(family, folder)
        if rank == 0:
            print(family.kind, result, file=sys.stderr, flush=True)
    if rank == 0:
        results.put(found)
    dist.destroy_process_group()


def _result(family: Family, folder: Path) -> bool | str:
    """Equal on all ranks."""
    if dist.get_rank() == 0:
        build(family, folder)
    dist.barrier()
    try:
        error = max(_difference(folder / family.kind, adapter) for adapter in _ADAPTERS)
    except UserMistake as mistake:
        return mistake.message.removeprefix("tiny ")
    except Exception as failure:  # noqa: BLE001 - the table says what fails; both ranks fail alike
        return f"{type(failure).__name__}: {first_line(failure)}"
    return True if error <= _TOLERANCE else f"differs by {error:.1e}"


def _difference(model: Path, adapter: dict[str, Any]) -> float:
    """The largest difference of log-probabilities, and of gradients relative to the largest one."""
    source = find_source(str(model), "tiny", cache_dir=model.parent, device="cpu", dtype="float32")
    options = ShardingOptions("fsdp", source.device, source.dtype, False, False)
    policies = ShardedPolicies(source, load_plain(source), options, 256, 1)
    ours = policies[policies.create(adapter)]
    theirs = _one_process(model, adapter)
    if adapter["kind"] == "lora":
        for name, weight in theirs.named(theirs.parameters).items():
            ours.sharding.scatter(name, weight)
    trainer = ShardedTrainer(16, 1)
    where, logprobs = trainer.forward(ours, _SEQUENCES, ["logprobs"])
    trainer.forward_backward(ours, _SEQUENCES, ["logprobs"], lambda indices, at, _: {"logprobs": _WEIGHTS[torch.from_numpy(at)]})
    trained = {name: weight for name, weight in ours.model.named().items() if weight.requires_grad}
    gradients = {name: weight.grad.full_tensor() for name, weight in trained.items() if weight.grad is not None}
    expected = Trainer().forward(theirs, _SEQUENCES, ["logprobs"])["logprobs"]
    Trainer().forward_backward(theirs, _SEQUENCES, ["logprobs"], _exchange)
    wanted = theirs.named([parameter.grad for parameter in theirs.parameters])
    found = {name: gradients.get(name, torch.zeros_like(gradient)) for name, gradient in wanted.items()}
    difference = float((logprobs[0] - expected[torch.from_numpy(np.asarray(where))]).abs().max())
    everywhere = torch.tensor(max(difference, _relative(found, wanted)))
    dist.all_reduce(everywhere, dist.ReduceOp.MAX)
    return float(everywhere)


def _one_process(model: Path, adapter: dict[str, Any]) -> Policy:
    policies = Policies(_load(model))
    policy = policies[policies.create(adapter)]
    if adapter["kind"] == "lora":
        shake(policy)
    return policy


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = sys.argv[1:]
    measured = measure(chosen or [family.kind for family in TEXT])
    print(json.dumps(measured))
    if not chosen:
        write(fsdp2=measured)
