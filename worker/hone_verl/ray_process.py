"""The processes of a Ray cluster on this machine: starts them again if Ray gives up, ends all of them, and reads the ends of their logs."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from hone_worker.channel import end_with_parent
from hone_worker.errors import RunFailure
from hone_worker.free_port import free_port

# Ray puts sockets into its folder, and the path of a socket may have at most 107 characters.
_LONGEST = 20
_PREFIX = "hone-ray-"
_STARTS = 4
_COMMAND = (sys.executable, "-m", "hone_verl.ray_head", "start", "--head", "--block", "--disable-usage-stats")
# By default, Ray runs workers at niceness 15, so any other busy program would stop them. Its memory monitor counts the
# file cache and would kill workers too early. Its time limits for its first processes are too short for a busy machine.
_SETTINGS = {
    "RAY_worker_niceness": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_gcs_server_port_wait_time_s": "300",
    "RAY_agent_register_timeout_ms": "300000",
}
# Without these settings, all clusters of a machine would use the same ports. The raylet does not wait for an agent
# whose port it knows.
_PORTS = ("port", "ray-client-server-port", "runtime-env-agent-port", "dashboard-agent-grpc-port", "metrics-export-port")
_END_SECONDS = 2
_POLL_SECONDS = 0.1


class RayProcess:
    """`ray start --head` with its folder. It ends with this process, even if this process is killed."""

    def __init__(self, command: Sequence[str] = _COMMAND) -> None:
        self._command = command
        self._folder = _short_folder() / f"{_PREFIX}{os.getpid()}"
        self._server: subprocess.Popen | None = None
        self._ending = False

    @property
    def pid(self) -> int:
        return self._server.pid

    def wait(self) -> None:
        """Returns when the cluster has ended."""
        self._server.wait()

    def start(self, options: dict[str, object], log: Path, on_retry: Callable[[str], None]) -> str:
        """Returns the address. `on_retry` gets a message for each start that failed. Raises RunFailure after the last."""
        _remove_stale()
        log.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _STARTS + 1):
            ports = {name: free_port() for name in _PORTS}
            begin = log.stat().st_size if log.exists() else 0
            self._launch({"temp-dir": self._folder, **options, **ports}, log)
            failure = self._failure(log, begin)
            if failure is None:
                return f"127.0.0.1:{ports['port']}"
            self._clear()
            if self._ending:
                break
            if attempt < _STARTS:
                on_retry(f"Ray did not start, because {failure}; attempt {attempt + 1} of {_STARTS}")
        raise RunFailure(f"Ray did not start in {_STARTS} attempts; at the last, {failure}; {end_of(log)}")

    def end(self) -> None:
        """Ends all processes of the cluster, and removes their folder. Any thread may call it."""
        self._ending = True
        if self._server is not None:
            self._clear()

    def _clear(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()
        _kill_processes_of(self._folder)
        deadline = time.monotonic() + _END_SECONDS
        while self._folder.exists() and time.monotonic() < deadline:
            shutil.rmtree(self._folder, ignore_errors=True)
            time.sleep(_POLL_SECONDS)

    def _launch(self, options: dict[str, object], log: Path) -> None:
        with log.open("ab") as output:
            self._server = subprocess.Popen(
                [*self._command, *(f"--{name}={value}" for name, value in options.items())],
                env={**_SETTINGS, **os.environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=end_with_parent if sys.platform == "linux" else None,
                start_new_session=True,  # only Hone handles Ctrl-C
            )

    def _failure(self, log: Path, begin: int) -> str | None:
        """Waits until the cluster runs. Returns why it does not start. `ray start` itself would wait for minutes for a
        raylet that has ended."""
        while b"Ray runtime started" not in log.read_bytes()[begin:]:
            if self._server.poll() is not None:
                return f"its first process ended with exit code {self._server.returncode}"
            if self._raylet_ended():
                return f"its raylet ended: {_reason(self._folder / 'session_latest' / 'logs')}"
            time.sleep(_POLL_SECONDS)
        return None

    def _raylet_ended(self) -> bool:
        with suppress(psutil.Error):
            for child in psutil.Process(self._server.pid).children():
                if child.name() == "raylet" and child.status() == psutil.STATUS_ZOMBIE:
                    return True
        return False


def _reason(logs: Path) -> str:
    """The first message of a raylet's log of errors, without Ray's request to report it; else the end of its output.
    Names no file, because the folder is removed before anybody reads this."""
    with suppress(OSError):
        text = (logs / "raylet.err").read_text(errors="replace")
        for line in text.splitlines():
            if line.strip():
                return line.split("Check failed: ")[-1].strip()[:300]
    with suppress(OSError):
        if lines := last_lines(logs / "raylet.out"):
            return f"its output ends with: {lines}"
    return "it wrote no message"


def _kill_processes_of(folder: Path) -> None:
    """Also Ray's agents, which by themselves end up to 90 s after their cluster. They replace their command line by a
    title such as `ray::DashboardAgent`, but write logs in the folder of their cluster."""
    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error):
            names = process.info["cmdline"] or ()
            if names and names[0].startswith("ray::"):
                names = [file.path for file in process.open_files()]
            if any(f"{folder}/" in name for name in names):
                process.kill()


def _remove_stale() -> None:
    """Ends the processes and removes the folders of killed drivers."""
    for folder in _short_folder().glob(f"{_PREFIX}*"):
        number = folder.name.removeprefix(_PREFIX)
        if number.isdigit() and not psutil.pid_exists(int(number)):
            _kill_processes_of(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _short_folder() -> Path:
    folder = tempfile.gettempdir()
    return Path(folder if len(folder) <= _LONGEST else "/tmp")


# The logs of Ray and of the workers, in sentences about their end.

_BYTES = 4096
_LINES = 3
_LONGEST_LINE = 300


def end_of(log: Path | str) -> str:
    """The last lines of a log, and its path."""
    try:
        lines = last_lines(log)
    except OSError:
        return f"{log} is missing"
    return f"{log} ends with: {lines}" if lines else f"{log} is empty"


def last_lines(log: Path | str) -> str:
    """In one line; empty if the log is. Raises OSError if it is missing."""
    text = Path(log).read_bytes()[-_BYTES:].decode(errors="replace")
    lines = [line.strip()[:_LONGEST_LINE] for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-_LINES:])
