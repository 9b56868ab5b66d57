"""The policies of verl's workers: an actor, its reference and a critic. A closed policy can be opened again."""

from collections.abc import Callable
from typing import Any

from hone_worker.errors import UserMistake
from hone_worker.messages import ProtocolError
from verl.single_controller.ray import RayResourcePool
from verl.workers.engine_workers import TrainingWorkerConfig

from .configuration import Configuration, as_dataclass
from .group import WorkerGroup
from .workers import CriticWorker, PolicyWorker

ACTOR, REFERENCE, CRITIC = 1, 2, 3
_MODEL = "actor_rollout_ref.model"


class Policies:
    """`role`: verl's name for the actor's workers. `status` gets messages about slow operations. The actor's
    workers start immediately, the critic's workers when it is first opened."""

    def __init__(
        self,
        configuration: Configuration,
        pool: RayResourcePool,
        logs: str,
        role: str,
        reads_images: bool,
        status: Callable[[str], None],
    ):
        self._configuration = configuration
        self._reads_images = reads_images
        self._pool = pool
        self._logs = logs
        self._open: set[int] = set()
        self._seed = configuration.get("actor_rollout_ref.actor.data_loader_seed") or 0
        tree = configuration.tree
        self.actor = self._start("actor", PolicyWorker, config=tree.actor_rollout_ref, role=role)
        self.critic: WorkerGroup | None = None
        status("loading the model into verl's workers")
        self.actor.call("init_model")
        # The specification that the untrained actor was built with; None after training.
        self._fresh: dict[str, Any] | None = self._adapter()
        self.data_ranks = self.actor.call("facts")[0]["data_ranks"]

    @property
    def groups(self) -> list[WorkerGroup]:
        return [group for group in (self.actor, self.critic) if group is not None]

    @property
    def lora_rank(self) -> int:
        return self._configuration.get(f"{_MODEL}.lora_rank")

    def group(self, policy: int) -> WorkerGroup:
        group = self.critic if policy == CRITIC else self.actor
        if group is None:
            raise ProtocolError(f"policy {policy} does not exist")
        return group

    def trained(self, policy: int) -> WorkerGroup:
        if policy == REFERENCE:
            raise UserMistake("the reference is not trained")
        return self.group(policy)

    def reference(self) -> str:
        """`adapter` if the reference is the actor without its adapter, `model` if it is a separate model."""
        if self.lora_rank:
            return "adapter"
        self.actor.call("add_reference")
        return "model"

    def open(self, spec: dict[str, Any], status: Callable[[str], None]) -> tuple[int, int]:
        """Returns the number of the policy and the number of its trainable parameters."""
        kind, head = spec["adapter"]["kind"], spec.get("head")
        if spec["adapter"].get("train_vision"):
            raise UserMistake("verl's workers do not train the vision part", "Set model.train_vision=false.")
        if head == "value":
            policy, opened = CRITIC, lambda: self._open_critic(kind, status)
        elif kind == "none":
            policy, opened = REFERENCE, lambda: 0
        else:
            policy, opened = ACTOR, lambda: self._open_actor(spec["adapter"])
        if policy != REFERENCE and policy in self._open:
            kind = "critic" if head else "trained policy"
            raise UserMistake(f"verl's backend supports one {kind} at a time", "Close the other first.")
        trainable = opened()
        self._open.add(policy)
        return policy, trainable

    def close(self, policy: int) -> None:
        self._open.discard(policy)
        if policy == ACTOR:
            self._fresh = None

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

    def _open_critic(self, kind: str, status: Callable[[str], None]) -> int:
        """verl's section `critic.model` determines whether the critic trains an adapter."""
        if kind == "none":
            raise UserMistake("a policy with a value head must be trained", "Use an adapter or full weights.")
        if self._reads_images:
            raise UserMistake("verl has no critic for a model that reads images", "Use an estimator without a critic.")
        if self.critic is None:
            status(f"starting {self.actor.size} of verl's workers (critic)")
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
