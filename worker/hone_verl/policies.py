"""The policies of verl's workers: an actor, its reference and a critic. A closed policy can be opened again."""

import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any

from hone_worker.errors import UserMistake
from hone_worker.folders import write_folder, write_json
from hone_worker.policies.adamw import AdamSettings
from hone_worker.policies.interface import PolicyInterface, PolicyTable, StepTaken
from verl.single_controller.ray import RayResourcePool
from verl.workers.engine_workers import TrainingWorkerConfig

from .cluster import WorkerGroup
from .configuration import Configuration, as_dataclass
from .workers import CriticWorker, PolicyWorker

ACTOR, REFERENCE, CRITIC = 1, 2, 3
_MODEL = "actor_rollout_ref.model"
_revisions = count()


class VerlPolicy(PolicyInterface):
    """`number` is the same each time that the policy is opened. `group`: the workers that compute it."""

    def __init__(self, number: int, adapter: dict[str, Any], group: WorkerGroup, trainable_parameters: int):
        super().__init__(adapter)
        self.number, self.group = number, group
        self.is_critic = number == CRITIC
        self.trainable_parameters = trainable_parameters
        self.revision = next(_revisions)
        """Identifies the current weights."""

    def zero_grad(self) -> None:
        self.group.call("zero_grad")

    def optim_step(self, settings: AdamSettings) -> StepTaken:
        norm = self.group.call("step", asdict(settings))[0]
        self.revision = next(_revisions)
        return StepTaken(norm, isfinite(norm), None)

    def save_state(self, directory: Path, optimizer: bool = True) -> None:
        """Writes verl's checkpoint, with hone.json."""

        def fill(folder: Path) -> None:
            self.group.call("save", str(folder), optimizer)
            state = {"version": self.version, "ranks": self.group.size, "role": self.group.name}
            write_json(folder / "hone.json", state)

        write_folder(directory, fill)

    def load_state(self, directory: Path, optimizer: bool) -> None:
        """Also loads a checkpoint that verl itself wrote."""
        _require_loadable(directory, self.group.size, self.group.name)
        self.group.call("load", str(directory), optimizer)
        self.revision = next(_revisions)
        self.version = _saved_version(directory)

    def write_export(self, directory: Path, form: str) -> None:
        if self.number != ACTOR:
            raise UserMistake("only the trained policy can be exported")
        write_folder(directory, lambda folder: self.group.call("export", str(folder), form))


