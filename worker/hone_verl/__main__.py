"""`python -m hone_verl`: speaks worker/PROTOCOL.md over standard input and output until the input ends. Reads requests, and ends Ray with
itself."""

import os
import secrets
import sys
import threading
from typing import Any

from hone_worker.channel import open_channel

_MODULES = {"cpu": ("hone_on_cpu.platform", "hone_on_cpu.engines"), "nvidia": ("hone_verl.engine_images",)}
"""What verl imports at the end of `import verl`, by its platform."""


class Driver:
    """Requests run one after the other, in the order in which they arrive."""

    def __init__(self) -> None:
        self._cluster = None
        self._request: int | None = None
        self._ending = threading.Lock()
        self._channel = open_channel(self._input_ended)

    def serve(self) -> None:
        message = self._channel.receive(wait=True)
        device = _prepare(message.header)
        # These take seconds to import, and read what `_prepare` sets: the reader already runs.
        from .cluster import Cluster
        from .operations import DriverOperations

        self._cluster = Cluster()
        operations = DriverOperations(self._channel, self._cluster, device, self._died)
        while True:
            self._request = message.id
            operations.answer(message)
            self._request = None
            message = self._channel.receive(wait=True)

    def end(self, code: int) -> None:
        """Does not wait for the main thread, which may be deep in a call of Ray."""
        self._ending.acquire()
        sys.stderr.flush()
        if self._cluster is not None:
            self._cluster.end()
        os._exit(code)

    def _input_ended(self, broken: Exception | None) -> None:
        if broken is not None:
            print(f"hone_verl: {broken}", file=sys.stderr)
        self.end(0 if broken is None else 1)

    def _died(self, sentence: str) -> None:
        print(f"hone_verl: {sentence}", file=sys.stderr)
        if self._request is not None:
            self._channel.send({"id": self._request, "error": {"kind": "run", "message": sentence}})
        self.end(1)


def _prepare(load: dict[str, Any]) -> str:
    """Sets what verl and Ray read from the environment while they are imported, here and in their workers. Returns the
    device, `cuda` or `cpu`. `load`: the request. A cluster that Hone starts gets a token that no other process has."""
    import torch

    if (load.get("ray") or {}).get("address") is None:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    platform = os.environ.get("VERL_PLATFORM") or ("nvidia" if torch.cuda.is_available() else "cpu")
    modules = [name for name in os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",") if name]
    modules += _MODULES.get(platform, ())
    os.environ |= {"VERL_PLATFORM": platform, "VERL_USE_EXTERNAL_MODULES": ",".join(modules)}
    return "cpu" if platform == "cpu" else "cuda"


def main() -> None:
    driver = Driver()
    try:
        driver.serve()
    except SystemExit:
        driver.end(0)


if __name__ == "__main__":
    main()
