"""Opens the sharding that a configuration names."""

import os

import torch.distributed as dist

from .interface import Sharding, ShardingOptions
from .model import TokenOutputs


def make_sharding(module: TokenOutputs, options: ShardingOptions) -> Sharding:
    """Opens the sharding. ZeRO shards only trained weights, so a frozen model is sharded by FSDP."""
    if options.kind.startswith("zero") and any(weight.requires_grad for weight in module.parameters()):
        # DeepSpeed reads these variables when it is imported, and when it starts.
        rank, ranks = str(dist.get_rank()), str(dist.get_world_size())
        os.environ |= {"DS_ACCELERATOR": options.device.type, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
        from .zero import Zero

        return Zero(module, options)
    from .fsdp import Fsdp

    return Fsdp(module, options)