class Policies(PolicyTable[VerlPolicy]):
    """`role`: verl's name for the actor's workers. `report` gets messages about slow operations. The actor's
    workers start immediately, the critic's workers when it is first opened."""

    def __init__(
        self,
        configuration: Configuration,
        pool: RayResourcePool,
        logs: str,
        role: str,
        reads_images: bool,
        report: Callable[[str], None],
    ):
        super().__init__()
        self._configuration = configuration
        self._reads_images = reads_images
        self._report = report
        self._pool = pool
        self._logs = logs
        self._seed = configuration.get("actor_rollout_ref.actor.data_loader_seed") or 0
        tree = configuration.tree
        self.actor = self._start("actor", PolicyWorker, config=tree.actor_rollout_ref, role=role)
        self.critic: WorkerGroup | None = None
        report("loading the model into verl's workers")
        self.actor.call("init_model")
        # The specification that the untrained actor was built with; None after training.
        self._fresh: dict[str, Any] | None = self._adapter()
        self.data_ranks = self.actor.call("facts")[0]["data_ranks"]

    @property
    def groups(self) -> list[WorkerGroup]:
        return [group for group in (self.actor, self.critic) if group is not None]

    def reference(self) -> str:
        """`adapter` if the reference is the actor without its adapter, `model` if it is a separate model."""
        if self._configuration.get(f"{_MODEL}.lora_rank"):
            return "adapter"
        self.actor.call("add_reference")
        return "model"

    def close(self, number: int) -> None:
        if number == REFERENCE:
            return  # it may have been created several times, and frees nothing
        super().close(number)
        if number == ACTOR:
            self._fresh = None

    def _number(self, policy: VerlPolicy) -> int:
        return policy.number

    def _make(self, adapter: dict[str, Any], head: str | None) -> VerlPolicy:
        if adapter.get("train_vision"):
            raise UserMistake("verl's workers do not train the vision part", "Set model.train_vision=false.")
        if adapter["kind"] == "none":
            return VerlPolicy(REFERENCE, adapter, self.actor, 0)
        number = CRITIC if head == "value" else ACTOR
        if number in self._open:
            what = "critic" if number == CRITIC else "trained policy"
            raise UserMistake(f"verl's backend supports one {what} at a time", "Close the other first.")
        if number == ACTOR:
            return VerlPolicy(ACTOR, adapter, self.actor, self._open_actor(adapter))
        trainable = self._open_critic()
        return VerlPolicy(CRITIC, adapter, self.critic, trainable)

    def _open_actor(self, adapter: dict[str, Any]) -> int:
        wanted = {"lora_rank": adapter.get("rank", 0)}
        if adapter["kind"] == "lora":
            wanted["lora_alpha"] = adapter["alpha"]
            linear = sorted(adapter["targets"]) == ["attn", "mlp"]
            if self._configuration.get(f"{_MODEL}.target_modules") == "all-linear" and not linear:
                raise UserMistake(
                    f"{_MODEL}.target_modules=all-linear, but the policy adapts {', '.join(adapter['targets'])}",
                    "Set both the same.",
                )
        if self._fresh is None or any(self._fresh[name] != value for name, value in wanted.items()):
            for name, value in wanted.items():
                self._configuration.tree.actor_rollout_ref.model[name] = value
            self.actor.call("restart", wanted, self._seed)
        return self.actor.call("facts")[0]["trainable"]

    def _adapter(self) -> dict[str, Any]:
        return {name: self._configuration.get(f"{_MODEL}.{name}") for name in ("lora_rank", "lora_alpha")}

    def _open_critic(self) -> int:
        """verl's section `critic.model` determines whether the critic trains an adapter."""
        if self._reads_images:
            raise UserMistake("verl has no critic for a model that reads images", "Use an estimator without a critic.")
        if self.critic is None:
            self._report(f"starting {self.actor.size} of verl's workers (critic)")
            self.critic = self._start("critic", CriticWorker, config=self._critic_config())
        self.critic.call("restart", self._seed)
        found = self.critic.call("facts")[0]
        if found["data_ranks"] != self.data_ranks:
            raise UserMistake("actor and critic have different values of ulysses_sequence_parallel_size", "Set both to the same value.")
        return found["trainable"]

    def _critic_config(self) -> TrainingWorkerConfig:
        config = as_dataclass(self._configuration, "critic")
        engine = config.engine
        engine.infer_max_token_len_per_gpu = config.ppo_infer_max_token_len_per_gpu
        engine.max_token_len_per_gpu = config.ppo_max_token_len_per_gpu
        engine.use_dynamic_bsz = config.use_dynamic_bsz
        engine.micro_batch_size_per_gpu = config.ppo_micro_batch_size_per_gpu
        engine.infer_micro_batch_size_per_gpu = config.ppo_micro_batch_size_per_gpu
        return TrainingWorkerConfig(
            model_type="value_model",
            model_config=config.model,
            engine_config=engine,
            optimizer_config=config.optim,
            checkpoint_config=config.checkpoint,
        )

    def _start(self, name: str, worker: type, **arguments: Any) -> WorkerGroup:
        return WorkerGroup(name, worker, self._pool, self._logs, seed=self._seed, **arguments)


def _require_loadable(folder: Path, ranks: int, role: str) -> None:
    """Raises UserMistake for a checkpoint with which verl would fail during loading."""
    path = folder / "fsdp_config.json"
    saved = json.loads(path.read_text())["world_size"] if path.exists() else None
    if saved is None and not list(folder.glob(f"model_world_size_{ranks}_rank_*.pt")):
        raise UserMistake(f"{folder} is not a checkpoint of verl")
    if saved not in (None, ranks):
        raise UserMistake(
            f"{folder} was saved by {saved} ranks, but this run has {ranks}",
            "Set trainer.nnodes and trainer.n_gpus_per_node to the values of the saved run.",
        )
    of = _hone_json(folder).get("role", role)
    if of != role:
        raise UserMistake(f"{folder} is the state of verl's {of}, not of verl's {role}")


def _saved_version(folder: Path) -> int:
    """0 for a checkpoint that verl itself wrote."""
    return _hone_json(folder).get("version", 0)


def _hone_json(folder: Path) -> dict[str, Any]:
    path = folder / "hone.json"
    return json.loads(path.read_text()) if path.exists() else {}
