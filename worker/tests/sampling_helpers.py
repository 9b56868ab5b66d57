"""Runs the sampler without a process around it."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from hone_worker.models.model import LanguageModel, load_model
from hone_worker.sampling.draw import Draw
from hone_worker.sampling.packed_batch import PackedBatch
from hone_worker.sampling.padded_batch import PaddedBatch
from hone_worker.sampling.rows import Request
from hone_worker.sampling.sampler import Sampler
from models import DEVICE
from tiny_models import make_folder
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

# Tiny products gain nothing from threads, and lose much where others compete for the cores.
torch.set_num_threads(1)

_KEPT: list[TemporaryDirectory] = []


@cache
def folder(name: str) -> Path:
    """The folder of a tiny model, made once."""
    _KEPT.append(TemporaryDirectory())
    return make_folder(Path(_KEPT[-1].name), name)


@cache
def model(name: str) -> LanguageModel:
    return load_model(str(folder(name)), name, cache_dir=folder(name), device=DEVICE, dtype="float32")


@cache
def reference(name: str) -> Any:
    """The same weights in plain transformers."""
    return AutoModelForCausalLM.from_pretrained(
        folder(name), dtype=torch.float32, attn_implementation="eager"
    ).eval()


class FixedPolicy:
    """The base model under a version of one's choice."""

    def __init__(self, of: LanguageModel):
        self.model = of
        self.version = 0
        self.can_sample = True

    def use_published(self) -> LanguageModel:
        return self.model


def request(
    prompt: list[int], seed: int = 0, max_tokens: int = 8, stop_ids: Any = (), **options: Any
) -> Request:
    fields = {
        name: options.pop(name) for name in ("temperature", "top_p", "top_k", "min_p", "tempered_logprobs") if name in options
    }
    return Request(
        prompt=list(prompt),
        draw=Draw(**fields),
        max_tokens=max_tokens,
        stop_ids=frozenset(stop_ids),
        stop_strings=tuple(options.pop("stop_strings", ())),
        seed=seed,
        **options,
    )


class Bench:
    """A sampler, what it emits in order, `events` of (header, arrays), and `failures` by message."""

    def __init__(self, name: str, max_rows: int = 64, block: int = 1):
        self.model = model(name)
        self.policy = FixedPolicy(self.model)
        self.events: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
        self.failures: dict[int, BaseException] = {}
        self.sampler = Sampler(
            device=self.model.device,
            max_rows=max_rows,
            make_batch=PackedBatch if self.model.attention == "packed" else PaddedBatch,
            open_tokenizer=lambda: Tokenizer.from_file(str(self.model.directory / "tokenizer.json")),
            emit=lambda header, arrays: self.events.append((header, arrays)),
            fail=self.failures.__setitem__,
            block=block,
        )

    def add(self, job: int, requests: list[Request], stream: bool = False, policy: Any = None) -> None:
        self.sampler.add(job, policy or self.policy, requests, stream)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.sampler.step()

    def finish(self) -> None:
        while self.sampler.busy:
            self.sampler.step()

    def samples(self, job: int) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
        """The samples of a message, in the order of its requests."""
        found = [
            event for event in self.events if event[0]["id"] == job and event[0].get("event") == "sample"
        ]
        return sorted(found, key=lambda event: event[0]["request"])

    @property
    def counters(self) -> Counter[str]:
        return self.sampler.counters


def sample(
    name: str, requests: list[Request], **options: Any
) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """All samples of one message sampled alone."""
    bench = Bench(name, **options)
    bench.add(1, requests)
    bench.finish()
    assert not bench.failures, bench.failures
    return bench.samples(1)


@torch.no_grad()
def teacher_forced(name: str, tokens: list[int]) -> torch.Tensor:
    """fp32 `[L, V]`: log-probabilities after each token, by plain transformers."""
    return reference(name)(torch.tensor([tokens])).logits[0].log_softmax(-1)
