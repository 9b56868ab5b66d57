"""The protocol's operations of one rank. All ranks get the same messages in the same order."""

import json
import os
import platform
import sys
import time
from collections import Counter
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import transformers
from hone_worker.channel import Channel, Message
from hone_worker.errors import RunFailure, UserMistake, first_line
from hone_worker.images.media import Media
from hone_worker.images.store import MissingMedia
from hone_worker.memory import is_out_of_memory, memory_stats, trim_heap
from hone_worker.messages import Cancelled, ProtocolError, ask_gradient, describe_error, outputs_of, sequences_of
from hone_worker.models.loading import find_folder
from hone_worker.models.plain_model import ModelSource, PlainModel, find_source
from hone_worker.policies.adamw import AdamSettings
from hone_worker.training.packing import Sequences
from torch import Tensor

from . import ulysses
from .model import TokenOutputs, load_plain
from .policy import ShardedPolicy
from .sharding import ShardingOptions, make_sharding
from .trainer import Exchange, Trainer
from .vision import VisionPart

Answer = tuple[dict[str, Any], dict[str, np.ndarray]]

_COLLECTIVE_SECONDS = 600
_HARMLESS = (UserMistake, RunFailure, MissingMedia, OSError)
"""After these errors the ranks can continue, if all ranks have answered."""

_LESS_MEMORY = "Lower local.micro_batch_tokens, set local.gradient_checkpointing=true, or use local.sharding=fsdp or zero3."


def _is_collective(error: BaseException) -> bool:
    """Whether this rank only waited for another rank, whose error explains more."""
    return isinstance(error, dist.DistError) or "/gloo/" in str(error)


