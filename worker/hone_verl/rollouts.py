"""verl's rollout servers: they sample over HTTP and get weights from the actor's workers by verl's checkpoint engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from hone_worker.errors import RunFailure, UserMistake, first_line
from ray.exceptions import RayError, RayTaskError
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import RayResourcePool
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import RolloutReplicaRegistry

from .configuration import Configuration, as_dataclass
from .group import WorkerGroup

_SECTION = "actor_rollout_ref.rollout"


class Rollouts:
    """Servers in the places of the actor's workers, or with `hybrid_engine=false` on GPUs of their own. The former
    begin asleep: they answer after the first `update`."""

    def __init__(self, configuration: Configuration, actor: WorkerGroup, pool: RayResourcePool):
        self._actor = actor
        self._hybrid = configuration.get("actor_rollout_ref.hybrid_engine")
        self._asleep = False
        with self._explained("did not start"):
            self._servers = LLMServerManager.create(
                config=configuration.tree,
                worker_group=actor.group if self._hybrid else None,
                rollout_resource_pool=pool,
            )
        self._weights = CheckpointEngineManager(
            config=as_dataclass(configuration, f"{_SECTION}.checkpoint_engine"),
            actor_wg=actor.group,
            replicas=self._servers.get_replicas(),
        )
        self.sleep()

    @property
    def addresses(self) -> list[str]:
        """`host:port` of each."""
        return self._servers.get_addresses()

    def abort(self) -> None:
        """Ends all requests; each is answered with what it has. Later ones wait until the next `update`."""
        with self._explained("did not stop sampling"):
            self._weights.abort_replicas()

    def sleep(self) -> None:
        """Frees the memory of servers that share the workers' GPUs. Requests end as by `abort`."""
        if not self._hybrid or self._asleep:
            return
        self.abort()
        with self._explained("did not free their memory"):
            self._weights.sleep_replicas()
        self._asleep = True

    def update(self, version: int) -> None:
        """Gives the servers the actor's weights. No request continues with other weights than it began with."""
        self.sleep()
        with self._explained(f"did not get version {version} of the weights"):
            self._weights.update_weights(version)
            self._weights.resume_generation_replicas()
        self._asleep = False

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except RayError as error:
            self._actor.call("process")  # if one of them died, that is the reason
            cause = error.cause if isinstance(error, RayTaskError) else error
            raise RunFailure(
                f"verl's rollout servers {what}: {first_line(cause)}; worker.log in the run folder has their output"
            ) from error


def prepare_rollouts(configuration: Configuration) -> None:
    """Checks and adapts the settings of the servers before anything starts."""
    as_dataclass(configuration, "actor_rollout_ref.model")  # imports its external_lib, which may register servers
    name = configuration.get(f"{_SECTION}.name")
    try:
        if name in ("vllm", "sglang") and find_spec(name) is None:
            raise UserMistake(
                f"{_SECTION}.name={name}: {name} is not installed in verl's environment",
                "Name an environment that has it in HONE_VERL_PYTHON.",
            )
        if name not in ("vllm", "sglang"):
            RolloutReplicaRegistry.get(name)
    except ValueError as error:
        raise UserMistake(f"{_SECTION}.name: {first_line(error)}") from error
    as_dataclass(configuration, _SECTION)
    if configuration.get("actor_rollout_ref.model.lora_rank"):
        merge, reason = "actor_rollout_ref.model.lora.merge", "a server's HTTP routes cannot choose verl's adapter"
        configuration.set(merge, True, reason)
    if name == "sglang":
        configuration.set(f"{_SECTION}.skip_tokenizer_init", False, "stop strings need the server's tokenizer")
