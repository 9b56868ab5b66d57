"""The operations of worker/PROTOCOL.md, carried out by verl's workers."""

import json
import math
import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import transformers
import verl
from hone_worker.channel import Channel, Message
from hone_worker.errors import UserMistake
from hone_worker.folders import write_folder, write_json
from hone_worker.messages import Cancelled, ProtocolError, ask_gradient, outputs_of
from omegaconf import OmegaConf
from verl.single_controller.ray import RayResourcePool
from verl.workers.engine_workers import TrainingWorkerConfig

from .batches import Batch, deal
from .cluster import Cluster
from .configuration import Configuration, as_dataclass, ranks, read_configuration
from .group import WorkerGroup
from .model_facts import model_facts
from .workers import CriticWorker, PolicyWorker

Answer = tuple[dict[str, Any], dict[str, np.ndarray]]

_ACTOR, _REFERENCE, _CRITIC = 1, 2, 3
# Ray's workers run with these.
_ENVIRONMENT = ("PYTHONPATH", "OMP_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE", "HONE_OWNER")


class Operations:
    """`run(message)` returns the answer's fields and arrays. `on_NAME` runs the operation NAME."""

    def __init__(self, channel: Channel, cluster: Cluster, device: str, on_death: Callable[[str], None]):
        self._channel = channel
        self._cluster = cluster
        self._device = device
        self._on_death = on_death
        self._configuration: Configuration | None = None
        self._actor: WorkerGroup | None = None
        self._critic: WorkerGroup | None = None
        self._reference: str | None = None
        self._batches: dict[int, Batch] = {}
        self._last = 0
        self._versions = {_ACTOR: 0, _CRITIC: 0}
        self._seconds: Counter[str] = Counter()

    def run(self, message: Message) -> Answer:
        operation = getattr(self, f"on_{message.op}", None)
        if operation is None:
            raise UserMistake(f"verl's backend has no operation {message.op!r}")
        if self._configuration is None and message.op not in ("load", "stats"):
            raise ProtocolError(f"{message.op} before load")
        begin = time.perf_counter()
        try:
            return operation(message)
        finally:
            self._seconds[message.op] += time.perf_counter() - begin

    def on_load(self, message: Message) -> Answer:
        if self._configuration is not None:
            raise ProtocolError("a driver loads one model; start another for another model")
        header = message.header
        configuration = read_configuration(header["config"], self._device)
        configuration.tree.actor_rollout_ref.model.path = header["model"]
        configuration.tree.critic.model.path = header["model"]
        as_dataclass(configuration, "actor_rollout_ref.actor")  # the workers would refuse it a minute later
        nodes, each = ranks(configuration)
        facts = model_facts(Path(header["model"]), header.get("name", header["model"]), self._device)
        self._status(message, "starting Ray" if (header.get("ray") or {}).get("address") is None else "joining Ray")
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        if self._device == "cpu":
            environment |= {name: os.environ[name] for name in ("VERL_PLATFORM", "VERL_USE_EXTERNAL_MODULES")}
        self._logs = header["logs"]
        self._cluster.start(
            header.get("ray") or {},
            environment,
            Path(self._logs) / "ray.log",
            self._on_death,
            lambda text: self._status(message, text),
        )
        self._cluster.require(nodes, each, "cpus" if self._device == "cpu" else "gpus")
        # On a GPU the actor and the critic share each device.
        self._pool = RayResourcePool(
            [each] * nodes, use_gpu=self._device != "cpu", max_colocate_count=1 if self._device == "cpu" else 2
        )
        tree = configuration.tree
        self._status(message, f"starting {nodes * each} of verl's workers (actor)")
        self._seed = configuration.get("actor_rollout_ref.actor.data_loader_seed") or 0
        self._actor = self._start_group("actor", PolicyWorker, tree.actor_rollout_ref)
        self._status(message, f"loading {facts['name']} into verl's workers")
        self._actor.call("init_model")
        self._configuration = configuration
        found = self._actor.call("facts")
        self._data_ranks = found[0]["data_ranks"]
        versions = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "verl": verl.__version__,
            "ray": ray.__version__,
        }
        return {
            "model": {**facts, "parameters": found[0]["parameters"], "dtype": found[0]["dtype"]},
            "versions": versions,
            "device": self._device,
            "ranks": len(found),
            "workers": self._actor.processes,
            "nodes": self._cluster.nodes(),
            "filled": configuration.filled,
            "adapted": configuration.adapted,
        }, {}

    def on_create_policy(self, message: Message) -> Answer:
        adapter, head = message.header["adapter"], message.header.get("head")
        if head == "value":
            return self._open_critic(message)
        if adapter["kind"] == "none":
            return self._open_reference(message)
        self._require_adapter(adapter)
        return {"policy": _ACTOR, "trainable_parameters": self._actor.call("facts")[0]["trainable"]}, {}

    def on_close_policy(self, message: Message) -> Answer:
        if message.header["policy"] == _CRITIC and self._critic is not None:
            self._critic.end()
            self._critic = None
        return {}, {}

    def on_stage(self, message: Message) -> Answer:
        return {"batch": self._stage(message.arrays)}, {}

    def on_unstage(self, message: Message) -> Answer:
        self._unstage(message.header["batch"])
        return {}, {}

    def on_forward(self, message: Message) -> Answer:
        return {}, self._with_batch(message, lambda number: self._outputs(message, number))

    def on_forward_backward(self, message: Message) -> Answer:
        self._trained(message)
        try:
            self._with_batch(message, lambda number: self._exchange(message, number))
        except Cancelled:
            return {"cancelled": True}, {}
        return {}, {}

    def on_zero_grad(self, message: Message) -> Answer:
        self._trained(message).call("zero_grad")
        return {}, {}

    def on_optim_step(self, message: Message) -> Answer:
        names = ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "max_grad_norm")
        settings = {name: float(message.header[name]) for name in names}
        norm = self._trained(message).call("step", settings)[0]
        self._forget(message.header["policy"])
        return {"grad_norm": norm, "applied": bool(np.isfinite(norm)), "lost_to_rounding": float("nan")}, {}

    def on_publish(self, message: Message) -> Answer:
        policy = message.header["policy"]
        if policy in self._versions:
            self._versions[policy] += 1
        return {"version": self._versions.get(policy, 1)}, {}

    def on_save_state(self, message: Message) -> Answer:
        header, group = message.header, self._trained(message)
        state = {"version": self._versions[header["policy"]], "ranks": group.size}

        def fill(folder: Path) -> None:
            group.call("save", str(folder), bool(header.get("optimizer", True)))
            write_json(folder / "hone.json", state)

        write_folder(Path(header["dir"]), fill)
        return {}, {}

    def on_load_state(self, message: Message) -> Answer:
        header, group = message.header, self._trained(message)
        folder = Path(header["dir"])
        self._require_ranks(folder, group.size)
        group.call("load", str(folder), bool(header["optimizer"]))
        self._forget(header["policy"])
        self._versions[header["policy"]] = _version_of(folder)
        return {"version": self._versions[header["policy"]]}, {}

    def on_export(self, message: Message) -> Answer:
        header = message.header
        if header["policy"] != _ACTOR:
            raise UserMistake("only the trained policy can be exported")
        if header["as"] == "adapter" and not self._lora_rank:
            raise UserMistake("this policy has no adapter", 'export it as "merged"')
        write_folder(Path(header["dir"]), lambda folder: self._actor.call("export", str(folder), header["as"]))
        return {}, {}

    def on_readback(self, message: Message) -> Answer:
        """Values by path, as the workers hold them; other sections belong to the trainer and are read here."""
        tree = OmegaConf.to_container(self._configuration.tree, resolve=True)
        held = self._actor.call("held")[0]
        if self._critic is not None:
            held["critic"] = {**tree["critic"], **self._critic.call("held")[0]["critic"]}
        values, missing, where = {}, [], {}
        for path in message.header["paths"]:
            section = path.split(".")[0]
            source = held if section in held else tree
            try:
                values[path] = _at(source, path)
                where[path] = "worker" if source is held else "driver"
            except (KeyError, TypeError):
                missing.append(path)
        return {"values": values, "missing": missing, "held": where}, {}

    def on_stats(self, _: Message) -> Answer:
        stats = {f"seconds/{op}": seconds for op, seconds in self._seconds.items()}
        for group in (self._actor, self._critic):
            for rank, memory in enumerate(group.call("memory") if group else []):
                stats |= {f"memory/{group.name}_{rank}_{name}_bytes": value for name, value in memory.items()}
        return {"stats": stats}, {}

    def _exchange(self, message: Message, number: int) -> None:
        """Sends the outputs of the whole batch, and back-propagates the gradient that is answered."""
        batch, outputs = self._batches[number], self._outputs(message, number, with_gradient=True)
        sent = {name: torch.from_numpy(values) for name, values in outputs.items()}
        begin = time.perf_counter()
        found = ask_gradient(
            self._channel, message.id, sent, {"sequences": np.arange(batch.sequences, dtype=np.int32)}
        )
        self._seconds["gradient_wait"] += time.perf_counter() - begin
        gradient = {name: values.numpy() for name, values in found.items()}
        if any(np.any(values != 0) for values in gradient.values()):  # true for NaN too
            group = self._trained(message)
            self._stage_at(group, number)
            group.call_each("backward", batch.scatter(gradient), number)

    def _outputs(self, message: Message, number: int, with_gradient: bool = False) -> dict[str, np.ndarray]:
        """Remembered ones where the weights are still the same."""
        policy = message.header["policy"]
        names = outputs_of(message, policy == _CRITIC, with_gradient)
        if policy == _CRITIC and names != ["values"]:
            raise UserMistake("a critic computes only values", "request them alone")
        batch, group = self._batches[number], self._group(policy)
        unknown = [name for name in names if (policy, name) not in batch.outputs]
        if unknown:
            self._stage_at(group, number)
            reference = self._reference if policy == _REFERENCE else None
            parts = [part for part in group.call("outputs", number, unknown, reference) if part is not None]
            found = batch.gather(parts, unknown)
            batch.outputs |= {(policy, name): found[name] for name in unknown}
        return {name: batch.outputs[policy, name] for name in names}

    def _with_batch(self, message: Message, use: Callable[[int], Any]) -> Any:
        """`use` the staged batch that the message names, or its arrays for this call."""
        number = message.header.get("batch")
        if number is not None:
            if number not in self._batches:
                raise ProtocolError(f"batch {number} is not staged")
            return use(number)
        number = self._stage(message.arrays)
        try:
            return use(number)
        finally:
            self._unstage(number)

    def _stage(self, arrays: dict[str, np.ndarray]) -> int:
        self._last += 1
        self._batches[self._last] = deal(arrays, self._data_ranks, self._multiple())
        return self._last

    def _unstage(self, number: int) -> None:
        batch = self._batches.pop(number, None)
        for group in (self._actor, self._critic):
            if batch is not None and group is not None and group.name in batch.staged:
                group.call("unstage", number)

    def _stage_at(self, group: WorkerGroup, number: int) -> None:
        """A batch is sent to a group when the group first needs it."""
        batch = self._batches[number]
        if group.name not in batch.staged:
            group.call_each("stage", batch.shards, number)
            batch.staged.add(group.name)

    def _multiple(self) -> int:
        """verl splits a rank's sequences into micro-batches of equal size, unless it does so by tokens."""
        found = [
            self._configuration.get(f"{role}.{size}") or 1
            for role, dynamic, size in (
                ("actor_rollout_ref.actor", "use_dynamic_bsz", "ppo_micro_batch_size_per_gpu"),
                ("actor_rollout_ref.rollout", "log_prob_use_dynamic_bsz", "log_prob_micro_batch_size_per_gpu"),
                ("actor_rollout_ref.ref", "log_prob_use_dynamic_bsz", "log_prob_micro_batch_size_per_gpu"),
                ("critic", "use_dynamic_bsz", "ppo_micro_batch_size_per_gpu"),
            )
            if not self._configuration.get(f"{role}.{dynamic}")
        ]
        return math.lcm(1, *found)

    def _forget(self, policy: int) -> None:
        for batch in self._batches.values():
            batch.outputs = {key: value for key, value in batch.outputs.items() if key[0] != policy}

    def _group(self, policy: int) -> WorkerGroup:
        group = self._critic if policy == _CRITIC else self._actor
        if group is None:
            raise ProtocolError(f"policy {policy} does not exist")
        return group

    def _trained(self, message: Message) -> WorkerGroup:
        if message.header["policy"] == _REFERENCE:
            raise UserMistake("the reference is not trained")
        return self._group(message.header["policy"])

    @property
    def _lora_rank(self) -> int:
        return self._configuration.get("actor_rollout_ref.model.lora_rank")

    def _require_adapter(self, adapter: dict[str, Any]) -> None:
        """The actor was built from the configuration; a policy of another kind would be another actor."""
        wanted = {"lora_rank": adapter.get("rank", 0)}
        if adapter["kind"] == "lora":
            wanted["lora_alpha"] = adapter["alpha"]
            if self._configuration.get("actor_rollout_ref.model.target_modules") == "all-linear":
                linear = sorted(adapter["targets"]) == ["attn", "mlp"]
                wanted["target_modules"] = "all-linear" if linear else adapter["targets"]
        for name, value in wanted.items():
            held = self._configuration.get(f"actor_rollout_ref.model.{name}")
            if held != value:
                raise UserMistake(f"actor_rollout_ref.model.{name}={held}, but the policy asks for {value}", "Set both the same.")

    def _open_reference(self, message: Message) -> Answer:
        self._reference = "adapter" if self._lora_rank else "model"
        if self._reference == "model":
            self._status(message, "loading the reference model into verl's workers")
            self._actor.call("add_reference")
        return {"policy": _REFERENCE, "trainable_parameters": 0}, {}

    def _open_critic(self, message: Message) -> Answer:
        if self._critic is not None:
            raise UserMistake("verl's backend has one critic")
        config = as_dataclass(self._configuration, "critic")
        engine = config.engine
        engine.infer_max_token_len_per_gpu = config.ppo_infer_max_token_len_per_gpu
        engine.max_token_len_per_gpu = config.ppo_max_token_len_per_gpu
        engine.use_dynamic_bsz = config.use_dynamic_bsz
        engine.micro_batch_size_per_gpu = config.ppo_micro_batch_size_per_gpu
        engine.infer_micro_batch_size_per_gpu = config.ppo_micro_batch_size_per_gpu
        made = TrainingWorkerConfig(
            model_type="value_model",
            model_config=config.model,
            engine_config=engine,
            optimizer_config=config.optim,
            checkpoint_config=config.checkpoint,
        )
        self._status(message, f"starting {self._actor.size} of verl's workers (critic)")
        group = self._start_group("critic", CriticWorker, made)
        group.call("reset")
        found = group.call("facts")[0]
        if found["data_ranks"] != self._data_ranks:
            group.end()
            raise UserMistake("actor and critic have different ulysses_sequence_parallel_size", "Set both the same.")
        self._critic = group
        return {"policy": _CRITIC, "trainable_parameters": found["trainable"]}, {}

    def _start_group(self, name: str, worker: type, config: Any) -> WorkerGroup:
        return WorkerGroup(name, worker, self._pool, self._logs, config=config, seed=self._seed)

    def _require_ranks(self, folder: Path, size: int) -> None:
        path = folder / "fsdp_config.json"
        saved = json.loads(path.read_text())["world_size"] if path.exists() else None
        if saved is None and not list(folder.glob(f"model_world_size_{size}_rank_*.pt")):
            raise UserMistake(f"{folder} is not a checkpoint of verl")
        if saved not in (None, size):
            raise UserMistake(
                f"{folder} was saved by {saved} ranks, but this run has {size}",
                "Set trainer.nnodes and trainer.n_gpus_per_node as they were.",
            )

    def _status(self, message: Message, text: str) -> None:
        self._channel.send({"id": message.id, "event": "status", "text": text})


def _version_of(folder: Path) -> int:
    """0 for a checkpoint that verl itself wrote."""
    path = folder / "hone.json"
    return json.loads(path.read_text())["version"] if path.exists() else 0


def _at(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree[int(key) if isinstance(tree, list) else key]
    return tree
