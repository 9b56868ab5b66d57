"""Chooses how a model is trained so that it fits into the device's memory, and refuses what cannot fit, before its weights are loaded."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig

from .errors import UserMistake, first_line
from .memory import available_bytes, total_bytes
from .memory_plan import Measure, Parts, Sharing, Training, measure, measure_frozen
from .models.loading import find_folder, longest_sequence
from .models.plain_model import ModelSource
from .models.score_model import default_tokens
from .training.trainer import least_tokens

_USABLE = 0.95
"""The share of an accelerator's free memory that tensors can fill: blocks of the allocator are not full."""
_FEWEST_TOKENS = 512
_SMALL_SHARE = 0.3
_MOST_SETTINGS = 3
_SHOWN = 0.01
"""Parts with a smaller share of the whole are shown together."""


@dataclass(frozen=True)
class Room:
    """Bytes of the device, without the inference server's share."""

    device: str
    free: int
    total: int
    server: int = 0

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
    others: dict[str, Parts] = field(default_factory=dict)
    """What the other models of the run add, such as a critic, by their roles."""

    @property
    def certain(self) -> int:
        """Bytes that are needed all the time."""
        return sum(parts.fixed for parts in (self.parts, *self.others.values()))

    @property
    def needed(self) -> int:
        """One model computes at a time."""
        return self.certain + max(parts.working for parts in (self.parts, *self.others.values()))

    @property
    def bytes_per_token(self) -> int:
        return -(-self.parts.activations // self.training.tokens)

    def report(self, rows: int) -> dict[str, Any]:
        """The `memory` field of the answer to `load`. `rows`: sampled at the same time by the worker; 0: a server samples."""
        return {
            "text": self._text(rows),
            "fits": self.room is None or self.room.holds(self.needed),
            "needed": self.needed,
            "free": None if self.room is None else self.room.free,
            "tokens": self.training.tokens,
            "gradient_checkpointing": self.training.checkpointing,
            "merged": self.training.merged,
        }

    def _text(self, rows: int) -> str:
        training, room, sharing = self.training, self.room, self.training.sharing
        each = "" if sharing is None else f" in each of {sharing.processes} processes"
        where = "" if room is None else f" of {_gb(room.free)} free on {room.device} ({_gb(room.total)} in all)"
        own = training.adapter["kind"] == "lora" and not training.merged
        how = "recomputed in the backward pass" if training.checkpointing else "kept for the backward pass"
        host = f"; {_gb(self.parts.offloaded)} more in CPU memory" if self.parts.offloaded else ""
        cache = f"; the sampler's cache {_gb(self.parts.cache_per_token * training.tokens)} for each reply of that length"
        server = f"; {_gb(room.server)} are the inference server's" if room is not None and room.server else ""
        return (
            f"about {_gb(self.needed)}{each}{where}: {self._list()} at {training.tokens:,} tokens, {how}"
            f"{'; LoRA without a merged copy of the weights' if own else ''}{host}{cache if rows else ''}{server}"
        )

    def _list(self) -> str:
        parts = self.parts
        named = {
            "weights": parts.weights,
            "merged copy": parts.merged,
            "float32 parameters": parts.masters,
            "gradients": parts.gradients,
            "optimizer": parts.optimizer,
            **{role: other.fixed for role, other in self.others.items()},
            "output layer": parts.head,
            "exchange between processes": parts.gathered,
        }
        named["activations"] = self.needed - sum(named.values()) + parts.offloaded
        least = _SHOWN * sum(named.values())
        shown = [f"{name} {_gb(size)}" for name, size in named.items() if size > least]
        rest = sum(size for size in named.values() if 0 < size <= least)
        return ", ".join([*shown, f"the rest {_gb(rest)}"] if rest else shown)


def choose(source: ModelSource, load: dict[str, Any], measured: Measure = measure, sharing: Sharing | None = None) -> Fit | None:
    """How the policy that a `load` message announces is trained; None if shapes do not say what it needs. Raises UserMistake if it
    cannot fit. On a CPU, whose memory other programs give back, only what is certainly needed is refused. `measured`: how the memory of a
    trained model is computed; `sharing` if several processes train it."""
    try:
        config = _config_of(source.directory)
        room = _room(source.device, load["plan"].get("server_share", 0), 1 if sharing is None else sharing.processes)
        needs = _Needs(config, load, measured)
        for training in _ways(source, load, config, sharing):
            fit = needs.fit(training, room)
            if room is None or room.holds(fit.needed):
                return fit
    except UserMistake:
        raise
    except Exception as error:  # noqa: BLE001 - an unknown architecture can fail in any way; loading explains wrong files
        print(f"the memory that training needs is unknown: {first_line(error)}", file=sys.stderr, flush=True)
        return None
    if room.holds(fit.certain if room.device == "cpu" else fit.needed):
        return fit
    raise UserMistake(f"{source.name} does not fit: training it needs {fit._text(0)}", _remedy(needs, fit))


def _config_of(directory: Path) -> PreTrainedConfig:
    return AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)


