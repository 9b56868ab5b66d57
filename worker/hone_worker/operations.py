"""The protocol's operations: what each message does to the model, the policies and the sampler."""

import platform
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer

from .channel import Channel, Message
from .errors import RunFailure, Stopped, UserMistake
from .group import GROUPS, Group, nccl_library, within
from .images.media import Media
from .images.pictures import Pictures
from .memory import memory_stats
from .messages import Cancelled, ProtocolError, ask_gradient, outputs_of, sequences_of
from .models.loading import find_folder
from .models.model import LanguageModel
from .models.plain_model import ModelSource, find_source
from .models.progress import reported_to
from .models.score_model import ScoreModel
from .policies.adamw import AdamSettings
from .policies.policy import Policy
from .policies.registry import Policies
from .sampling.packed_batch import PackedBatch
from .sampling.padded_batch import PaddedBatch
from .sampling.rows import parse_requests
from .sampling.sampler import Sampler
from .training.packing import Sequences
from .training.trainer import Exchange, Trainer

Answer = tuple[dict[str, Any], dict[str, np.ndarray]]


class Operations:
    """`run(message)` returns the answer's fields and arrays, or None if the answer follows later.
    `fail(request, error)` answers a sample message that fails later. `on_NAME` runs the operation NAME."""

    def __init__(self, channel: Channel, fail: Callable[[int, BaseException], None]):
        self._channel = channel
        self._fail = fail
        self._model: LanguageModel | None = None
        self._score_model: ScoreModel | None = None
        self._trainer: Trainer | None = None
        self._sampler: Sampler | None = None
        self._policies: Policies | None = None
        self._group: Group | None = None
        self._media = Media()
        self._stops: dict[int, Event] = {}
        """By put_media message that is not answered."""
        self._seconds: Counter[str] = Counter()

    @property
    def sampling(self) -> bool:
        """Whether a decode step has rows to advance."""
        return self._sampler is not None and self._sampler.busy

    def sample_step(self) -> None:
        """Samples one token for every running row."""
        self._sampler.step()

    def run(self, message: Message) -> Answer | None:
        operation = getattr(self, f"on_{message.op}", None)
        if operation is None:
            raise ProtocolError(f"the operation {message.op!r} does not exist")
        needed = self._score_model if message.op == "score" else self._model
        if needed is None and message.op not in ("find_model", "load", "stats"):
            raise ProtocolError(f"{message.op} before load, or after load of another kind of model")
        begin = time.perf_counter()
        try:
            return operation(message)
        finally:
            self._seconds[message.op] += time.perf_counter() - begin

    def on_find_model(self, message: Message) -> Answer:
        header = message.header
        return {"directory": str(find_folder(header["model"], Path(header["cache_dir"])).resolve())}, {}

    def on_load(self, message: Message) -> Answer:
        def report(text: str) -> None:
            self._channel.send({"id": message.id, "event": "status", "text": text})

        with reported_to(report):
            return self._load(message, report)

    def _load(self, message: Message, report: Callable[[str], None]) -> Answer:
        if self._model is not None or self._score_model is not None:
            raise ProtocolError("a worker loads one model; start another worker for another model")
        header = message.header
        if header.get("threads", 0) > 0:
            torch.set_num_threads(header["threads"])
        name = header.get("name", header["model"])
        report(f"loading {name}")
        source = find_source(
            header["model"],
            name,
            cache_dir=Path(header["cache_dir"]),
            device=header.get("device", "auto"),
            dtype=header.get("dtype", "auto"),
            gradient_checkpointing=header.get("gradient_checkpointing", False),
            output_layer=header.get("head") is None,
            processor=header.get("processor"),
            most_pixels=header.get("max_image_pixels") or ModelSource.most_pixels,
        )
        micro_batch_tokens = header.get("micro_batch_tokens", 0)
        if header.get("head") == "score":
            self._score_model = loaded = ScoreModel(source, micro_batch_tokens)
        else:
            self._model = loaded = LanguageModel(source)
            self._open_policies(loaded, header, micro_batch_tokens)
        versions = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        nccl = nccl_library() if loaded.device.type == "cuda" else None
        return {"model": loaded.info(), "versions": versions, "nccl": nccl}, {}

    def on_score(self, message: Message) -> Answer:
        scores = self._score_model.score(message.arrays["tokens"], message.arrays["offsets"])
        return {}, {"scores": scores.numpy()}

    def on_put_media(self, message: Message) -> None:
        """Answers from another thread, so that samples continue."""
        vision, stop = self._vision(), Event()
        self._stops[message.id] = stop

        def put() -> None:
            try:
                fields, arrays = self._media.put(message, vision, stop)
                self._channel.send({"id": message.id, "ok": True, **fields}, arrays)
            except Stopped:
                self._channel.send({"id": message.id, "ok": True, "cancelled": True})
            except Exception as error:  # noqa: BLE001 - every error is an answer
                self._fail(message.id, error)
            finally:
                del self._stops[message.id]

        Thread(target=put, name="put_media", daemon=True).start()

    def on_create_policy(self, message: Message) -> Answer:
        number = self._policies.create(message.header["adapter"], message.header.get("head"))
        return {"policy": number, "trainable_parameters": self._policies[number].trainable_parameters}, {}

    def on_close_policy(self, message: Message) -> Answer:
        self._sampler.abort_policy(self._policy(message))
        self._policies.close(message.header["policy"])
        return {}, {}

    def on_sample(self, message: Message) -> None:
        header, arrays = message.header, message.arrays
        policy = self._policy(message)
        policy.require_language_model()
        model = self._model
        requests = parse_requests(
            header["requests"],
            arrays["tokens"],
            arrays["offsets"],
            model.vocabulary_size,
            model.max_length,
            model.eos_ids,
            self._pictures(message),
        )
        self._sampler.add(message.id, policy, requests, bool(header.get("stream", False)))

    def on_abort(self, message: Message) -> Answer:
        header = message.header
        if (media := header.get("media")) is None:
            self._sampler.abort(header["sample"], header.get("requests"))
        elif (stop := self._stops.get(media)) is not None:
            stop.set()
        return {}, {}

    def on_forward(self, message: Message) -> Answer:
        policy = self._policy(message)
        found = self._trainer.forward(policy, self._sequences(message), outputs_of(message, policy.value_head is not None))
        return {}, {name: values.numpy() for name, values in found.items()}

    def on_most_likely(self, message: Message) -> Answer:
        policy, count = self._policy(message), int(message.header["count"])
        tokens, logprobs = self._trainer.most_likely(policy, self._sequences(message), count)
        return {}, {"tokens": tokens.numpy(), "logprobs": logprobs.numpy()}

    def on_draws(self, message: Message) -> Answer:
        policy, header = self._policy(message), message.header
        count, temperature, seed = int(header["count"]), float(header["temperature"]), int(header["seed"])
        tokens, logprobs = self._trainer.draws(policy, self._sequences(message), count, temperature, seed)
        return {}, {"tokens": tokens.numpy(), "logprobs": logprobs.numpy()}

    def on_forward_backward(self, message: Message) -> Answer:
        policy = self._policy(message)
        outputs = outputs_of(message, policy.value_head is not None, with_gradient=True)
        sequences = self._sequences(message)
        try:
            self._trainer.forward_backward(policy, sequences, outputs, self._exchange(message.id))
        except Cancelled:
            return {"cancelled": True}, {}
        return {}, {}

    def on_zero_grad(self, message: Message) -> Answer:
        self._trained(message).zero_grad()
        return {}, {}

    def on_optim_step(self, message: Message) -> Answer:
        names = ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "max_grad_norm")
        settings = AdamSettings(**{name: float(message.header[name]) for name in names})
        return asdict(self._trained(message).optim_step(settings)), {}

    def on_publish(self, message: Message) -> Answer:
        return {"version": self._policy(message).publish()}, {}

    def on_save_state(self, message: Message) -> Answer:
        header = message.header
        self._trained(message).save_state(Path(header["dir"]), bool(header.get("optimizer", True)))
        return {}, {}

    def on_load_state(self, message: Message) -> Answer:
        header, policy = message.header, self._trained(message)
        policy.load_state(Path(header["dir"]), bool(header["optimizer"]))
        return {"version": policy.version}, {}

    def on_load_published(self, message: Message) -> Answer:
        self._policy(message).load_published(Path(message.header["dir"]), int(message.header["version"]))
        return {}, {}

    def on_export(self, message: Message) -> Answer:
        policy = self._policy(message)
        policy.require_language_model()
        policy.export(Path(message.header["dir"]), message.header["as"])
        return {}, {}

    def on_open_group(self, message: Message) -> Answer:
        policy = self._policy(message)
        policy.require_language_model()
        weights = policy.weights()
        self._group = GROUPS[message.header["backend"]](self._model.device)
        announced = {
            "names": list(weights),
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in weights.values()],
            "shapes": [list(tensor.shape) for tensor in weights.values()],
        }
        return {"group": self._group.id, **announced}, {}

    def on_join_group(self, message: Message) -> Answer:
        size = int(message.header["size"])
        self._with_group(message, "joining the group for weights", lambda group: group.join(size))
        return {}, {}

    def on_broadcast(self, message: Message) -> Answer:
        tensors = self._policy(message).weights().values()
        self._with_group(message, "broadcasting the weights", lambda group: group.broadcast(tensors))
        return {}, {}

    def on_stats(self, _: Message) -> Answer:
        loaded = self._model or self._score_model
        stats = memory_stats(None if loaded is None else loaded.device)
        stats |= {f"seconds/{op}": seconds for op, seconds in self._seconds.items() if op != "sample"}
        if self._model is not None:
            counters = self._sampler.counters
            steps = counters["decode_steps"]
            stats |= self._trainer.counters
            stats |= {f"sample/{name}": count for name, count in counters.items()}
            stats |= {} if self._model.vision is None else self._model.vision.counters
            stats["seconds/sample"] = self._sampler.seconds
            stats["sample/rows_per_step"] = counters["sampled_tokens"] / steps if steps else 0.0
        return {"stats": stats}, {}

    def _open_policies(self, model: LanguageModel, header: dict[str, Any], micro_batch_tokens: int) -> None:
        self._policies = Policies(model)
        self._trainer = Trainer(header.get("chunk_size", 256), micro_batch_tokens)
        self._sampler = Sampler(
            device=model.device,
            max_rows=max(1, header.get("max_sample_rows", 128)),
            make_batch=PackedBatch if model.attention == "packed" else PaddedBatch,
            open_tokenizer=cache(self._open_tokenizer),
            emit=self._channel.send,
            fail=self._fail,
        )

    def _with_group(self, message: Message, what: str, use: Callable[[Group], None]) -> None:
        group = self._group
        if group is None:
            raise ProtocolError(f"{message.op} before open_group, or after the group failed")
        try:
            within(float(message.header["timeout_seconds"]), what, lambda: use(group))
        except RunFailure:
            self._group = None
            raise

    def _policy(self, message: Message) -> Policy:
        return self._policies[message.header["policy"]]

    def _trained(self, message: Message) -> Any:
        policy = self._policy(message)
        policy.require_trainable()
        return policy

    def _vision(self) -> Any:
        """The model's Vision. Raises UserMistake if it has none."""
        if self._model.vision is None:
            raise UserMistake(
                f"{self._model.source.name} cannot read images: {self._model.images_reason}",
                "use a model with a vision part and its image processor",
            )
        return self._model.vision

    def _pictures(self, message: Message) -> list[Pictures] | None:
        """The images of each sequence of a message; None if it has none."""
        if message.header.get("media"):
            self._vision()
        return self._media.pictures(message)

    def _sequences(self, message: Message) -> Sequences:
        return sequences_of(message, self._pictures(message))

    def _open_tokenizer(self) -> Tokenizer:
        path = self._model.directory / "tokenizer.json"
        if not path.exists():
            raise UserMistake(f"stop strings need {path}, which does not exist", "Use stop ids instead.")
        return Tokenizer.from_file(str(path))

    def _exchange(self, request: int) -> Exchange:
        """Sends the outputs of a micro-batch and waits for their gradient."""

        def exchange(indices: list[int], outputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            begin = time.perf_counter()
            arrays = {"sequences": np.array(indices, np.int32)}
            try:
                return ask_gradient(self._channel, request, outputs, arrays)
            finally:
                self._seconds["gradient_wait"] += time.perf_counter() - begin

        return exchange
