"""The protocol's operations: what each message means, in terms of the rooms that do it. Holds the model, the
policies and the sampler. Knows nothing of frames or of when an operation runs."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .channel import Channel, Message
from .errors import UserMistake

if TYPE_CHECKING:
    from .models.model import LanguageModel
    from .policies.policy import Policy
    from .policies.registry import Policies
    from .sampling.sampler import Sampler
    from .training.trainer import Trainer

Answer = tuple[dict[str, Any], dict[str, np.ndarray]]


class Cancelled(Exception):
    """The other side called off a backward: its loss failed."""


class ProtocolError(Exception):
    """The other side broke the protocol: a defect of Hone, not of its user."""


class Operations:
    """`run(message)` gives the answer's fields and arrays, or None where the answer comes later.
    `fail(request, error)` answers a sample message that fails later. Torch and transformers are imported when
    a model is loaded."""

    def __init__(self, channel: Channel, fail: Callable[[int, BaseException], None]):
        self._channel = channel
        self._fail = fail
        self._model: LanguageModel | None = None
        self._trainer: Trainer | None = None
        self._sampler: Sampler | None = None
        self._policies: Policies | None = None
        self._seconds: Counter[str] = Counter()
        self._table: dict[str, Callable[[Message], Answer | None]] = {
            "load": self._load,
            "create_policy": self._create_policy,
            "close_policy": self._close_policy,
            "sample": self._sample,
            "abort": self._abort,
            "forward": self._forward,
            "most_likely": self._most_likely,
            "draws": self._draws,
            "forward_backward": self._forward_backward,
            "zero_grad": self._zero_grad,
            "optim_step": self._optim_step,
            "publish": self._publish,
            "save_state": self._save_state,
            "load_state": self._load_state,
            "export": self._export,
            "stats": self._stats,
        }

    @property
    def sampling(self) -> bool:
        """Whether there are samples to go on with."""
        return self._sampler is not None and self._sampler.busy

    def sample_step(self) -> None:
        """One token for every sample under way."""
        self._sampler.step()

    def run(self, message: Message) -> Answer | None:
        operation = self._table.get(message.op)
        if operation is None:
            raise ProtocolError(f"there is no operation {message.op!r}; there are {', '.join(self._table)}")
        if self._model is None and message.op not in ("load", "stats"):
            raise ProtocolError(f"{message.op} before load")
        begin = time.perf_counter()
        try:
            return operation(message)
        finally:
            self._seconds[message.op] += time.perf_counter() - begin

    def _load(self, message: Message) -> Answer:
        if self._model is not None:
            raise ProtocolError("a worker loads one model; start another worker for another model")
        import torch

        from .models.model import load_model
        from .policies.registry import Policies
        from .sampling.packed_batch import PackedBatch
        from .sampling.padded_batch import PaddedBatch
        from .sampling.sampler import Sampler
        from .training.trainer import Trainer

        header = message.header
        if header.get("threads", 0) > 0:
            torch.set_num_threads(header["threads"])
        name = header.get("name", header["model"])
        self._channel.send({"id": message.id, "event": "status", "text": f"loading {name}"})
        model = load_model(
            header["model"],
            name,
            cache_dir=Path(header["cache_dir"]),
            device=header.get("device", "auto"),
            dtype=header.get("dtype", "auto"),
            gradient_checkpointing=header.get("gradient_checkpointing", False),
        )
        batch = PackedBatch if model.attention == "packed" else PaddedBatch
        self._policies = Policies(model)
        self._trainer = Trainer(header.get("chunk_size", 256), header.get("micro_batch_tokens", 0))
        self._sampler = Sampler(
            device=model.device,
            max_rows=max(1, header.get("max_sample_rows", 128)),
            make_batch=lambda policy, counters: batch(policy.model, policy, counters),
            open_tokenizer=cache(self._open_tokenizer),
            emit=self._channel.send,
            fail=self._fail,
        )
        self._model = model
        return {"model": model.info(), "versions": _versions()}, {}

    def _open_tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        path = self._model.tokenizer_file
        if path is None:
            raise UserMistake(
                f"stop strings need a tokenizer.json, and {self._model.directory} has none",
                "Use stop ids instead.",
            )
        return Tokenizer.from_file(str(path))

    def _policy(self, message: Message) -> Policy:
        return self._policies[message.header["policy"]]

    def _create_policy(self, message: Message) -> Answer:
        number = self._policies.create(message.header["adapter"], message.header.get("head"))
        return {"policy": number, "trainable_parameters": self._policies[number].trainable_parameters}, {}

    def _close_policy(self, message: Message) -> Answer:
        self._sampler.abort_policy(self._policy(message))
        self._policies.close(message.header["policy"])
        return {}, {}

    def _sample(self, message: Message) -> None:
        from .sampling.rows import parse_requests

        model = self._model
        facts = model.info()
        header, arrays = message.header, message.arrays
        policy = self._policy(message)
        policy.require_language_model()
        requests = parse_requests(
            header["requests"],
            arrays["tokens"],
            arrays["offsets"],
            model.vocabulary_size,
            facts["max_length"],
            facts["eos_token_ids"],
        )
        self._sampler.add(message.id, policy, requests, bool(header.get("stream", False)))

    def _abort(self, message: Message) -> Answer:
        self._sampler.abort(message.header["sample"], message.header.get("requests"))
        return {}, {}

    def _sequences(self, message: Message) -> Any:
        from .training.packing import Sequences

        arrays = message.arrays
        return Sequences(arrays["tokens"], arrays["offsets"], arrays["trained"], arrays.get("targets"))

    @staticmethod
    def _wanted(message: Message, policy: Policy) -> list[str]:
        outputs = message.header["outputs"]
        if "values" in outputs and policy.value_head is None:
            raise UserMistake("this policy has no value head and gives no values", "create it with head value")
        return outputs

    def _forward(self, message: Message) -> Answer:
        policy = self._policy(message)
        outputs = self._wanted(message, policy)
        found = self._trainer.forward(policy, self._sequences(message), outputs)
        return {}, {name: values.numpy() for name, values in found.items()}

    def _most_likely(self, message: Message) -> Answer:
        policy, count = self._policy(message), int(message.header["count"])
        tokens, logprobs = self._trainer.most_likely(policy, self._sequences(message), count)
        return {}, {"tokens": tokens.numpy(), "logprobs": logprobs.numpy()}

    def _draws(self, message: Message) -> Answer:
        policy, header = self._policy(message), message.header
        count, temperature, seed = int(header["count"]), float(header["temperature"]), int(header["seed"])
        tokens, logprobs = self._trainer.draws(policy, self._sequences(message), count, temperature, seed)
        return {}, {"tokens": tokens.numpy(), "logprobs": logprobs.numpy()}

    def _forward_backward(self, message: Message) -> Answer:
        policy = self._policy(message)
        outputs = self._wanted(message, policy)
        if "concentration" in outputs:
            raise UserMistake("the concentration has no gradient", "ask for it by forward")
        try:
            self._trainer.forward_backward(
                policy, self._sequences(message), outputs, self._exchange(message.id)
            )
        except Cancelled:
            return {"cancelled": True}, {}
        return {}, {}

    def _exchange(self, request: int) -> Callable[[list[int], dict[str, Any]], dict[str, Any]]:
        """The trainer's way to ask for a gradient."""
        import torch

        def exchange(indices: list[int], outputs: dict[str, Any]) -> dict[str, Any]:
            begin = time.perf_counter()
            arrays = {"sequences": np.array(indices, np.int32)}
            arrays |= {name: values.numpy() for name, values in outputs.items()}
            reply = self._channel.ask(request, {"event": "outputs"}, arrays)
            self._seconds["gradient_wait"] += time.perf_counter() - begin
            if reply.op == "cancel":
                raise Cancelled
            for name, gradient in reply.arrays.items():
                if name not in outputs:
                    raise ProtocolError(f"a gradient for {name}, which was not sent")
                if gradient.shape != tuple(outputs[name].shape):
                    raise ProtocolError(
                        f"the gradient of {name} has shape {list(gradient.shape)} "
                        f"for {len(outputs[name])} outputs"
                    )
            if "logprobs" in outputs and "logprobs" not in reply.arrays:
                raise ProtocolError("a gradient without logprobs")
            return {name: torch.tensor(gradient) for name, gradient in reply.arrays.items()}

        return exchange

    def _zero_grad(self, message: Message) -> Answer:
        policy = self._policy(message)
        policy.require_trainable()
        policy.zero_grad()
        return {}, {}

    def _optim_step(self, message: Message) -> Answer:
        from .policies.adamw import AdamSettings

        names = ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "max_grad_norm")
        settings = AdamSettings(**{name: float(message.header[name]) for name in names})
        policy = self._policy(message)
        policy.require_trainable()
        norm, applied = policy.optim_step(settings)
        return {"grad_norm": norm, "applied": applied}, {}

    def _publish(self, message: Message) -> Answer:
        return {"version": self._policy(message).publish()}, {}

    def _save_state(self, message: Message) -> Answer:
        policy = self._policy(message)
        policy.require_trainable()
        header = message.header
        policy.save_state(Path(header["dir"]), optimizer=bool(header.get("optimizer", True)))
        return {}, {}

    def _load_state(self, message: Message) -> Answer:
        header, policy = message.header, self._policy(message)
        policy.require_trainable()
        policy.load_state(Path(header["dir"]), optimizer=bool(header["optimizer"]))
        return {"version": policy.version}, {}

    def _export(self, message: Message) -> Answer:
        policy = self._policy(message)
        policy.require_language_model()
        policy.export(Path(message.header["dir"]), message.header["as"])
        return {}, {}

    def _stats(self, _: Message) -> Answer:
        from .memory import memory_stats

        stats: dict[str, float] = dict(memory_stats(None if self._model is None else self._model.device))
        stats |= {f"seconds/{op}": seconds for op, seconds in self._seconds.items() if op != "sample"}
        if self._model is not None:
            stats |= self._trainer.counters
            stats |= {f"sample/{name}": count for name, count in self._sampler.counters.items()}
            stats["seconds/sample"] = self._sampler.seconds
            steps = self._sampler.counters["decode_steps"]
            stats["sample/rows_per_step"] = self._sampler.counters["sampled_tokens"] / steps if steps else 0.0
        return {"stats": stats}, {}


def _versions() -> dict[str, str]:
    import torch
    import transformers

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
