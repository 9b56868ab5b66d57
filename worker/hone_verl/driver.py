"""The driver's process: reads requests, and ends Ray with itself."""

import os
import sys
import threading

from hone_worker.channel import Message
from hone_worker.pipes import open_channel


class Driver:
    """Requests run one after the other, in the order in which they arrive."""

    def __init__(self) -> None:
        self._cluster = None
        self._request: int | None = None
        self._ending = threading.Lock()
        self._channel = open_channel(self._input_ended)

    def serve(self) -> None:
        message = self._channel.receive(wait=True)
        # These take seconds to import, and read what `prepare` sets: the reader already runs.
        from .surroundings import prepare

        device = prepare(message.header)
        from .cluster import Cluster
        from .operations import Operations

        self._cluster = Cluster()
        operations = Operations(self._channel, self._cluster, device, self._died)
        while True:
            self._request = message.id
            self._answer(operations, message)
            self._request = None
            message = self._channel.receive(wait=True)

    def end(self, code: int) -> None:
        """Does not wait for the main thread, which may be deep in a call of Ray."""
        self._ending.acquire()
        sys.stderr.flush()
        if self._cluster is not None:
            self._cluster.end()
        os._exit(code)

    def _answer(self, operations: object, message: Message) -> None:
        from hone_worker.messages import describe_error

        try:
            fields, arrays = operations.run(message)
        except Exception as error:
            described = describe_error(error)
            if described["kind"] == "internal":
                print(described["trace"], file=sys.stderr, flush=True)
            self._channel.send({"id": message.id, "error": described})
        else:
            self._channel.send({"id": message.id, "ok": True, **fields}, arrays)

    def _input_ended(self, broken: Exception | None) -> None:
        if broken is not None:
            print(f"hone_verl: {broken}", file=sys.stderr)
        self.end(0 if broken is None else 1)

    def _died(self, sentence: str) -> None:
        print(f"hone_verl: {sentence}", file=sys.stderr)
        if self._request is not None:
            self._channel.send({"id": self._request, "error": {"kind": "run", "message": sentence}})
        self.end(1)
