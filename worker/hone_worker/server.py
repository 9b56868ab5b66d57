"""The worker's loop: runs requests in order, and a decode step of all samples between two of them."""

import sys

from .channel import Channel, Message
from .messages import describe_error
from .operations import Operations

# These take no time: all that have arrived run before the next decode step.
_QUICK = frozenset({"sample", "put_media", "abort", "stats"})


class Server:
    """Answers requests until the process ends."""

    def __init__(self, channel: Channel):
        self._channel = channel
        self._operations = Operations(channel, self.fail)

    def serve(self) -> None:
        """Never returns: the end of the input ends the process."""
        operations = self._operations
        while True:
            message = self._channel.receive(wait=not operations.sampling)
            while message is not None:
                self._handle(message)
                message = self._channel.receive(wait=False) if message.op in _QUICK else None
            if operations.sampling:
                operations.sample_step()

    def fail(self, request: int, error: BaseException) -> None:
        """Answers a request with an error. The traces of internal errors go to the log too."""
        described = describe_error(error)
        if described["kind"] == "internal":
            print(described["trace"], file=sys.stderr, flush=True)
        self._channel.send({"id": request, "error": described})

    def _handle(self, message: Message) -> None:
        try:
            answer = self._operations.run(message)
        except Exception as error:
            self.fail(message.id, error)
        else:
            if answer is not None:
                fields, arrays = answer
                self._channel.send({"id": message.id, "ok": True, **fields}, arrays)
