"""The protocol's operations of one rank. All ranks get the same messages in the same order."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from hone_worker.channel import Channel, Message
from hone_worker.errors import ProtocolError, RunFailure, UserMistake, first_line
from hone_worker.images.pictures import MissingMedia, Pictures
from hone_worker.memory import is_out_of_memory, memory_stats
from hone_worker.memory_fit import choose
from hone_worker.memory_plan import Sharing
from hone_worker.models.loading import find_folder
from hone_worker.models.plain_model import ModelSource, source_of
from hone_worker.operations import Arrays, Ask, Operations
from hone_worker.training.sequences import Sequences
from torch import Tensor

from . import ulysses
from .memory import measure_shared
from .model import load_plain
from .policy import ShardedPolicies, ShardedPolicy
from .sharding import ShardingOptions
from .trainer import Trainer

_COLLECTIVE_SECONDS = 600
_HARMLESS = (UserMistake, RunFailure, MissingMedia, OSError)
"""After these errors the ranks can continue, if all ranks have answered."""

_LESS_MEMORY = "Lower local.micro_batch_tokens, set local.gradient_checkpointing=true, or use local.sharding=fsdp or zero3."


def _is_collective(error: BaseException) -> bool:
    """Whether this rank only waited for another rank, whose error explains more."""
    return isinstance(error, dist.DistError) or "/gloo/" in str(error)


class RankOperations(Operations):
    def __init__(self, channel: Channel, rank: int, ranks: int):
        super().__init__(channel)
        self._rank, self._ranks = rank, ranks
        self._device: torch.device | None = None
        self._sequence_ranks = 1
        self._trainer: Trainer | None = None

    def _unsupported(self, op: str) -> Exception:
        return UserMistake(f"several training processes do not support {op}", "use local.processes=1")

    def _error_fields(self, error: BaseException) -> dict[str, Any]:
        """The supervisor also reads `fatal`, whether the ranks cannot continue together, and `waited`."""
        fields = super()._error_fields(error)
        waited = _is_collective(error)
        if waited:
            fields["error"] = {"kind": "run", "message": first_line(error)}
        if is_out_of_memory(error):
            fields["error"]["hint"] = _LESS_MEMORY
        return {**fields, "fatal": not isinstance(error, _HARMLESS), "waited": waited}

    def _load(self, header: dict[str, Any]) -> dict[str, Any]:
        self._report(f"loading {header.get('name', header['model'])} in {self._ranks} processes")
        if header.get("head") == "score":
            raise ProtocolError("a reward model is loaded by hone_worker")
        device_name = self._device_name(header.get("device", "auto"))
        store = self._open_process_group(device_name, header.get("collective_seconds", _COLLECTIVE_SECONDS))
        folder = self._found_by_first(store, header["model"], Path(header["cache_dir"]))
        source = source_of(header, folder, device_name)
        self._device = source.device
        self._sequence_ranks = share = header.get("sequence_parallel", 1)
        if self._ranks % share:
            raise UserMistake(
                f"local.sequence_parallel={share} does not divide local.processes={self._ranks}", "choose a divisor"
            )
        memory = self._chosen_by_first(store, source, header) if header.get("plan") else None
        if memory is not None:
            source = replace(source, gradient_checkpointing=memory["gradient_checkpointing"])
        options = ShardingOptions(
            header.get("sharding", "fsdp"),
            source.device,
            source.dtype,
            header.get("offload_parameters", False),
            header.get("offload_optimizer", False),
        )
        if share > 1:
            ulysses.open_groups(share)
        self._trainer = Trainer(header.get("micro_batch_tokens", 0), share)
        loaded = load_plain(source)
        self._vision = loaded.vision and loaded.vision.vision
        self._policies = ShardedPolicies(source, loaded, options, header.get("chunk_size", 256), share)
        return {"model": loaded.info(), "nccl": None, **({} if memory is None else {"memory": memory})}

    def _pictures(self, message: Message) -> list[Pictures] | None:
        if message.header.get("media") and self._sequence_ranks > 1:
            raise UserMistake("local.sequence_parallel does not support sequences with images", "use local.sequence_parallel=1")
        return super()._pictures(message)

    def _forward(self, policy: ShardedPolicy, sequences: Sequences, outputs: list[str]) -> Arrays:
        where, values = self._trainer.forward(policy, sequences, outputs)
        found = {name: each.numpy() for name, each in zip(outputs, values)}
        return {"sequences": np.zeros(0, np.int32), "where": where, **found}

    def _forward_backward(self, policy: ShardedPolicy, sequences: Sequences, outputs: list[str], ask: Ask) -> None:
        def exchange(indices: list[int], where: np.ndarray, values: dict[str, Tensor]) -> dict[str, Tensor]:
            return ask(values, {"sequences": np.array(indices, np.int32), "where": where.astype(np.int64)})

        self._trainer.forward_backward(policy, sequences, outputs, exchange)

    def _stats(self) -> dict[str, float]:
        return memory_stats(self._device) | (self._trainer.counters if self._trainer else {})

    def _device_name(self, device: str) -> str:
        """Rank r uses GPU r."""
        if device in ("auto", "cuda") and torch.cuda.is_available():
            if torch.cuda.device_count() < self._ranks:
                raise UserMistake(
                    f"local.processes={self._ranks}, but this machine has {torch.cuda.device_count()} GPUs",
                    "use a process for each GPU, or local.device=cpu",
                )
            torch.cuda.set_device(self._rank)
            return f"cuda:{self._rank}"
        if device in ("auto", "cpu"):
            return "cpu"
        raise UserMistake(
            f"local.device={device} is one device, but local.processes={self._ranks}", "use local.device=auto, cuda or cpu"
        )

    def _found_by_first(self, store: dist.Store, model: str, cache_dir: Path) -> str:
        """Returns the model's folder, which only rank 0 downloads or converts."""
        return self._by_first(store, "model", lambda: str(find_folder(model, cache_dir.expanduser())))

    def _chosen_by_first(self, store: dist.Store, source: ModelSource, load: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the `memory` field of the answer, as rank 0 computes it from its own device; None if unknown."""

        def choose_way() -> dict[str, Any] | None:
            sharing = Sharing(
                self._ranks,
                load.get("sharding", "fsdp"),
                load.get("offload_parameters", False),
                load.get("offload_optimizer", False),
                self._sequence_ranks,
            )
            fit = choose(source, load, measure_shared, sharing)
            return fit and fit.report(0)

        return self._by_first(store, "memory", choose_way)

    def _by_first(self, store: dist.Store, key: str, find: Callable[[], Any]) -> Any:
        """Returns what `find` returns on rank 0, as JSON. The others wait without a collective, because this may take longer than the
        limit of one. Raises UserMistake on all ranks."""
        if self._rank == 0:
            try:
                found = {"found": find()}
            except UserMistake as error:
                found = {"mistake": [error.message, error.hint]}
            store.set(key, json.dumps(found))
        while not store.check([key]):
            time.sleep(0.1)
        found = json.loads(store.get(key))
        if "mistake" in found:
            raise UserMistake(*found["mistake"])
        return found["found"]

    def _open_process_group(self, device: str, seconds: float) -> dist.Store:
        port, listener = int(os.environ["HONE_STORE_PORT"]), os.environ.get("HONE_STORE_FD")
        limit = timedelta(seconds=seconds)
        store = dist.TCPStore(
            "127.0.0.1",
            port,
            self._ranks,
            is_master=listener is not None,
            timeout=limit,
            wait_for_workers=False,
            master_listen_fd=None if listener is None else int(listener),
        )
        backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
        dist.init_process_group(backend, store=store, rank=self._rank, world_size=self._ranks, timeout=limit)
        return store