@dataclass(frozen=True)
class _Needs:
    """What the models of a run need."""

    config: PreTrainedConfig
    load: dict[str, Any]
    measured: Measure
    known: dict[str, Parts] = field(default_factory=dict)

    def fit(self, training: Training, room: Room | None) -> Fit:
        others: dict[str, Parts] = {}
        for other in self.load["plan"].get("others", ()):
            role, number = other["role"], 2
            while role in others:
                role, number = f"{other['role']} {number}", number + 1
            others[role] = self._once(f"{other} {training}", lambda other=other: self._other(other, training))
        parts = self._once(str(training), lambda: self.measured(self.config, training))
        return Fit(training, parts, room, others)

    def _frozen(self, config: PreTrainedConfig, training: Training, tokens: int, scores: bool) -> Parts:
        plain = replace(training, adapter={}, checkpointing=False, merged=True, optimizer="adamw")
        key = f"{config.name_or_path} {plain} {tokens} {scores}"
        return self._once(key, lambda: measure_frozen(config, plain, tokens, scores))

    def _once(self, key: str, measured: Callable[[], Parts]) -> Parts:
        if key not in self.known:
            self.known[key] = measured()
        return self.known[key]

    def _other(self, other: dict[str, Any], training: Training) -> Parts:
        """A model beside the policy. Models with LoRA share the weights of the policy's own model in one process."""
        named = other.get("model")
        config = self.config if named is None else _config_of(find_folder(named, Path(self.load["cache_dir"]).expanduser()))
        if other["role"] == "reward model":
            longest = max(min(training.tokens, longest_sequence(config.get_text_config())), default_tokens(training.device))
            return self._frozen(config, training, longest, True)
        shares = named is None and training.adapter["kind"] == "lora"
        if other["adapter"]["kind"] == "none" and shares:
            return Parts()
        if other["adapter"]["kind"] == "none" and training.sharing is None:
            return self._frozen(config, training, training.tokens, False)
        parts = self.measured(config, replace(training, adapter=other["adapter"]))
        return replace(parts, weights=0, merged=0) if shares and training.sharing is None else parts


def _room(device: torch.device, server_share: float, processes: int) -> Room | None:
    """On a CPU, several processes share the memory."""
    free, total = available_bytes(device), total_bytes(device)
    if free is None or total is None:
        return None
    server, share = int(server_share * total), processes if device.type == "cpu" else 1
    return Room(str(device), free // share, total // share, server // share)


def _ways(source: ModelSource, load: dict[str, Any], config: PreTrainedConfig, sharing: Sharing | None) -> Iterator[Training]:
    """From fast to lean."""
    plan, checkpointing = load["plan"], load["gradient_checkpointing"]
    least = least_tokens(source.device) * (1 if sharing is None else sharing.sequence_parallel)
    longest = min(plan["tokens"], longest_sequence(config.get_text_config()))
    training = Training(
        adapter=plan["adapter"],
        tokens=max(longest, load["micro_batch_tokens"] or least),
        dtype=source.dtype,
        device=source.device.type,
        chunk_size=load["chunk_size"],
        optimizer=source.optimizer,
        sharing=sharing,
    )
    for checkpoints in (False, True) if checkpointing == "auto" else (checkpointing,):
        for merged in (True, False) if plan["adapter"]["kind"] == "lora" and sharing is None else (True,):
            yield replace(training, checkpointing=checkpoints, merged=merged)


@dataclass(frozen=True)
class _Change:
    """A setting, and what it changes."""

    setting: str
    training: dict[str, Any] = field(default_factory=dict)
    room: dict[str, Any] = field(default_factory=dict)


def _remedy(needs: _Needs, fit: Fit) -> str:
    """The settings, at most three, with which it fits: first those that change only speed, then what is trained, then lengths."""

    def fits(changes: list[_Change]) -> bool:
        training, room = fit.training, fit.room
        for change in changes:
            training, room = replace(training, **change.training), replace(room, **change.room)
        return room.holds(needs.fit(training, room).needed)

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
    training, room, sharing = fit.training, fit.room, fit.training.sharing
    on_gpu = training.device == "cuda"
    if room.server > _SMALL_SHARE * room.total:
        yield _Change(f"local.sampler.memory_share={_SMALL_SHARE}", room={"server": int(_SMALL_SHARE * room.total)})
    if training.dtype == torch.float32 and training.device != "cpu":
        yield _Change("local.dtype=bfloat16", {"dtype": torch.bfloat16})
    if not training.checkpointing:
        yield _Change("local.gradient_checkpointing=true", {"checkpointing": True})
    if training.adapter["kind"] == "full":
        lora = {"kind": "lora", "rank": 16, "alpha": 32, "targets": ["attn", "mlp"], "seed": 0}
        yield _Change("model.lora_rank=16", {"adapter": lora, "merged": sharing is not None, "optimizer": "adamw"})
        if on_gpu and training.optimizer == "adamw" and sharing is None:
            yield _Change("training.optimizer=adamw_8bit", {"optimizer": "adamw_8bit"})
    if sharing is not None and on_gpu and not sharing.offload_optimizer:
        yield _Change("local.offload_optimizer=true", {"sharing": replace(sharing, offload_optimizer=True)})
    if sharing is not None and sharing.sharding in ("zero1", "zero2"):
        yield _Change("local.sharding=fsdp", {"sharing": replace(sharing, sharding="fsdp")})


def _gb(size: int) -> str:
    if size >= 9.5e8:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.0f} MB" if size >= 9.5e6 else f"{size / 1e6:.1f} MB"
