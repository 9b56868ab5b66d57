"""Chooses how a model is trained so that it fits into the device's memory, and refuses what cannot fit, before its weights are loaded."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig

from .errors import UserMistake, first_line
from .memory import available_bytes, total_bytes
from .memory_plan import Parts, Training, measure
from .models.loading import longest_sequence
from .models.plain_model import ModelSource
from .training.trainer import least_tokens

_USABLE = 0.95
"""The share of an accelerator's free memory that tensors can fill: blocks of the allocator are not full."""
_FEWEST_TOKENS = 512
_SMALL_SHARE = 0.3
_MOST_SETTINGS = 3


@dataclass(frozen=True)
class Room:
    """Bytes of the device, without the inference server's share."""

    device: str
    free: int
    total: int
    server: int

    def holds(self, needed: int) -> bool:
        return needed <= self.usable

    @property
    def usable(self) -> int:
        return int(self.free * (1 if self.device == "cpu" else _USABLE)) - self.server


@dataclass(frozen=True)
class Fit:
    training: Training
    parts: Parts
    room: Room | None
    """None if the memory of the device is unknown."""

    @property
    def bytes_per_token(self) -> int:
        return -(-self.parts.activations // self.training.tokens)

    def report(self, rows: int) -> dict[str, Any]:
        """The `memory` field of the answer to `load`. `rows`: sampled at the same time by the worker; 0: a server samples."""
        return {
            "text": self._text(rows),
            "fits": self.room is None or self.room.holds(self.parts.needed),
            "needed": self.parts.needed,
            "free": None if self.room is None else self.room.free,
            "tokens": self.training.tokens,
            "gradient_checkpointing": self.training.checkpointing,
            "merged": self.training.merged,
        }

    def _text(self, rows: int) -> str:
        training, room = self.training, self.room
        where = "" if room is None else f" of {_gb(room.free)} free on {room.device} ({_gb(room.total)} in all)"
        own = training.adapter["kind"] == "lora" and not training.merged
        how = "recomputed in the backward pass" if training.checkpointing else "kept for the backward pass"
        cache = f"; the sampler's cache {_gb(self.parts.cache_per_token * training.tokens)} for each reply of that length"
        server = f"; {_gb(room.server)} are the inference server's" if room is not None and room.server else ""
        return (
            f"about {_gb(self.parts.needed)}{where}: {_list(self.parts)} at {training.tokens:,} tokens, {how}"
            f"{'; LoRA without a merged copy of the weights' if own else ''}{cache if rows else ''}{server}"
        )


def choose(source: ModelSource, load: dict[str, Any]) -> Fit | None:
    """How the policy that a `load` message announces is trained; None if shapes do not say what it needs. Raises UserMistake if it
    cannot fit. On a CPU, whose memory other programs give back, only what is certainly needed is refused."""
    try:
        config = AutoConfig.from_pretrained(source.directory, trust_remote_code=False, local_files_only=True)
        room = _room(source.device, load["plan"].get("server_share", 0))
        for training in _ways(source, load, config):
            fit = Fit(training, measure(config, training), room)
            if room is None or room.holds(fit.parts.needed):
                return fit
    except Exception as error:  # noqa: BLE001 - an unknown architecture can fail in any way; loading explains wrong files
        print(f"the memory that training needs is unknown: {first_line(error)}", file=sys.stderr, flush=True)
        return None
    certain = fit.parts.fixed if room.device == "cpu" else fit.parts.needed
    if room.holds(certain):
        return fit
    raise UserMistake(
        f"{source.name} does not fit: training it needs {fit._text(0)}",
        _remedy(config, fit),
    )


def _room(device: torch.device, server_share: float) -> Room | None:
    free, total = available_bytes(device), total_bytes(device)
    return None if free is None or total is None else Room(str(device), free, total, int(server_share * total))


def _ways(source: ModelSource, load: dict[str, Any], config: PreTrainedConfig) -> Iterator[Training]:
    """From fast to lean."""
    plan, checkpointing = load["plan"], load["gradient_checkpointing"]
    longest = min(plan["tokens"], longest_sequence(config.get_text_config()))
    training = Training(
        adapter=plan["adapter"],
        tokens=max(longest, load["micro_batch_tokens"] or least_tokens(source.device)),
        dtype=source.dtype,
        device=source.device.type,
        chunk_size=load["chunk_size"],
        optimizer=source.optimizer,
    )
    for checkpoints in (False, True) if checkpointing == "auto" else (checkpointing,):
        for merged in (True, False) if plan["adapter"]["kind"] == "lora" else (True,):
            yield replace(training, checkpointing=checkpoints, merged=merged)


@dataclass(frozen=True)
class _Change:
    """A setting, and what it changes."""

    setting: str
    training: dict[str, Any] = field(default_factory=dict)
    room: dict[str, Any] = field(default_factory=dict)


def _remedy(config: PreTrainedConfig, fit: Fit) -> str:
    """The settings, at most three, with which it fits: first those that change only speed, then what is trained, then lengths."""

    def fits(changes: list[_Change]) -> bool:
        training, room = fit.training, fit.room
        for change in changes:
            training, room = replace(training, **change.training), replace(room, **change.room)
        return room.holds(measure(config, training).needed)

    tokens, extra = fit.training.tokens, []
    while True:
        chosen = [*_changes(fit), *extra]
        if fits(chosen):
            for change in list(chosen):
                without = [other for other in chosen if other is not change]
                if fits(without):
                    chosen = without
            if len(chosen) <= _MOST_SETTINGS:
                return f"it fits with {' '.join(change.setting for change in chosen)}"
        tokens //= 2
        if tokens < _FEWEST_TOKENS:
            return f"use a smaller model, or a device with more than {_gb(fit.room.total)}"
        extra = [_Change(f"training.max_length={tokens}", {"tokens": tokens})]


def _changes(fit: Fit) -> Iterator[_Change]:
    training, room = fit.training, fit.room
    on_gpu = training.device == "cuda"
    if room.server > _SMALL_SHARE * room.total:
        yield _Change(f"local.sampler.memory_share={_SMALL_SHARE}", room={"server": int(_SMALL_SHARE * room.total)})
    if training.dtype == torch.float32 and training.device != "cpu":
        yield _Change("local.dtype=bfloat16", {"dtype": torch.bfloat16})
    if not training.checkpointing:
        yield _Change("local.gradient_checkpointing=true", {"checkpointing": True})
    if training.adapter["kind"] == "full":
        lora = {"kind": "lora", "rank": 16, "alpha": 32, "targets": ["attn", "mlp"], "seed": 0}
        yield _Change("model.lora_rank=16", {"adapter": lora, "merged": False, "optimizer": "adamw"})
        if on_gpu and training.optimizer == "adamw":
            yield _Change("training.optimizer=adamw_8bit", {"optimizer": "adamw_8bit"})


def _list(parts: Parts) -> str:
    named = {
        "weights": parts.weights,
        "merged copy": parts.merged,
        "float32 parameters": parts.masters,
        "gradients": parts.gradients,
        "optimizer": parts.optimizer,
        "output layer": parts.head,
        "activations": parts.activations,
    }
    return ", ".join(f"{name} {_gb(size)}" for name, size in named.items() if size)


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 5e7 else f"{size / 1e6:.1f} MB"
