"""The operations of worker/PROTOCOL.md, executed by verl's workers."""

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
from hone_worker.images.media import Media
from hone_worker.images.vision import Vision
from hone_worker.messages import Cancelled, ProtocolError, ask_gradient, outputs_of
from omegaconf import OmegaConf
from verl.single_controller.ray import RayResourcePool
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

from .batches import Batch, deal
from .checkpoints import require_loadable, version_of
from .cluster import Cluster
from .configuration import Configuration, adapt_to_images, as_dataclass, ranks, read_configuration
from .group import WorkerGroup
from .images import open_vision
from .model_facts import model_facts
from .policies import ACTOR, CRITIC, REFERENCE, Policies
from .rollouts import Rollouts, prepare_images, prepare_rollouts
from .workers import LOSS_INPUTS

Answer = tuple[dict[str, Any], dict[str, np.ndarray]]

_ROLLOUT = "actor_rollout_ref.rollout.name"

# Environment variables of Ray's workers.
_ENVIRONMENT = ("PYTHONPATH", "OMP_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE", "HONE_OWNER")
_PLATFORM = ("VERL_PLATFORM", "VERL_USE_EXTERNAL_MODULES")


class Operations:
    """`run(message)` returns the fields and arrays of the answer. `on_NAME` executes the operation NAME."""

    def __init__(self, channel: Channel, cluster: Cluster, device: str, on_death: Callable[[str], None]):
        self._channel = channel
        self._cluster = cluster
        self._device = device
        self._on_death = on_death
        self._configuration: Configuration | None = None
        self._policies: Policies | None = None
        self._pool: RayResourcePool | None = None
        self._rollouts: Rollouts | None = None
        self._vision: Vision | None = None
        self._media = Media()
        self._batches: dict[int, Batch] = {}
        self._last = 0
        self._versions = {ACTOR: 0, CRITIC: 0}
        self._seconds: Counter[str] = Counter()
        self._native_losses = 0

    def run(self, message: Message) -> Answer:
        operation = getattr(self, f"on_{message.op}", None)
        if operation is None:
            raise UserMistake(f"verl's backend does not support the operation {message.op!r}")
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
        if header.get("gpu", False) and self._device == "cpu":
            raise UserMistake(
                "PyTorch in verl's environment cannot use this machine's GPU",
                "trainer.device=cpu trains on the CPU; HONE_VERL_PYTHON names another environment.",
            )
        configuration = read_configuration(header["config"], self._device)
        configuration.tree.actor_rollout_ref.model.path = header["model"]
        configuration.tree.critic.model.path = header["model"]
        as_dataclass(configuration, "actor_rollout_ref.actor")  # otherwise the workers would refuse it a minute later
        rollouts = header.get("rollouts", False)
        if rollouts:
            prepare_rollouts(configuration)
        nodes, each = ranks(configuration)
        facts = model_facts(Path(header["model"]), header.get("name", header["model"]), self._device)
        self._vision, images_reason = open_vision(Path(header["model"]))
        if self._vision is not None:
            adapt_to_images(configuration)
            if rollouts:
                prepare_images(configuration)
        self._status(message, "starting Ray" if (header.get("ray") or {}).get("address") is None else "joining Ray")
        logs = header["logs"]
        # Each worker writes its own log file; rollout servers write to the driver's log.
        self._cluster.start(
            {"log_to_driver": rollouts, **(header.get("ray") or {})},
            self._environment(configuration),
            Path(logs) / "ray.log",
            self._on_death,
            lambda text: self._status(message, text),
        )
        self._cluster.require(nodes, each, "cpus" if self._device == "cpu" else "gpus")
        # On a GPU the actor and the critic share each device.
        self._pool = RayResourcePool(
            [each] * nodes, use_gpu=self._device != "cpu", max_colocate_count=1 if self._device == "cpu" else 2
        )
        self._status(message, f"starting {nodes * each} of verl's workers (actor)")
        role = "actor_rollout" if rollouts and configuration.get("actor_rollout_ref.hybrid_engine") else "actor"
        self._policies = Policies(
            configuration,
            self._pool,
            logs,
            role,
            reads_images=self._vision is not None,
            status=lambda text: self._status(message, text),
        )
        self._configuration = configuration
        found = self._policies.actor.call("facts")
        versions = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "verl": verl.__version__,
            "ray": ray.__version__,
        }
        images = {"images": self._vision and self._vision.info(), "images_reason": images_reason}
        return {
            "model": {**facts, "parameters": found[0]["parameters"], "dtype": found[0]["dtype"], **images},
            "versions": versions,
            "device": self._device,
            "ranks": len(found),
            "workers": self._policies.actor.processes,
            "nodes": self._cluster.nodes(),
            "filled": configuration.filled,
            "adapted": configuration.adapted,
        }, {}

    def on_open_rollouts(self, message: Message) -> Answer:
        """Starts verl's rollout servers for a driver that was loaded with `rollouts`."""
        self._status(message, f"starting verl's rollout servers ({self._configuration.get(_ROLLOUT)})")
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

    def on_create_policy(self, message: Message) -> Answer:
        policy, trainable = self._policies.open(message.header, lambda text: self._status(message, text))
        self._forget(policy)
        self._versions[policy] = 0
        return {"policy": policy, "trainable_parameters": trainable}, {}

    def on_close_policy(self, message: Message) -> Answer:
        self._policies.close(message.header["policy"])
        return {}, {}

    def on_put_media(self, message: Message) -> Answer:
        return self._media.put(message, self._seeing())

    def on_stage(self, message: Message) -> Answer:
        return {"batch": self._stage(message)}, {}

    def on_unstage(self, message: Message) -> Answer:
        self._unstage(message.header["batch"])
        return {}, {}

    def on_forward(self, message: Message) -> Answer:
        return {}, self._with_batch(message, lambda number: self._outputs(message, number))

    def on_forward_backward(self, message: Message) -> Answer:
        self._trained(message)
        if "loss" in message.header:
            return {}, self._with_batch(message, lambda number: self._native(message, number))
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
        return {"grad_norm": norm, "applied": bool(np.isfinite(norm))}, {}

    def on_publish(self, message: Message) -> Answer:
        policy = message.header["policy"]
        self._versions[policy] += 1
        return {"version": self._versions[policy]}, {}

    def on_save_state(self, message: Message) -> Answer:
        header, group = message.header, self._trained(message)
        state = {"version": self._versions[header["policy"]], "ranks": group.size, "role": group.name}

        def fill(folder: Path) -> None:
            group.call("save", str(folder), bool(header.get("optimizer", True)))
            write_json(folder / "hone.json", state)

        write_folder(Path(header["dir"]), fill)
        return {}, {}

    def on_load_state(self, message: Message) -> Answer:
        header, group = message.header, self._trained(message)
        folder = Path(header["dir"])
        require_loadable(folder, group.size, group.name)
        group.call("load", str(folder), bool(header["optimizer"]))
        self._forget(header["policy"])
        self._versions[header["policy"]] = version_of(folder)
        return {"version": self._versions[header["policy"]]}, {}

    def on_export(self, message: Message) -> Answer:
        header = message.header
        if header["policy"] != ACTOR:
            raise UserMistake("only the trained policy can be exported")
        if header["as"] == "adapter" and not self._policies.lora_rank:
            raise UserMistake("this policy has no adapter", 'export it as "merged"')
        write_folder(Path(header["dir"]), lambda folder: self._policies.actor.call("export", str(folder), header["as"]))
        return {}, {}

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

    def on_stats(self, _: Message) -> Answer:
        stats = {f"seconds/{op}": seconds for op, seconds in self._seconds.items()}
        stats["train/native_losses"] = self._native_losses
        for group in self._policies.groups if self._policies else []:
            stats[f"seconds/verl_{group.name}"] = max(group.call("seconds"))
            for rank, memory in enumerate(group.call("memory")):
                stats |= {f"memory/{group.name}_{rank}_{name}_bytes": value for name, value in memory.items()}
        return {"stats": stats}, {}

    def _environment(self, configuration: Configuration) -> dict[str, str]:
        names = (*_ENVIRONMENT, *(_PLATFORM if self._device == "cpu" else ()))
        own = {name: os.environ[name] for name in names if name in os.environ}
        if self._device == "cpu":
            return own
        # With this variable, SGLang reports the model's own log-probabilities.
        raw = {"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"}
        return {**get_ppo_ray_runtime_env(configuration.tree)["env_vars"], **raw, **own}

    def _exchange(self, message: Message, number: int) -> None:
        """Sends the outputs of the whole batch to Hone, and back-propagates the gradient that Hone returns."""
        batch, outputs = self._batches[number], self._outputs(message, number, with_gradient=True)
        sent = {name: torch.from_numpy(values) for name, values in outputs.items()}
        begin = time.perf_counter()
        found = ask_gradient(
            self._channel, message.id, sent, {"sequences": np.arange(batch.sequences, dtype=np.int32)}
        )
        self._seconds["gradient_wait"] += time.perf_counter() - begin
        gradient = {name: values.numpy() for name, values in found.items()}
        if any(np.any(values != 0) for values in gradient.values()):  # also true for NaN
            group = self._trained(message)
            self._stage_at(group, number)
            group.call_each("backward", batch.scatter(gradient), number)

    def _native(self, message: Message, number: int) -> dict[str, np.ndarray]:
        """Runs a loss that verl computes, in one pass. Returns the log-probabilities."""
        self._native_losses += 1
        batch, group, loss = self._batches[number], self._trained(message), message.header["loss"]
        self._stage_at(group, number)
        inputs = {name: message.arrays[name] for name in LOSS_INPUTS if name in message.arrays}
        parts = group.call_each("native_backward", batch.scatter(inputs), number, loss["name"], loss["settings"])
        return batch.gather([part for part in parts if part is not None], ["logprobs"])

    def _outputs(self, message: Message, number: int, with_gradient: bool = False) -> dict[str, np.ndarray]:
        """The outputs, from the cache if the weights have not changed."""
        policy = message.header["policy"]
        names = outputs_of(message, policy == CRITIC, with_gradient)
        if policy == CRITIC and names != ["values"]:
            raise UserMistake("a critic computes only values", "request them alone")
        batch, group = self._batches[number], self._policies.group(policy)
        unknown = [name for name in names if (policy, name) not in batch.outputs]
        if unknown:
            self._stage_at(group, number)
            reference = self._policies.reference() if policy == REFERENCE else None
            parts = [part for part in group.call("outputs", number, unknown, reference) if part is not None]
            found = batch.gather(parts, unknown)
            batch.outputs |= {(policy, name): found[name] for name in unknown}
        return {name: batch.outputs[policy, name] for name in names}

    def _with_batch(self, message: Message, use: Callable[[int], Any]) -> Any:
        """Calls `use` with the staged batch that the message names, or with a temporary batch from its arrays."""
        number = message.header.get("batch")
        if number is not None:
            if number not in self._batches:
                raise ProtocolError(f"batch {number} is not staged")
            return use(number)
        number = self._stage(message)
        try:
            return use(number)
        finally:
            self._unstage(number)

    def _stage(self, message: Message) -> int:
        if message.header.get("media"):
            self._seeing()
        pictures = self._media.pictures(message)
        self._last += 1
        self._batches[self._last] = deal(
            message.arrays, self._policies.data_ranks, self._multiple(), self._vision, pictures
        )
        return self._last

    def _seeing(self) -> Vision:
        if self._vision is None:
            raise UserMistake("this model reads only text", "Use a model with a vision part.")
        return self._vision

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

    def _forget(self, policy: int) -> None:
        for batch in self._batches.values():
            batch.outputs = {key: value for key, value in batch.outputs.items() if key[0] != policy}

    def _trained(self, message: Message) -> WorkerGroup:
        return self._policies.trained(message.header["policy"])

    def _status(self, message: Message, text: str) -> None:
        self._channel.send({"id": message.id, "event": "status", "text": text})


def _at(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree[int(key) if isinstance(tree, list) else key]
    return tree
