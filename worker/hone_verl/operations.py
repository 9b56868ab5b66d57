"""The operations of worker/PROTOCOL.md, executed by verl's workers."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import verl
from hone_worker.channel import Channel, Message
from hone_worker.errors import ProtocolError, UserMistake, first_line
from hone_worker.operations import Answer, Arrays, Ask, Operations
from omegaconf import OmegaConf
from transformers import AutoConfig, GenerationConfig
from verl.single_controller.ray import RayResourcePool
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

from .batches import Batch, distribute
from .cluster import Cluster, WorkerGroup
from .configuration import Configuration, adapt_to_cpu, adapt_to_images, as_dataclass, ranks, read_configuration
from .engine_images import open_vision
from .policies import REFERENCE, Policies, VerlPolicy
from .rollouts import Rollouts, prepare_images, prepare_rollouts
from .workers import LOSS_INPUTS

_ROLLOUT = "actor_rollout_ref.rollout.name"

# Environment variables of Ray's workers.
_ENVIRONMENT = ("PYTHONPATH", "OMP_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE", "HONE_OWNER")
_PLATFORM = ("VERL_PLATFORM", "VERL_USE_EXTERNAL_MODULES")


class DriverOperations(Operations):
    def __init__(self, channel: Channel, cluster: Cluster, device: str, on_death: Callable[[str], None]):
        super().__init__(channel)
        self._cluster = cluster
        self._device = device
        self._on_death = on_death
        self._configuration: Configuration | None = None
        self._pool: RayResourcePool | None = None
        self._rollouts: Rollouts | None = None
        self._batches: dict[int, Batch] = {}
        self._last = 0
        self._native_losses = 0

    def _unsupported(self, op: str) -> Exception:
        return UserMistake(f"verl's backend does not support the operation {op!r}")

    def _load(self, header: dict[str, Any]) -> dict[str, Any]:
        if header.get("gpu", False) and self._device == "cpu":
            raise UserMistake(
                "PyTorch in verl's environment cannot use this machine's GPU",
                "trainer.device=cpu trains on the CPU; HONE_VERL_PYTHON names another environment.",
            )
        configuration = read_configuration(header["config"])
        if self._device == "cpu":
            adapt_to_cpu(configuration)
        configuration.tree.actor_rollout_ref.model.path = header["model"]
        configuration.tree.critic.model.path = header["model"]
        as_dataclass(configuration, "actor_rollout_ref.actor")  # otherwise the workers would refuse it a minute later
        rollouts = header.get("rollouts", False)
        if rollouts:
            prepare_rollouts(configuration)
        nodes, each = ranks(configuration)
        facts = _model_facts(Path(header["model"]), header.get("name", header["model"]), self._device)
        self._vision, images_reason = open_vision(Path(header["model"]))
        if self._vision is not None:
            adapt_to_images(configuration)
            if rollouts:
                prepare_images(configuration)
        self._report("starting Ray" if (header.get("ray") or {}).get("address") is None else "joining Ray")
        logs = header["logs"]
        # Each worker writes its own log file; rollout servers write to the driver's log.
        self._cluster.start(
            {"log_to_driver": rollouts, **(header.get("ray") or {})},
            self._environment(configuration),
            Path(logs) / "ray.log",
            self._on_death,
            self._report,
        )
        self._cluster.require(nodes, each, "cpus" if self._device == "cpu" else "gpus")
        # On a GPU the actor and the critic share each device.
        self._pool = RayResourcePool(
            [each] * nodes, use_gpu=self._device != "cpu", max_colocate_count=1 if self._device == "cpu" else 2
        )
        self._report(f"starting {nodes * each} of verl's workers (actor)")
        role = "actor_rollout" if rollouts and configuration.get("actor_rollout_ref.hybrid_engine") else "actor"
        self._policies = Policies(
            configuration,
            self._pool,
            logs,
            role,
            reads_images=self._vision is not None,
            report=self._report,
        )
        self._configuration = configuration
        found = self._policies.actor.call("facts")
        images = {"images": self._vision and self._vision.info(), "images_reason": images_reason}
        return {
            "model": {**facts, "parameters": found[0]["parameters"], "dtype": found[0]["dtype"], **images},
            "versions": {"verl": verl.__version__, "ray": ray.__version__},
            "device": self._device,
            "ranks": len(found),
            "workers": self._policies.actor.processes,
            "nodes": self._cluster.nodes(),
            "filled": configuration.filled,
            "adapted": configuration.adapted,
        }

    def on_open_rollouts(self, message: Message) -> Answer:
        """Starts verl's rollout servers for a driver that was loaded with `rollouts`."""
        self._report(f"starting verl's rollout servers ({self._configuration.get(_ROLLOUT)})")
        self._rollouts = Rollouts(self._configuration, self._policies.actor, self._pool, self._on_death)
        return {"addresses": self._rollouts.addresses}, {}

    def on_abort_rollouts(self, _: Message) -> Answer:
        self._rollouts.abort()
        return {}, {}

    def on_sleep_rollouts(self, _: Message) -> Answer:
        self._rollouts.sleep()
        return {}, {}

    def on_update_rollouts(self, message: Message) -> Answer:
        self._rollouts.update(message.header["version"])
        return {}, {}

    def on_stage(self, message: Message) -> Answer:
        return {"batch": self._stage(message)}, {}

    def on_unstage(self, message: Message) -> Answer:
        self._unstage(message.header["batch"])
        return {}, {}

    def on_forward_backward(self, message: Message) -> Answer:
        if "loss" not in message.header:
            return super().on_forward_backward(message)
        policy = self._trained(message)
        with self._sequences(message) as number:
            return {}, self._native(message, policy.group, number)

    def on_readback(self, message: Message) -> Answer:
        """Configuration values by path: read from a worker for the workers' sections, else from this process."""
        tree = OmegaConf.to_container(self._configuration.tree, resolve=True)
        held = {"worker": {}, "driver": tree}
        for group in self._policies.groups:
            held["worker"] |= group.call("held")[0]
        values, missing, where = {}, [], {}
        for path in message.header["paths"]:
            for process in ("worker", "driver"):
                try:
                    values[path] = _at(held[process], path)
                except (KeyError, TypeError):
                    continue
                where[path] = process
                break
            else:
                missing.append(path)
        return {"values": values, "missing": missing, "held": where}, {}

    def _stats(self) -> dict[str, float]:
        stats: dict[str, float] = {"train/native_losses": self._native_losses}
        for group in self._policies.groups if self._policies else []:
            stats[f"seconds/verl_{group.name}"] = max(group.call("seconds"))
            for rank, memory in enumerate(group.call("memory")):
                stats |= {f"memory/{group.name}_{rank}_{name}_bytes": value for name, value in memory.items()}
        return stats

    def _environment(self, configuration: Configuration) -> dict[str, str]:
        names = (*_ENVIRONMENT, *(_PLATFORM if self._device == "cpu" else ()))
        own = {name: os.environ[name] for name in names if name in os.environ}
        if self._device == "cpu":
            return own
        # With this variable, SGLang reports the model's own log-probabilities.
        raw = {"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"}
        return {**get_ppo_ray_runtime_env(configuration.tree)["env_vars"], **raw, **own}

    @contextmanager
    def _sequences(self, message: Message) -> Iterator[int]:
        """The staged batch that the message names, or a temporary batch from its arrays."""
        number = message.header.get("batch")
        if number is not None:
            if number not in self._batches:
                raise ProtocolError(f"batch {number} is not staged")
            yield number
            return
        number = self._stage(message)
        try:
            yield number
        finally:
            self._unstage(number)

    def _forward(self, policy: VerlPolicy, number: int, outputs: list[str]) -> Arrays:
        """Takes the outputs from the batch if the weights have not changed."""
        if policy.is_critic and outputs != ["values"]:
            raise UserMistake("a critic computes only values", "request them alone")
        batch, group = self._batches[number], policy.group
        known = batch.outputs(policy.number, policy.revision)
        unknown = [name for name in outputs if name not in known]
        if unknown:
            self._stage_at(group, number)
            reference = self._policies.reference() if policy.number == REFERENCE else None
            parts = [part for part in group.call("outputs", number, unknown, reference) if part is not None]
            known |= batch.gather(parts, unknown)
        return {name: known[name] for name in outputs}

    def _forward_backward(self, policy: VerlPolicy, number: int, outputs: list[str], ask: Ask) -> None:
        """The whole batch is one micro-batch of the protocol."""
        batch = self._batches[number]
        values = {name: torch.from_numpy(found) for name, found in self._forward(policy, number, outputs).items()}
        asked = ask(values, {"sequences": np.arange(batch.sequences, dtype=np.int32)})
        gradient = {name: each.numpy() for name, each in asked.items()}
        if any(np.any(each != 0) for each in gradient.values()):  # also true for NaN
            self._stage_at(policy.group, number)
            policy.group.call_each("backward", batch.scatter(gradient), number)

    def _native(self, message: Message, group: WorkerGroup, number: int) -> Arrays:
        """Runs a loss that verl computes, in one pass. Returns the log-probabilities."""
        self._native_losses += 1
        batch, loss = self._batches[number], message.header["loss"]
        self._stage_at(group, number)
        inputs = {name: message.arrays[name] for name in LOSS_INPUTS if name in message.arrays}
        parts = group.call_each("native_backward", batch.scatter(inputs), number, loss["name"], loss["settings"])
        return batch.gather([part for part in parts if part is not None], ["logprobs"])

    def _stage(self, message: Message) -> int:
        pictures = self._pictures(message)
        self._last += 1
        self._batches[self._last] = distribute(
            message.arrays, self._policies.data_ranks, self._multiple(), self._vision, pictures
        )
        return self._last

    def _unstage(self, number: int) -> None:
        batch = self._batches.pop(number, None)
        for group in self._policies.groups:
            if batch is not None and group.name in batch.staged:
                group.call("unstage", number)

    def _stage_at(self, group: WorkerGroup, number: int) -> None:
        """Sends a batch to a group of workers when the group first needs it."""
        batch = self._batches[number]
        if group.name not in batch.staged:
            group.call_each("stage", batch.shards, number)
            batch.staged.add(group.name)

    def _multiple(self) -> int:
        """A rank's number of sequences must be a multiple of this, because verl's micro-batches have a fixed number
        of sequences, unless they are formed by tokens."""
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


def _model_facts(folder: Path, name: str, device: str) -> dict[str, Any]:
    """ModelInfo of the engine interface, in snake_case, without what the workers know."""
    if not (folder / "config.json").exists():
        raise UserMistake(f"{name}: {folder} has no config.json, so it is not a model")
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise UserMistake(f"{name} is not a model that verl's transformers can load: {first_line(error)}") from error
    text = config.get_text_config()
    ends = getattr(config, "eos_token_id", None) or text.eos_token_id
    if (folder / "generation_config.json").exists():
        ends = GenerationConfig.from_pretrained(folder).eos_token_id or ends
    return {
        "name": name,
        "directory": str(folder),
        "architecture": (config.architectures or [type(config).__name__])[0],
        "vocabulary_size": text.vocab_size,
        "max_length": text.max_position_embeddings,
        "eos_token_ids": ends if isinstance(ends, list) else [] if ends is None else [ends],
        "device": device,
        "attention": "padded",
        "attention_reason": "verl's engines compute it",
    }


def _at(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree[int(key) if isinstance(tree, list) else key]
    return tree
