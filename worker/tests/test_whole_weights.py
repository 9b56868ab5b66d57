"""A forward pass between backward pass and step, on two processes of FSDP 1 and 2 as verl builds them."""

import copy
import os
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hone_verl.whole_weights import drop_whole_weights
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x).tanh()


def fsdp1(model: nn.Module, strategy: ShardingStrategy) -> nn.Module:
    wrap = ModuleWrapPolicy({Block})
    return FullyShardedDataParallel(model, auto_wrap_policy=wrap, device_id=torch.device("cpu"), sharding_strategy=strategy)


def fsdp2(model: nn.Module, reshard: bool) -> nn.Module:
    for part in [part for part in model if isinstance(part, Block)]:
        fully_shard(part, reshard_after_forward=reshard)
    return fully_shard(model, reshard_after_forward=reshard)


KINDS = {
    "fsdp, reshard_after_forward=true": partial(fsdp1, strategy=ShardingStrategy.FULL_SHARD),
    "fsdp, reshard_after_forward=false": partial(fsdp1, strategy=ShardingStrategy.SHARD_GRAD_OP),
    "fsdp2, reshard_after_forward=true": partial(fsdp2, reshard=True),
    "fsdp2, reshard_after_forward=false": partial(fsdp2, reshard=False),
}


def compare(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for kind, shard in KINDS.items():
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 8))
        sharded, inputs = shard(copy.deepcopy(plain)), torch.randn(4, 8)
        for model in (plain, sharded):
            step = torch.optim.SGD(model.parameters(), lr=0.01)
            model(inputs).square().sum().backward()
            with torch.no_grad():
                model(inputs)
            drop_whole_weights(model)
            step.step()
        with torch.no_grad():
            torch.testing.assert_close(sharded(inputs), plain(inputs), msg=lambda text, kind=kind: f"{kind}: {text}")
    dist.barrier()
    os._exit(0)  # the group's threads may abort a process that ends by itself


@pytest.mark.filterwarnings("ignore")
def test_a_step_changes_what_the_next_forward_pass_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    torch.multiprocessing.spawn(compare, (str(tmp_path / "store"),), nprocs=2)
