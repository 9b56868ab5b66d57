"""Counts the bytes of the tensors that one rank of a sharded model holds, for the estimate before loading.

Usage: count_memory.py KIND RANKS lora|full MODEL_FOLDER. Prints JSON: {"weights", "gradients", "optimizer"} of rank 0.
"""

import gc
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor
from hone_sharded.model import TokenOutputs, load_plain
from hone_sharded.sharding import ShardingOptions, make_sharding
from hone_worker.models.plain_model import find_source
from hone_worker.policies.adamw import AdamSettings

LORA = {"kind": "lora", "rank": 8, "alpha": 16, "targets": ["attn", "mlp"], "seed": 1}


def live() -> int:
    """Bytes of all tensors."""
    gc.collect()
    storages = {}
    for each in gc.get_objects():
        if type(each) in (torch.Tensor, torch.nn.Parameter) or isinstance(each, DTensor):
            tensor = each.to_local() if isinstance(each, DTensor) else each
            for part in (tensor, tensor.grad):
                if part is not None:
                    storage = part.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def run(rank: int, kind: str, ranks: int, form: str, folder: str, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    source = find_source(folder, folder, cache_dir=Path(folder), device="cpu", dtype="float32")
    model = TokenOutputs(load_plain(source), {"kind": "full"} if form == "full" else LORA, None, 64)
    sharding = make_sharding(model, ShardingOptions(kind, torch.device("cpu"), torch.float32, False, False))
    ids, positions = torch.arange(8)[None], torch.arange(8)
    loaded = live()
    outputs = sharding.run(ids, None, positions, positions, ["logprobs"])
    sharding.backward(outputs, torch.ones_like(outputs))
    del outputs
    backward = live()
    sharding.step(AdamSettings(1e-3, 0.9, 0.95, 1e-8, 0.0, 1.0), sharding.gradient_norm())
    sharding.zero_grad()
    stepped = live()
    if rank == 0:
        print(json.dumps({"weights": loaded, "gradients": backward - loaded, "optimizer": stepped - loaded}), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    kind, ranks, form, folder = sys.argv[1:]
    mp.spawn(run, (kind, int(ranks), form, folder, 29_000 + os.getpid() % 1000), nprocs=int(ranks))
