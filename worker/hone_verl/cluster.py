"""Starts a Ray cluster that ends with this process, or joins a running one."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import ray
from hone_worker.errors import RunFailure, UserMistake, first_line
from hone_worker.parent import end_with_parent

from .logs import end_of

# Ray puts sockets into its folder, and the path of a socket may have at most 107 characters.
_LONGEST = 20
_PREFIX = "hone-ray-"
_OBJECT_STORE_BYTES = 200 << 20
# Number of attempts. An attempt fails after half a minute, which can be too short on a busy machine.
_STARTS = 4
_COMMAND = (sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats")
# By default, Ray runs workers at niceness 15, so any other busy program would stop them. Its memory monitor counts the
# file cache and would kill workers too early. Its time limit for the first node is too short for a busy machine.
_SETTINGS = {
    "RAY_worker_niceness": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_raylet_start_wait_time_s": "300",
}
_END_SECONDS = 2
_ANSWER_SECONDS = 10


class Cluster:
    """Call `start` once. The cluster's processes end with this process, even if it is killed."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._server: subprocess.Popen | None = None
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
        if this cluster ends, `on_retry` one for each start that exceeded Ray's own time limit."""
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
        """Stops Ray's first process, which ends all others, and removes their folder."""
        if self._server is None:
            return
        self._ending = True
        self._server.kill()
        self._server.wait()
        deadline = time.monotonic() + _END_SECONDS
        while self._folder.exists() and time.monotonic() < deadline:
            shutil.rmtree(self._folder, ignore_errors=True)
            time.sleep(0.1)

    def _serve(self, settings: dict[str, Any], log: Path, on_retry: Callable[[str], None]) -> str:
        """Starts a cluster that only processes with its token can join. Returns its address."""
        _remove_stale()
        self._folder = _short_folder() / f"{_PREFIX}{os.getpid()}"
        options = {
            "temp-dir": self._folder,
            "include-dashboard": "false",
            # Without these settings, all clusters of a machine would use the same ports. 0: the system chooses a port.
            "min-worker-port": 0,
            "max-worker-port": 0,
            "num-cpus": settings.pop("num_cpus", os.cpu_count() or 1),
            "object-store-memory": settings.pop("object_store_memory", _OBJECT_STORE_BYTES),
            **({"num-gpus": settings.pop("num_gpus")} if "num_gpus" in settings else {}),
            **({"resources": json.dumps(settings.pop("resources"))} if "resources" in settings else {}),
        }
        log.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _STARTS + 1):
            port = _free_port()
            with log.open("ab") as output:
                begin = output.tell()
                self._server = subprocess.Popen(
                    [
                        *_COMMAND,
                        f"--port={port}",
                        f"--ray-client-server-port={_free_port()}",
                        *(f"--{name}={value}" for name, value in options.items()),
                    ],
                    env={**_SETTINGS, **os.environ},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    preexec_fn=end_with_parent if sys.platform == "linux" else None,
                    start_new_session=True,  # only Hone handles Ctrl-C
                )
            if self._started(log, begin):
                return f"127.0.0.1:{port}"
            if attempt < _STARTS:
                on_retry(f"Ray did not start in the time that it allows its parts; attempt {attempt + 1} of {_STARTS}")
        raise RunFailure(f"Ray did not start in {_STARTS} attempts; {end_of(log)}")

    def _started(self, log: Path, begin: int) -> bool:
        """Waits until the cluster runs. Returns False if Ray gave up."""
        while b"Ray runtime started" not in log.read_bytes()[begin:]:
            if self._server.poll() is not None:
                return False
            time.sleep(0.1)
        return True

    def _join(self, address: str, settings: dict[str, Any]) -> None:
        try:
            ray.init(address=address, **settings)
        except ConnectionError as error:
            raise RunFailure(f"the Ray cluster at {address} cannot be joined: {first_line(error)}") from error
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserMistake(f"Ray refuses ray_kwargs.ray_init: {first_line(error)}") from error

    def _watch(self, log: Path, on_death: Callable[[str], None]) -> None:
        self._server.wait()
        if not self._ending:
            on_death(f"the Ray cluster that Hone started (process {self._server.pid}) ended; {end_of(log)}")


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


def _short_folder() -> Path:
    folder = tempfile.gettempdir()
    return Path(folder if len(folder) <= _LONGEST else "/tmp")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def _remove_stale() -> None:
    """Removes the folders of killed drivers."""
    for folder in _short_folder().glob(f"{_PREFIX}*"):
        number = folder.name.removeprefix(_PREFIX)
        if number.isdigit() and not psutil.pid_exists(int(number)):
            shutil.rmtree(folder, ignore_errors=True)
