"""A group of verl's workers, one per rank, and the error message if one of them dies."""

import os
import re
import sys
from typing import Any

import ray
from hone_worker.errors import RunFailure, UserMistake, first_line
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.device import get_device_name

from .logs import end_of

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
