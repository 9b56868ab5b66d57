"""A group for weights without NCCL."""

from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor


class GlooGroup:
    """A Group (hone_worker/group.py). The id is the address of a store."""

    def __init__(self, _: torch.device):
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.id = f"127.0.0.1:{self._store.port}"

    def join(self, size: int) -> None:
        self._group = dist.ProcessGroupGloo(self._store, 0, size, timedelta(hours=1))
        self._group.allreduce([torch.zeros(1)]).wait()

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._group.broadcast(tensor.contiguous(), 0).wait()
