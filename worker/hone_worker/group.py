"""The process group that sends all weights to inference servers: the worker has rank 0 and broadcasts.

Only vLLM that Hone starts on other GPUs than the trainer's joins it, by NCCL's unique id over HTTP. (Through a store of
torch.distributed, vLLM exchanges pickled objects of its own classes, so the trainer would need vLLM's package.) NCCL is called
through its C interface: `torch.cuda.nccl.init_rank` raises SystemError in torch 2.15, and torch.distributed does not let the
caller choose the id. All members need the same version of NCCL, but the worker's torch and vLLM's come with different ones, so
Hone sets `VLLM_NCCL_SO_PATH`; SGLang's comes with its own torch and cannot be replaced, so SGLang gets weights through files.
Tensors are sent one by one: vLLM's packed buffers save calls, but both sides must pack them alike. The published version is not
copied: `load` sends the current weights, which are the published ones until the next step. If a member does not take part
within 300 s, the operation fails and the server stays paused, because it may have parts of two versions.

NCCL itself was not run; tests use gloo between two processes and compare every request with the types of vLLM 0.32."""

import base64
import ctypes
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import RunFailure, first_line


class Group(Protocol):
    """Its methods may block forever if the other side ends, so call them through `within`."""

    id: str
    """The id that the other members need to join."""

    def join(self, size: int) -> None:
        """Returns when all `size` members have joined and have all-reduced one float."""

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Broadcasts the tensors one by one, in this order."""


class NcclGroup:
    """Uses NCCL's C interface, because in torch 2.15 torch.cuda.nccl.init_rank raises SystemError, and
    torch.distributed does not return the id that vLLM needs."""

    def __init__(self, device: torch.device):
        path = nccl_library()
        if path is None:
            raise RunFailure("torch has not loaded NCCL, so weights cannot be broadcast")
        self._device = device
        self._library = ctypes.CDLL(path)
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        self._comm = ctypes.c_void_p()
        self._id = _UniqueId()
        self._check(self._library.ncclGetUniqueId(ctypes.byref(self._id)))
        self.id = base64.b64encode(bytes(self._id)).decode()

    def join(self, size: int) -> None:
        with torch.cuda.device(self._device):
            init = self._library.ncclCommInitRank
            init.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, _UniqueId, ctypes.c_int]
            self._check(init(ctypes.byref(self._comm), size, self._id, 0))
            self._collective("ncclAllReduce", torch.zeros(1, device=self._device))
            torch.cuda.synchronize()

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        with torch.cuda.device(self._device):
            for tensor in tensors:
                self._collective("ncclBroadcast", tensor.contiguous())
            torch.cuda.synchronize()

    def _collective(self, name: str, tensor: Tensor) -> None:
        """Runs a collective in place. The argument 0 is the sum for an all-reduce, and the sender's rank for a broadcast."""
        function = getattr(self._library, name)
        pointer = ctypes.c_void_p
        function.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, pointer, pointer]
        data, stream = tensor.data_ptr(), torch.cuda.current_stream().cuda_stream
        self._check(function(data, data, tensor.numel(), _NCCL_TYPES[tensor.dtype], 0, self._comm, stream))

    def _check(self, result: int) -> None:
        if result != 0:
            raise RuntimeError(f"NCCL: {self._library.ncclGetErrorString(result).decode()}")


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


# ncclDataType_t
_NCCL_TYPES = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.int64: 4,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
}


class GlooGroup:
    """Uses Gloo, on machines without NCCL. The id is the address of a store."""

    def __init__(self, _: torch.device):
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.id = f"127.0.0.1:{self._store.port}"

    def join(self, size: int) -> None:
        self._group = dist.ProcessGroupGloo(self._store, 0, size, timedelta(hours=1))
        self._group.allreduce([torch.zeros(1)]).wait()

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._group.broadcast(tensor.contiguous(), 0).wait()


def within(seconds: float, what: str, work: Callable[[], None]) -> None:
    """Runs `work` in a thread. Raises RunFailure if it fails or is still running after `seconds`."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="group", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise RunFailure(f"{what}: the inference server did not take part within {seconds:g} s")
    if failures:
        raise RunFailure(f"{what}: {first_line(failures[0])}") from failures[0]


def nccl_library() -> str | None:
    """The path of the NCCL library that torch has loaded, or None."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    return next((line.split(maxsplit=5)[5] for line in lines if "/libnccl.so" in line), None)
