"""The worker's loop: runs requests in order, and a decode step of all samples between two of them."""

import errno
import sys
import traceback
from typing import Any

from .channel import Channel, Message
from .errors import RunFailure, UserMistake, first_line
from .memory import is_out_of_memory
from .operations import Operations

# These take no time: all that have arrived run before the next decode step.
_QUICK = frozenset({"sample", "abort", "stats"})


def describe_error(error: BaseException) -> dict[str, Any]:
    """The `error` field of an answer."""
    if isinstance(error, UserMistake):
        described = {"kind": "user", "message": error.message}
        return described if error.hint is None else {**described, "hint": error.hint}
    if isinstance(error, RunFailure):
        return {"kind": "run", "message": str(error)}
    if isinstance(error, OSError) and error.errno in errno.errorcode:
        described = {"kind": "system", "code": errno.errorcode[error.errno], "message": str(error)}
        return described if error.filename is None else {**described, "path": str(error.filename)}
    if is_out_of_memory(error):
        return {
            "kind": "user",
            "message": f"not enough memory: {first_line(error)}",
            "hint": "Lower local.max_sample_rows or local.micro_batch_tokens, or choose a smaller model.",
        }
    trace = "".join(traceback.format_exception(error))
    return {"kind": "internal", "message": f"{type(error).__name__}: {error}", "trace": trace}


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
