"""The official SDK of Tinker against `hone serve`. Run by src/apps/server/sdk.e2e.ts, which gives the environment:

HONE_SERVE    the command line that starts the server, as a JSON list
HONE_MODEL    a model folder
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import tinker
from hone_worker.free_port import free_port
from reference import Reference
from tinker import types

os.environ.setdefault("TINKER_TELEMETRY", "0")


class Server:
    """`hone serve` on a port and a state folder of its own, which outlive its process."""

    def __init__(self, folder: Path, *more: str):
        self.folder = folder
        self.more = more
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        command = json.loads(os.environ["HONE_SERVE"])
        flags = ["--model", f"tiny={os.environ['HONE_MODEL']}", "--port", str(self.port)]
        flags += ["--state", str(self.folder / "state"), "--dtype", "float32", "--device", "cpu"]
        flags += ["--gap-seconds", "1", *self.more]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [*command, *flags], stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 120
        while not self._answers():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def kill_worker(self) -> None:
        """The process that computes; the server stays, and has seen it when this returns."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
                command = (stat.parent / "cmdline").read_bytes()
            except OSError:
                continue  # It has ended meanwhile.
            if parent == self.process.pid and b"hone_worker" in command:
                os.kill(int(stat.parent.name), signal.SIGKILL)
        deadline = time.monotonic() + 30
        while "died; it is restarted" not in self.log():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=30)

    def service(self, **more) -> tinker.ServiceClient:
        return tinker.ServiceClient(base_url=self.url, api_key="tml-local", **more)

    def rest(self) -> tinker.RestClient:
        return tinker.RestClient(base_url=self.url, api_key="tml-local")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("serve"))
    yield running
    running.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """One that a test may kill. After a restart it waits for no request that it has answered or lost."""
    running = Server(tmp_path, "--gap-seconds", "600")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def service(server: Server) -> tinker.ServiceClient:
    return server.service()


@pytest.fixture
def trainer(service: tinker.ServiceClient) -> tinker.TrainingClient:
    return service.create_lora_training_client("tiny", rank=4, seed=11).result()


@pytest.fixture
def reference(trainer: tinker.TrainingClient, server: Server) -> Reference:
    """The fresh model of `trainer` in plain transformers and PEFT."""
    return Reference.of(trainer, server.rest(), "initial")


TEXT = [40, 41, 42, 43, 44, 45, 46, 47]


def text(tokens: list[int]) -> types.ModelInput:
    return types.ModelInput.from_ints(tokens)
