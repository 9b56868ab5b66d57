"""Counts the bytes of the tensors of one of two ranks, for test_memory_plan.py.

Usage: count_memory.py CASES, a JSON list of `{"sharding", "adapter", "dtype", "checkpointing", "tokens", "folder"}`. Prints for each case a line
of JSON: `fixed`, the bytes of all tensors after an optimizer step, and `peak`, what a forward and backward of one row holds beyond them."""

import gc
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hone_sharded.model import TokenOutputs, load_plain
from hone_sharded.policy import make_sharding
from hone_sharded.sharding import ShardingOptions
from hone_worker.free_port import free_port
from hone_worker.models.plain_model import find_source
from hone_worker.policies.adamw import AdamSettings
from torch.distributed.tensor import DTensor

RANKS = 2


def live() -> int:
    """Bytes of all tensors."""
    gc.collect()
    storages = {}
    for each in gc.get_objects():
        if type(each) in (torch.Tensor, torch.nn.Parameter) or isinstance(each, DTensor):
            tensor = each.to_local() if isinstance(each, DTensor) else each
            for part in (tensor, tensor.grad):
                if part is None:
                    continue
                if part.is_mkldnn:  # packed, without a storage
                    storages[id(part)] = part.numel() * part.element_size()
                else:
                    storage = part.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def peak_of(run) -> int:
    """The most bytes that torch's allocator held during `run`, beyond those before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def count(case: dict) -> dict:
    recomputes = case["checkpointing"]
    folder = case["folder"]
    source = find_source(
        folder, folder, cache_dir=Path(folder), device="cpu", dtype=case["dtype"], gradient_checkpointing=recomputes
    )
    before = live()
    model = TokenOutputs(load_plain(source), case["adapter"], None, 64)
    shard = make_sharding(model, ShardingOptions(case["sharding"], torch.device("cpu"), source.dtype, False, False))
    ids = torch.arange(case["tokens"])[None] % 500
    places, targets = torch.arange(case["tokens"] - 1), ids[0, 1:]

    def backward() -> None:
        outputs = shard.run(ids, None, places, targets, ["logprobs"])
        shard.backward(outputs, torch.ones_like(outputs))

    backward()
    shard.step(AdamSettings(1e-3, 0.9, 0.95, 1e-8, 0.0, 1.0), shard.gradient_norm())
    backward()  # a rank keeps its gradient between micro-batches
    fixed = live() - before
    return {"fixed": fixed, "peak": peak_of(backward)}


def run(rank: int, cases: list[dict], port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    for case in cases:
        counted = count(case)
        if rank == 0:
            print(json.dumps(counted), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    mp.spawn(run, (json.loads(sys.argv[1]), free_port()), nprocs=RANKS)
