"""Starts a Ray cluster that ends with this process, or joins a running one."""

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from hone_worker.errors import RunFailure, UserMistake, first_line

from .logs import end_of
from .ray_process import RayProcess

_OBJECT_STORE_BYTES = 200 << 20
_ANSWER_SECONDS = 10


class Cluster:
    """Call `start` once. The cluster's processes end with this process, even if it is killed."""

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

