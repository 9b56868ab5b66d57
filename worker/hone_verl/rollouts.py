"""verl's rollout servers. They sample over HTTP, and verl's checkpoint engine sends them the actor's weights."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from hone_worker.errors import RunFailure, UserMistake, first_line
from ray.exceptions import RayError, RayTaskError
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import RayResourcePool
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import RolloutReplicaRegistry

from .cluster import WorkerGroup
from .configuration import Configuration, as_dataclass
from .watch import watched

_SECTION = "actor_rollout_ref.rollout"


class Rollouts:
    """Servers on the GPUs of the actor's workers, or with `hybrid_engine=false` on separate GPUs. Servers that share
    GPUs start asleep and answer only after the first `update`. `on_death` gets a message if an update does not end,
    because a server ended or does not answer."""

    def __init__(
        self, configuration: Configuration, actor: WorkerGroup, pool: RayResourcePool, on_death: Callable[[str], None]
    ):
        self._actor = actor
        self._on_death = on_death
        self._limit = configuration.get("actor_rollout_ref.nccl_timeout")
        # SGLang also answers 503 while it cannot sample.
        self._broken = () if configuration.get(f"{_SECTION}.name") == "sglang" else (500, 503)
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
        """`host:port` of each server."""
        return self._servers.get_addresses()

    def abort(self) -> None:
        """Ends all running requests; each returns the tokens that it has. New requests wait for the next `update`."""
        with self._explained("did not stop sampling"):
            self._weights.abort_replicas()

    def sleep(self) -> None:
        """Frees the memory of servers that share GPUs with the workers. Ends running requests like `abort`."""
        if not self._hybrid or self._asleep:
            return
        self.abort()
        with self._explained("did not free their memory"):
            self._weights.sleep_replicas()
        self._asleep = True

    def update(self, version: int) -> None:
        """Sends the actor's weights to the servers. No request runs during the update."""
        self.sleep()
        watch = watched(self.addresses, self._broken, version, self._limit, self._on_death)
        with self._explained(f"did not get version {version} of the weights"), watch:
            self._weights.update_weights(version)
            self._weights.resume_generation_replicas()
        self._asleep = False

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except RayError as error:
            self._actor.call("process")  # reports a dead worker, which would be the real cause
            cause = error.cause if isinstance(error, RayTaskError) else error
            raise RunFailure(
                f"verl's rollout servers {what}: {first_line(cause)}; worker.log in the run folder has their output"
            ) from error


def prepare_rollouts(configuration: Configuration) -> None:
    """Checks and adapts the servers' settings before anything is started."""
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
        merge, reason = "actor_rollout_ref.model.lora.merge", "a request over HTTP cannot select verl's adapter"
        configuration.set(merge, True, reason)
    if name == "sglang":
        configuration.set(f"{_SECTION}.skip_tokenizer_init", False, "stop strings need the server's tokenizer")


def prepare_images(configuration: Configuration) -> None:
    """For a model that reads images. TypeScript refuses images for SGLang."""
    if configuration.get(f"{_SECTION}.name") != "sglang":
        route, reason = "hone_verl.image_route.ImageRoute", "vLLM 0.24 does not read images in requests with token ids"
        configuration.set(f"{_SECTION}.engine_kwargs.vllm.middleware", route, reason)
