"""The protocol's operations that all backends have: the fields of each message, its checks and its answer."""

import errno
import platform
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from torch import Tensor

from .channel import Channel, Message
from .errors import Cancelled, ProtocolError, RunFailure, UserMistake, first_line
from .images.pictures import Media, MissingMedia, Pictures
from .memory import is_out_of_memory
from .models.loading import reported_to
from .policies.adamw import AdamSettings
from .policies.interface import PolicyInterface, PolicyTable
from .training.sequences import Sequences

if TYPE_CHECKING:
    from .images.vision import Vision

Arrays = dict[str, np.ndarray]
Answer = tuple[dict[str, Any], Arrays]

Ask = Callable[[dict[str, Tensor], Arrays], dict[str, Tensor]]
"""(outputs of a micro-batch, further arrays of the event) -> gradients of the outputs. Raises Cancelled."""


class Operations(ABC):
    """`answer(message)` executes a message and sends the answer. `on_NAME` executes the operation NAME; it returns the
    answer's fields and arrays, or None if the answer follows later. Backends implement the abstract methods, and
    `on_NAME` of the operations that only they have."""

    def __init__(self, channel: Channel):
        self._channel = channel
        self._model_info: dict[str, Any] | None = None
        """Facts of the loaded model, as in the answer to `load`."""
        self._policies: PolicyTable | None = None
        self._vision: Vision | None = None
        self._media = Media()
        self._seconds: Counter[str] = Counter()
        self._request = 0

    @abstractmethod
    def _load(self, header: dict[str, Any]) -> dict[str, Any]:
        """Loads the model. Sets `_policies`, and `_vision` if the model reads images. Returns the fields of the answer,
        of which `versions` has only what other backends do not have."""

    @abstractmethod
    def _forward(self, policy: PolicyInterface, sequences: Any, outputs: list[str]) -> Arrays:
        """The arrays of the answer. `sequences` as from `_sequences`."""

    @abstractmethod
    def _forward_backward(self, policy: PolicyInterface, sequences: Any, outputs: list[str], ask: Ask) -> None:
        """Adds to the policy's gradient, after `ask` for each micro-batch."""

    @abstractmethod
    def _stats(self) -> dict[str, float]:
        """Metrics, also before a model is loaded."""

    def _unsupported(self, op: str) -> Exception:
        return ProtocolError(f"the operation {op!r} does not exist")

    def _is_ready(self, op: str) -> bool:
        """Whether the loaded model can execute an operation."""
        return self._model_info is not None

    def answer(self, message: Message) -> None:
        try:
            answer = self._run(message)
        except Exception as error:  # noqa: BLE001 - every error is an answer
            self.fail(message.id, error)
        else:
            if answer is not None:
                answered, arrays = answer
                self._channel.send({"id": message.id, "ok": True, **answered}, arrays)

    def fail(self, request: int, error: BaseException) -> None:
        """Answers a request with an error. The traces of internal errors go to the log too."""
        answered = self._error_fields(error)
        described = answered["error"]
        if described["kind"] == "internal":
            print(described["trace"], file=sys.stderr, flush=True)
        self._channel.send({"id": request, **answered})

    def _error_fields(self, error: BaseException) -> dict[str, Any]:
        return {"error": describe_error(error)}

    def _run(self, message: Message) -> Answer | None:
        operation = getattr(self, f"on_{message.op}", None)
        if operation is None:
            raise self._unsupported(message.op)
        if message.op not in ("find_model", "load", "stats") and not self._is_ready(message.op):
            raise ProtocolError(f"{message.op} before load, or after load of another kind of model")
        self._request = message.id
        begin = time.perf_counter()
        try:
            return operation(message)
        finally:
            self._seconds[message.op] += time.perf_counter() - begin

    def on_load(self, message: Message) -> Answer:
        if self._model_info is not None:
            raise ProtocolError("a worker loads one model; start another worker for another model")
        header = message.header
        if header.get("threads", 0) > 0:
            torch.set_num_threads(header["threads"])
        with reported_to(self._report):
            loaded = self._load(header)
        self._model_info = loaded["model"]
        versions = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        return {**loaded, "versions": {**versions, **loaded.get("versions", {})}}, {}

    def on_put_media(self, message: Message) -> Answer | None:
        return self._media.put(message, self._require_vision().read)

    def on_create_policy(self, message: Message) -> Answer:
        number = self._policies.create(message.header["adapter"], message.header.get("head"))
        return {"policy": number, "trainable_parameters": self._policies[number].trainable_parameters}, {}

    def on_close_policy(self, message: Message) -> Answer:
        self._policies.close(message.header["policy"])
        return {}, {}

    def on_forward(self, message: Message) -> Answer:
        policy = self._policy(message)
        with self._sequences(message) as sequences:
            return {}, self._forward(policy, sequences, _outputs_of(message, policy))

    def on_forward_backward(self, message: Message) -> Answer:
        policy = self._trained(message)
        with self._sequences(message) as sequences:
            outputs = _outputs_of(message, policy, with_gradient=True)
            try:
                self._forward_backward(policy, sequences, outputs, partial(self._ask_gradient, message.id))
            except Cancelled:
                return {"cancelled": True}, {}
        return {}, {}

    def on_zero_grad(self, message: Message) -> Answer:
        self._trained(message).zero_grad()
        return {}, {}

    def on_optim_step(self, message: Message) -> Answer:
        settings = AdamSettings(**{each.name: float(message.header[each.name]) for each in fields(AdamSettings)})
        taken = asdict(self._trained(message).optim_step(settings))
        return {name: value for name, value in taken.items() if value is not None}, {}

    def on_publish(self, message: Message) -> Answer:
        return {"version": self._policy(message).publish()}, {}

    def on_save_state(self, message: Message) -> Answer:
        header, policy = message.header, self._trained(message)
        policy.save_state(Path(header["dir"]), bool(header.get("optimizer", True)))
        return {}, {}

    def on_load_state(self, message: Message) -> Answer:
        header, policy = message.header, self._trained(message)
        policy.load_state(Path(header["dir"]), bool(header["optimizer"]))
        return {"version": policy.version}, {}

    def on_export(self, message: Message) -> Answer:
        self._policy(message).export(Path(message.header["dir"]), message.header["as"])
        return {}, {}

    def on_stats(self, _: Message) -> Answer:
        seconds = {f"seconds/{op}": seconds for op, seconds in self._seconds.items()}
        return {"stats": {**seconds, **self._stats()}}, {}

    def _policy(self, message: Message) -> Any:
        return self._policies[message.header["policy"]]

    def _trained(self, message: Message) -> Any:
        policy = self._policy(message)
        policy.require_trainable()
        return policy

    def _require_vision(self) -> "Vision":
        if self._vision is None:
            info = self._model_info
            reason = info.get("images_reason") or f"{info['architecture']} reads only text"
            raise UserMistake(
                f"{info['name']} cannot read images: {reason}", "use a model with a vision part and its image processor"
            )
        return self._vision

    @contextmanager
    def _sequences(self, message: Message) -> Iterator[Any]:
        """The sequences of a message, with their images."""
        arrays, pictures = message.arrays, self._pictures(message)
        given = arrays["tokens"], arrays["offsets"], arrays["trained"], arrays.get("targets")
        yield Sequences(*given, pictures, arrays.get("experts"))

    def _pictures(self, message: Message) -> list[Pictures] | None:
        """The images of each sequence of a message; None if it has none."""
        if message.header.get("media"):
            self._require_vision()
        return self._media.pictures(message)

    def _report(self, text: str) -> None:
        """Sends the status of the operation that runs now."""
        self._channel.send({"id": self._request, "event": "status", "text": text})

    def _ask_gradient(self, request: int, outputs: dict[str, Tensor], arrays: Arrays) -> dict[str, Tensor]:
        sent = {name: values.numpy() for name, values in outputs.items()}
        begin = time.perf_counter()
        reply = self._channel.ask(request, {"event": "outputs"}, {**arrays, **sent})
        self._seconds["gradient_wait"] += time.perf_counter() - begin
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


def _outputs_of(message: Message, policy: PolicyInterface, with_gradient: bool = False) -> list[str]:
    """The names of the requested outputs. Raises UserMistake for those that the policy does not have."""
    outputs = message.header["outputs"]
    if "values" in outputs and not policy.is_critic:
        raise UserMistake("this policy has no value head, so it has no values", 'create it with head "value"')
    if with_gradient and "concentration" in outputs:
        raise UserMistake("concentration has no gradient", "request it with forward")
    return outputs


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
