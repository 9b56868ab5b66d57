"""The worker's one loop: takes messages in order, and decodes a token for every sample between them."""

from __future__ import annotations

import errno
import sys
import traceback
from typing import Any

from .channel import Channel, Message
from .errors import UserMistake

# These take no time, so all that have arrived are handled before the next decode step; others let one step
# pass.
_QUICK = frozenset({"sample", "abort", "stats"})


def describe_error(error: BaseException) -> dict[str, Any]:
    """The error as an answer carries it."""
    if isinstance(error, UserMistake):
        described = {"kind": "user", "message": error.message}
        return described if error.hint is None else {**described, "hint": error.hint}
    if isinstance(error, OSError) and error.errno in errno.errorcode:
        described = {"kind": "system", "code": errno.errorcode[error.errno], "message": str(error)}
        return described if error.filename is None else {**described, "path": str(error.filename)}
    from .memory import is_out_of_memory

    if is_out_of_memory(error):
        return {
            "kind": "user",
            "message": f"not enough memory: {(str(error) or type(error).__name__).splitlines()[0]}",
            "hint": "Lower local.max_sample_rows or local.micro_batch_tokens, or choose a smaller model.",
        }
    trace = "".join(traceback.format_exception(error))
    return {"kind": "internal", "message": f"{type(error).__name__}: {error}", "trace": trace}


class Server:
    """Answers requests until the process ends."""

    def __init__(self, channel: Channel):
        from .operations import Operations

        self._channel = channel
        self._operations = Operations(channel, self.fail)

    def serve(self) -> None:
        """Never returns; the end of input ends the process."""
        operations = self._operations
        while True:
            message = self._channel.receive(wait=not operations.sampling)
            while message is not None:
                self._handle(message)
                message = self._channel.receive(wait=False) if message.op in _QUICK else None
            if operations.sampling:
                operations.sample_step()

    def fail(self, request: int, error: BaseException) -> None:
        """Answers a request with an error. The log gets the trace of those that are no mistake of the
        user's."""
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
