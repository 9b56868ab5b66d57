"""The operations of the local engine: one process that trains, samples and scores."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from .channel import Channel, Message
from .errors import ProtocolError, RunFailure, Stopped, UserMistake
from .group import GlooGroup, Group, NcclGroup, nccl_library, within
from .memory import memory_stats
from .memory_fit import choose
from .models.loading import find_folder
from .models.model import LanguageModel
from .models.plain_model import source_of
from .models.score_model import ScoreModel
from .operations import Answer, Arrays, Ask, Operations
from .policies.policy import Policy
from .policies.registry import Policies
from .sampling.packed_batch import PackedBatch
from .sampling.padded_batch import PaddedBatch
from .sampling.rows import parse_requests
from .sampling.sampler import Sampler
from .training.sequences import Sequences
from .training.trainer import Trainer

_BLOCK = 16
"""Tokens of each row that a GPU samples before the host looks at them."""


class LocalOperations(Operations):
    def __init__(self, channel: Channel):
        super().__init__(channel)
        self._model: LanguageModel | None = None
        self._score_model: ScoreModel | None = None
        self._trainer: Trainer | None = None
        self._sampler: Sampler | None = None
        self._group: Group | None = None
        self._stops: dict[int, Event] = {}
        """By put_media message that is not answered."""

    @property
    def sampling(self) -> bool:
        """Whether a decode step has rows to advance."""
        return self._sampler is not None and self._sampler.busy

    def sample_step(self) -> None:
        """Samples one token for every running row."""
        self._sampler.step()

    def _is_ready(self, op: str) -> bool:
        return (self._score_model if op == "score" else self._model) is not None

    def _load(self, header: dict[str, Any]) -> dict[str, Any]:
        self._report(f"loading {header.get('name', header['model'])}")
        source = source_of(header)
        micro_batch_tokens = header.get("micro_batch_tokens", 0)
        fit = choose(source, header) if header.get("plan") else None
        if fit is not None:
            chosen = fit.training
            source = replace(source, gradient_checkpointing=chosen.checkpointing, merges_adapters=chosen.merged)
        if header.get("head") == "score":
            self._score_model = loaded = ScoreModel(source, micro_batch_tokens)
        else:
            self._model = loaded = LanguageModel(source)
            self._vision = loaded.vision
            self._policies = Policies(loaded)
            replay, aux_loss = header.get("router_replay", "disabled"), header.get("router_aux_loss", 0.0)
            if replay != "disabled":
                loaded.mixtures.require_replay(source.name)
            if aux_loss > 0:
                loaded.mixtures.require_loss(source.name)
            bytes_per_token = fit and fit.bytes_per_token
            self._trainer = Trainer(header.get("chunk_size", 256), micro_batch_tokens, bytes_per_token, replay, aux_loss)
            self._sampler = Sampler(
                device=loaded.device,
                max_rows=max(1, header.get("max_sample_rows", 128)),
                make_batch=PackedBatch if loaded.attention == "packed" else PaddedBatch,
                open_tokenizer=cache(self._open_tokenizer),
                emit=self._channel.send,
                fail=self.fail,
                block=_BLOCK if loaded.device.type == "cuda" else 1,
            )
        on_gpu = loaded.device.type == "cuda"
        if on_gpu:  # after the checks of the model, which compare float32 results
            torch.set_float32_matmul_precision("high")
        memory = {} if fit is None else {"memory": fit.report(header["plan"]["rows"])}
        return {"model": loaded.info(), "nccl": nccl_library() if on_gpu else None, **memory}

    def _forward(self, policy: Policy, sequences: Sequences, outputs: list[str]) -> Arrays:
        found = self._trainer.forward(policy, sequences, outputs)
        return {name: values.numpy() for name, values in found.items()}

    def _forward_backward(self, policy: Policy, sequences: Sequences, outputs: list[str], ask: Ask) -> None:
        def exchange(indices: list[int], values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return ask(values, {"sequences": np.array(indices, np.int32)})

        self._trainer.forward_backward(policy, sequences, outputs, exchange)

    def _stats(self) -> dict[str, float]:
        loaded = self._model or self._score_model
        stats = memory_stats(None if loaded is None else loaded.device)
        if self._model is not None:
            counters = self._sampler.counters
            steps = counters["decode_steps"]
            stats |= self._trainer.counters
            stats |= {f"sample/{name}": count for name, count in counters.items()}
            stats |= {} if self._vision is None else self._vision.counters
            stats["seconds/sample"] = self._sampler.seconds
            stats["sample/rows_per_step"] = counters["sampled_tokens"] / steps if steps else 0.0
        return stats

    def on_find_model(self, message: Message) -> Answer:
        header = message.header
        return {"directory": str(find_folder(header["model"], Path(header["cache_dir"])).resolve())}, {}

    def on_score(self, message: Message) -> Answer:
        scores = self._score_model.score(message.arrays["tokens"], message.arrays["offsets"])
        return {}, {"scores": scores.numpy()}

    def on_put_media(self, message: Message) -> None:
        """Answers from another thread, so that samples continue."""
        vision, stop = self._require_vision(), Event()
        self._stops[message.id] = stop

        def put() -> None:
            try:
                fields, arrays = self._media.put(message, vision.read, stop)
                self._channel.send({"id": message.id, "ok": True, **fields}, arrays)
            except Stopped:
                self._channel.send({"id": message.id, "ok": True, "cancelled": True})
            except Exception as error:  # noqa: BLE001 - every error is an answer
                self.fail(message.id, error)
            finally:
                del self._stops[message.id]

        Thread(target=put, name="put_media", daemon=True).start()

    def on_close_policy(self, message: Message) -> Answer:
        self._sampler.abort_policy(self._policy(message))
        return super().on_close_policy(message)

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

    def on_most_likely(self, message: Message) -> Answer:
        policy, count = self._policy(message), int(message.header["count"])
        with self._sequences(message) as sequences:
            tokens, logprobs = self._trainer.most_likely(policy, sequences, count)
        return {}, {"tokens": tokens.numpy(), "logprobs": logprobs.numpy()}

    def on_draws(self, message: Message) -> Answer:
        policy, header = self._policy(message), message.header
        count, temperature, seed = int(header["count"]), float(header["temperature"]), int(header["seed"])
        with self._sequences(message) as sequences:
            tokens, logprobs = self._trainer.draws(policy, sequences, count, temperature, seed)
        return {}, {"tokens": tokens.numpy(), "logprobs": logprobs.numpy()}

    def on_load_published(self, message: Message) -> Answer:
        self._policy(message).load_published(Path(message.header["dir"]), int(message.header["version"]))
        return {}, {}

    def on_open_group(self, message: Message) -> Answer:
        policy = self._policy(message)
        policy.require_language_model()
        weights = policy.weights()
        make_group = {"nccl": NcclGroup, "gloo": GlooGroup}[message.header["backend"]]
        self._group = make_group(self._model.device)
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

    def _with_group(self, message: Message, what: str, use: Callable[[Group], None]) -> None:
        group = self._group
        if group is None:
            raise ProtocolError(f"{message.op} before open_group, or after the group failed")
        try:
            within(float(message.header["timeout_seconds"]), what, lambda: use(group))
        except RunFailure:
            self._group = None
            raise

    def _open_tokenizer(self) -> Tokenizer:
        path = self._model.directory / "tokenizer.json"
        if not path.exists():
            raise UserMistake(f"stop strings need {path}, which does not exist", "Use stop ids instead.")
        return Tokenizer.from_file(str(path))
