"""The Ray cluster that this process starts or joins, and a group of verl's workers on it, one per rank. A message about the death of one
of them has the end of its log."""

import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from hone_worker.errors import RunFailure, UserMistake, first_line
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.device import get_device_name

from .ray_process import RayProcess, end_of

_OBJECT_STORE_BYTES = 200 << 20
_ANSWER_SECONDS = 10


class Cluster:
    """Call `start` once: it starts a cluster, or joins a running one. The processes of a started cluster end with this process, even
    if it is killed."""

    def __init__(self) -> None:
        self._process: RayProcess | None = None
        self._ending = False

    def start(
        self,
        settings: dict[str, Any],
        environment: dict[str, str],
        log: Path,
        on_death: Callable[[str], None],
        on_retry: Callable[[str], None],
    ) -> None:
        """`settings`: the arguments of `ray.init`; without `address`, a cluster is started. `on_death` gets a message
        if this cluster ends, `on_retry` one for each start that failed."""
        settings = {key: value for key, value in settings.items() if value is not None}
        address = settings.pop("address", None)
        joined = address is not None
        if joined:
            _require_answer(address)
        else:
            address = self._serve(settings, log, on_retry)
        runtime = settings.pop("runtime_env", {})
        runtime = {**runtime, "env_vars": {**environment, **runtime.get("env_vars", {})}}
        self._join(address, {"runtime_env": runtime, **settings})
        if not joined:
            threading.Thread(target=self._watch, args=(log, on_death), name="ray", daemon=True).start()

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "address": node["NodeManagerAddress"],
                "cpus": int(node["Resources"].get("CPU", 0)),
                "gpus": int(node["Resources"].get("GPU", 0)),
            }
            for node in ray.nodes()
            if node["Alive"]
        ]

    def require(self, nodes: int, each: int, resource: str) -> None:
        """Raises UserMistake if the cluster is too small; Ray itself would wait for more nodes."""
        found = self.nodes()
        if sum(node[resource] // each for node in found) >= nodes:
            return
        has = ", ".join(f"{node['address']} with {node[resource]}" for node in found)
        raise UserMistake(
            f"trainer.nnodes={nodes} and trainer.n_gpus_per_node={each} need {nodes} nodes with {each} {resource}; "
            f"the Ray cluster has {has}",
            "Lower them, raise ray_kwargs.ray_init.num_cpus, add nodes with `ray start`, or name another cluster in "
            "ray_kwargs.ray_init.address.",
        )

    def end(self) -> None:
        """Ends the cluster, unless it was joined."""
        self._ending = True
        if self._process is not None:
            self._process.end()

    def _serve(self, settings: dict[str, Any], log: Path, on_retry: Callable[[str], None]) -> str:
        """Starts a cluster that only processes with its token can join. Returns its address."""
        options = {
            "include-dashboard": "false",
            # 0: the system chooses a port.
            "min-worker-port": 0,
            "max-worker-port": 0,
            "num-cpus": settings.pop("num_cpus", os.cpu_count() or 1),
            "object-store-memory": settings.pop("object_store_memory", _OBJECT_STORE_BYTES),
            **({"num-gpus": settings.pop("num_gpus")} if "num_gpus" in settings else {}),
            **({"resources": json.dumps(settings.pop("resources"))} if "resources" in settings else {}),
        }
        self._process = RayProcess()
        return self._process.start(options, log, on_retry)

    def _join(self, address: str, settings: dict[str, Any]) -> None:
        try:
            ray.init(address=address, **settings)
        except ConnectionError as error:
            raise RunFailure(f"the Ray cluster at {address} cannot be joined: {first_line(error)}") from error
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserMistake(f"Ray refuses ray_kwargs.ray_init: {first_line(error)}") from error

    def _watch(self, log: Path, on_death: Callable[[str], None]) -> None:
        self._process.wait()
        if not self._ending:
            on_death(f"the Ray cluster that Hone started (process {self._process.pid}) ended; {end_of(log)}")


def _require_answer(address: str) -> None:
    """Raises UserMistake if no connection is possible; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():  # "auto"
        return
    try:
        socket.create_connection((host, int(port)), _ANSWER_SECONDS).close()
    except OSError as error:
        raise RunFailure(
            f"the Ray cluster at {address} (ray_kwargs.ray_init.address) does not answer: {error.strerror or error}"
        ) from error


# After a rank failed, the other ranks have this long to finish, so that a dead rank can be identified.
_GRACE_SECONDS = 10


class WorkerGroup:
    """`name` is the role in messages. `call` runs a method on every rank and returns the results by rank."""

    def __init__(self, name: str, worker: type, pool: RayResourcePool, logs: str, **arguments: Any):
        self.name = name
        self._logs = logs
        self._broken: Exception | None = None
        self._data_rank_of: list[int] = []
        self.processes: list[dict[str, Any]] = []
        made = RayClassWithInitArgs(ray.remote(worker), logs=logs, **arguments)
        self._group = RayWorkerGroup(
            pool, made, name_prefix=f"hone-{os.getpid()}-{name}-", use_gpu=pool.use_gpu, device_name=get_device_name()
        )
        self._workers = self._group.workers
        self.processes = self.call("process")

    @property
    def group(self) -> RayWorkerGroup:
        """verl's own group object."""
        return self._group

    @property
    def size(self) -> int:
        return len(self._workers)

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Raises RunFailure if a rank has died."""
        return self._run(method, [arguments] * self.size)

    def call_each(self, method: str, parts: list[Any], *arguments: Any) -> list[Any]:
        """Like `call`, with the part of each data-parallel rank as the first argument."""
        return self._run(method, [(parts[rank], *arguments) for rank in self._data_ranks()])

    def _data_ranks(self) -> list[int]:
        if not self._data_rank_of:
            self._data_rank_of = [fact["data_rank"] for fact in self.call("facts")]
        return self._data_rank_of

    def _run(self, method: str, arguments: list[tuple]) -> list[Any]:
        if self._broken is not None:
            raise self._broken
        calls = [getattr(worker, method).remote(*given) for worker, given in zip(self._workers, arguments, strict=True)]
        return self._gather(calls, method)

    def end(self) -> None:
        for worker in self._workers:
            ray.kill(worker)

    def _gather(self, calls: list[ray.ObjectRef], method: str) -> list[Any]:
        waiting, failures = list(calls), {}
        while waiting:
            ready, waiting = ray.wait(waiting, timeout=_GRACE_SECONDS if failures else None)
            if not ready:
                break
            try:
                ray.get(ready[0])
            except (ActorDiedError, ActorUnavailableError) as error:
                self._broken = self._died(calls.index(ready[0]))
                raise self._broken from error
            except RayError as error:
                failures[calls.index(ready[0])] = error
        if not failures:
            return ray.get(calls)
        rank, error = min(failures.items())
        failure = self._failed(rank, method, error)
        if waiting:  # these ranks still wait for the failed one, so they cannot be called again
            self._broken = failure
        raise failure from error

    def _died(self, rank: int) -> RunFailure:
        process = f", process {self.processes[rank]['pid']}" if self.processes else ""
        return RunFailure(
            f"worker {rank} of {self.size} ({self.name}{process}) died; {end_of(self._log(rank))}"
        )

    def _failed(self, rank: int, method: str, error: RayError) -> Exception:
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, OSError):
            return cause
        print(error, file=sys.stderr, flush=True)  # with the worker's trace
        message = f"{self.name} worker {rank} failed in {method}: {first_line(cause)}"
        if isinstance(cause, (AssertionError, ValueError, NotImplementedError, UserMistake)):
            # The folder of a run that has not begun is removed with its logs.
            return UserMistake(message, f"The error was raised in {_place_of(error)}.")
        return RunFailure(f"{message} (in {_place_of(error)}); worker.log in the run folder has the trace")

    def _log(self, rank: int) -> str:
        return f"{self._logs}/{self.name}-{rank}.log"


def _place_of(error: RayError) -> str:
    """The file and line that raised an error in a worker, such as `verl/utils/model.py:649`."""
    frames = re.findall(r'File "(?:.*/site-packages/)?(.+)", line (\d+)', str(error))
    return ":".join(frames[-1]) if frames else "an unknown place"
