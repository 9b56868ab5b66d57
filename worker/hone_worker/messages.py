"""Parts of messages that all workers read and write in the same way."""

import errno
import traceback
from typing import Any

import numpy as np
import torch

from .channel import Channel, Message
from .errors import RunFailure, UserMistake, first_line
from .images.pictures import Pictures
from .images.store import MissingMedia
from .memory import is_out_of_memory
from .training.packing import Sequences


class Cancelled(Exception):
    """The loss failed in the trainer's process."""


class ProtocolError(Exception):
    """The message breaks the protocol. This is a defect of Hone, not a mistake of its user."""


def describe_error(error: BaseException) -> dict[str, Any]:
    """The `error` field of an answer."""
    if isinstance(error, UserMistake):
        described = {"kind": "user", "message": error.message}
        return described if error.hint is None else {**described, "hint": error.hint}
    if isinstance(error, MissingMedia):
        return {"kind": "media", "message": str(error), "hashes": error.hashes}
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


def sequences_of(message: Message, pictures: list[Pictures] | None = None) -> Sequences:
    """The sequences of a message with their images. Raises UserMistake if it has images that were not found."""
    if pictures is None and message.header.get("media"):
        raise UserMistake("this learner does not support images", "train in one process")
    arrays = message.arrays
    return Sequences(arrays["tokens"], arrays["offsets"], arrays["trained"], arrays.get("targets"), pictures)


def outputs_of(message: Message, has_values: bool, with_gradient: bool = False) -> list[str]:
    """The names of the requested outputs. Raises UserMistake for those that the policy does not have."""
    outputs = message.header["outputs"]
    if "values" in outputs and not has_values:
        raise UserMistake("this policy has no value head, so it has no values", 'create it with head "value"')
    if with_gradient and "concentration" in outputs:
        raise UserMistake("concentration has no gradient", "request it with forward")
    return outputs


def ask_gradient(
    channel: Channel, request: int, outputs: dict[str, torch.Tensor], arrays: dict[str, np.ndarray]
) -> dict[str, torch.Tensor]:
    """Sends the outputs of a micro-batch, with `arrays`, and returns their gradient. Raises Cancelled."""
    sent = {name: values.numpy() for name, values in outputs.items()}
    reply = channel.ask(request, {"event": "outputs"}, {**arrays, **sent})
    if reply.op == "cancel":
        raise Cancelled
    for name, gradient in reply.arrays.items():
        if name not in outputs:
            raise ProtocolError(f"a gradient for {name}, which was not sent")
        if gradient.shape != tuple(outputs[name].shape):
            raise ProtocolError(
                f"the gradient of {name} has shape {list(gradient.shape)} for {len(outputs[name])} outputs"
            )
    if "logprobs" in outputs and "logprobs" not in reply.arrays:
        raise ProtocolError("a gradient without logprobs")
    return {name: torch.tensor(gradient) for name, gradient in reply.arrays.items()}