class Operations:
    """`on_NAME` executes the operation NAME."""

    def __init__(self, channel: Channel, rank: int, ranks: int):
        self._channel, self._rank, self._ranks = channel, rank, ranks
        self._source: ModelSource | None = None
        self._loaded: PlainModel | None = None
        """The loaded model, until a policy uses it."""
        self._options: ShardingOptions | None = None
        self._trainer: Trainer | None = None
        self._header: dict[str, Any] = {}
        self._policies: dict[int, ShardedPolicy] = {}
        self._vision: VisionPart | None = None
        self._media = Media()
        self._created = 0
        self._seconds: Counter[str] = Counter()

    def answer(self, message: Message) -> None:
        """Executes a message and sends the answer."""
        begin = time.perf_counter()
        try:
            operation = getattr(self, f"on_{message.op}", None)
            if operation is None:
                raise UserMistake(
                    f"several training processes do not support {message.op}", "use local.processes=1"
                )
            fields, arrays = operation(message)
        except Exception as error:  # noqa: BLE001 - every error is an answer
            waited = _is_collective(error)
            described = {"kind": "run", "message": first_line(error)} if waited else describe_error(error)
            if is_out_of_memory(error):
                described["hint"] = _LESS_MEMORY
            if described["kind"] == "internal":
                print(described["trace"], file=sys.stderr, flush=True)
            fatal = not isinstance(error, _HARMLESS)
            self._channel.send({"id": message.id, "error": described, "fatal": fatal, "waited": waited})
        else:
            self._channel.send({"id": message.id, "ok": True, **fields}, arrays)
        finally:
            self._seconds[message.op] += time.perf_counter() - begin

    def on_load(self, message: Message) -> Answer:
        header = self._header = message.header
        if header.get("threads", 0) > 0:
            torch.set_num_threads(header["threads"])
        name = header.get("name", header["model"])
        self._channel.send({"id": message.id, "event": "status", "text": f"loading {name} in {self._ranks} processes"})
        if header.get("head") == "score":
            raise ProtocolError("a reward model is loaded by hone_worker")
        device_name = self._device(header.get("device", "auto"))
        store = self._open_process_group(device_name, header.get("collective_seconds", _COLLECTIVE_SECONDS))
        self._source = find_source(
            self._found_by_first(store, header["model"], Path(header["cache_dir"])),
            name,
            cache_dir=Path(header["cache_dir"]),
            device=device_name,
            dtype=header.get("dtype", "auto"),
            gradient_checkpointing=header.get("gradient_checkpointing", False),
            output_layer=header.get("head") is None,
            processor=header.get("processor"),
            most_pixels=header.get("max_image_pixels") or ModelSource.most_pixels,
        )
        device = self._source.device
        self._options = ShardingOptions(
            header.get("sharding", "fsdp"),
            device,
            self._source.dtype,
            header.get("offload_parameters", False),
            header.get("offload_optimizer", False),
        )
        share = header.get("sequence_parallel", 1)
        if self._ranks % share:
            raise UserMistake(
                f"local.sequence_parallel={share} does not divide local.processes={self._ranks}", "choose a divisor"
            )
        if share > 1:
            ulysses.open_groups(share)
        self._trainer = Trainer(header.get("micro_batch_tokens", 0), share)
        self._loaded = load_plain(self._source)
        versions = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        self._vision = self._loaded.vision
        return {"model": self._loaded.info(), "versions": versions, "nccl": None}, {}

    def on_put_media(self, message: Message) -> Answer:
        return self._media.put(message, self._seeing(self._vision).vision)

    def on_create_policy(self, message: Message) -> Answer:
        adapter, head = message.header["adapter"], message.header.get("head")
        if adapter.get("train_vision"):
            raise UserMistake("several processes do not train the vision part", "use model.train_vision=false or local.processes=1")
        if adapter["kind"] not in ("lora", "full", "none"):
            raise UserMistake(f"adapter kind {adapter['kind']} does not exist", "use lora, full or none")
        if adapter["kind"] == "none":
            if head is not None:
                raise UserMistake("the base model is never trained, so it cannot have a value head", "use lora or full")
            lender = next((p for p in self._policies.values() if p.adapter["kind"] != "full" and not p.is_critic), None)
            if lender is not None:  # the same weights without the adapter
                return self._add(ShardedPolicy(adapter, lender.model, lender.sharding))
        model = self._load(adapter, head)
        sharding = make_sharding(model, self._options)
        trim_heap()
        return self._add(ShardedPolicy(adapter, model, sharding))

    def on_close_policy(self, message: Message) -> Answer:
        del self._policies[self._number(message)]
        return {}, {}

    def on_forward(self, message: Message) -> Answer:
        policy = self._policy(message)
        names = outputs_of(message, policy.is_critic)
        where, outputs = self._trainer.forward(policy, self._sequences(message), names)
        found = {name: values.numpy() for name, values in zip(names, outputs)}
        return {}, {"sequences": np.zeros(0, np.int32), "where": where, **found}

    def on_forward_backward(self, message: Message) -> Answer:
        policy = self._policy(message)
        names = outputs_of(message, policy.is_critic, with_gradient=True)
        try:
            self._trainer.forward_backward(policy, self._sequences(message), names, self._exchange(message.id))
        except Cancelled:
            return {"cancelled": True}, {}
        return {}, {}

    def on_zero_grad(self, message: Message) -> Answer:
        self._trained(message).sharding.zero_grad()
        return {}, {}

    def on_optim_step(self, message: Message) -> Answer:
        names = ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "max_grad_norm")
        settings = AdamSettings(**{name: float(message.header[name]) for name in names})
        taken = asdict(self._trained(message).optim_step(settings))
        return {name: value for name, value in taken.items() if value is not None}, {}

    def on_publish(self, message: Message) -> Answer:
        return {"version": self._policy(message).publish()}, {}

    def on_save_state(self, message: Message) -> Answer:
        header = message.header
        self._trained(message).save_state(Path(header["dir"]), bool(header.get("optimizer", True)))
        return {}, {}

    def on_load_state(self, message: Message) -> Answer:
        policy = self._trained(message)
        policy.load_state(Path(message.header["dir"]), bool(message.header["optimizer"]))
        return {"version": policy.version}, {}

    def on_export(self, message: Message) -> Answer:
        self._policy(message).export(Path(message.header["dir"]), message.header["as"])
        return {}, {}

    def on_stats(self, _: Message) -> Answer:
        device = self._source.device if self._source else None
        stats = memory_stats(device) | (self._trainer.counters if self._trainer else {})
        return {"stats": stats | {f"seconds/{op}": seconds for op, seconds in self._seconds.items()}}, {}

    def _load(self, adapter: dict, head: str | None) -> TokenOutputs:
        plain, self._loaded = self._loaded or load_plain(self._source), None
        model = TokenOutputs(plain, adapter, head, self._header.get("chunk_size", 256))
        share = self._header.get("sequence_parallel", 1)
        if share > 1:
            ulysses.enable(model.plain, share)
        return model

    def _add(self, policy: ShardedPolicy) -> Answer:
        self._created += 1
        self._policies[self._created] = policy
        return {"policy": self._created, "trainable_parameters": policy.trainable_parameters}, {}

    def _device(self, device: str) -> str:
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
        """Returns the model's folder. Only rank 0 downloads or converts the model. The others wait without a collective,
        because this may take longer than the limit of one. Raises UserMistake on all ranks."""
        if self._rank == 0:
            try:
                found = {"folder": str(find_folder(model, cache_dir.expanduser()))}
            except UserMistake as error:
                found = {"mistake": [error.message, error.hint]}
            store.set("model", json.dumps(found))
        while not store.check(["model"]):
            time.sleep(0.1)
        found = json.loads(store.get("model"))
        if "mistake" in found:
            raise UserMistake(*found["mistake"])
        return found["folder"]

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

    def _seeing(self, part: VisionPart | None) -> VisionPart:
        if part is None:
            raise UserMistake(f"{self._source.name} reads only text", "use a model with a vision part")
        return part

    def _sequences(self, message: Message) -> Sequences:
        if message.header.get("media"):
            self._seeing(self._policy(message).model.plain.vision)
            if self._header.get("sequence_parallel", 1) > 1:
                raise UserMistake("local.sequence_parallel does not support sequences with images", "use local.sequence_parallel=1")
        return sequences_of(message, self._media.pictures(message))

    def _number(self, message: Message) -> int:
        number = message.header["policy"]
        if number not in self._policies:
            raise UserMistake(f"policy {number} does not exist", "it was never created, or was closed")
        return number

    def _policy(self, message: Message) -> ShardedPolicy:
        return self._policies[self._number(message)]

    def _trained(self, message: Message) -> ShardedPolicy:
        policy = self._policy(message)
        policy.require_trainable()
        return policy

    def _exchange(self, request: int) -> Exchange:
        def exchange(indices: list[int], where: np.ndarray, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
            arrays = {"sequences": np.array(indices, np.int32), "where": where.astype(np.int64)}
            return ask_gradient(self._channel, request, outputs, arrays)

        return exchange
