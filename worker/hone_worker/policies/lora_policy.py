"""A policy of low-rank adapters. Several can share one base model, which has the merged weights of one policy
at one revision at a time."""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from ..errors import UserMistake
from ..models.experts import ExpertGroup
from ..models.model import LanguageModel
from .expert_lora import ExpertOverlay
from .export import export_adapter, export_merged
from .lora import LoraOverlay
from .policy import TrainedPolicy, trains_vision
from .value_head import ValueHead

_TARGETS = ("attn", "mlp", "experts", "unembed")


class LoraPolicy(TrainedPolicy):
    """`adapter`: `{"kind": "lora", "rank", "alpha", "targets", "seed"}`."""

    def __init__(self, model: LanguageModel, adapter: dict, value_head: ValueHead | None = None):
        rank, targets = adapter["rank"], set(adapter["targets"])
        if rank < 1 or not targets or not targets <= set(_TARGETS):
            raise UserMistake(
                f"an adapter cannot have rank {rank} and targets {sorted(targets)}",
                f"use rank >= 1 and targets from {', '.join(_TARGETS)}",
            )
        if "experts" in targets and not model.expert_groups:
            raise UserMistake(
                f"{model.source.name} has no experts that LoRA could adapt", "set model.train_experts=false"
            )
        vision = model.vision_groups if trains_vision(model, adapter) else []
        layers = [*model.groups, *vision, *model.expert_groups, model.head_group]
        groups = [group for group in layers if group.members[0].kind in targets]
        if not groups:
            raise UserMistake(
                f"{type(model.module).__name__} has no linear layers among {', '.join(sorted(targets))}",
                "choose other targets, or full fine-tuning",
            )
        self.overlays = [
            ExpertOverlay(group, rank, adapter["alpha"], adapter["seed"])
            if isinstance(group, ExpertGroup)
            else LoraOverlay(group, rank, adapter["alpha"], adapter["seed"], model.source.merges_adapters)
            for group in groups
        ]
        weights = [p for overlay in self.overlays for p in overlay.parameters]
        super().__init__(model, adapter, weights, value_head)
        self.trains_head = any(overlay.group is model.head_group for overlay in self.overlays)
        self._kept: list[Tensor] | None = None
        """The published parameters, while they differ from the current ones."""

    def use_published(self) -> LanguageModel:
        return self._install(self.published_revision, self._kept or self.parameters)

    def use_current(self) -> LanguageModel:
        return self._install(self.revision, self.parameters)

    def named_weights(self, values: list[Tensor]) -> dict[str, Tensor]:
        return {
            name: view
            for overlay, part in self._by_overlay(values)
            for name, view in overlay.named(part).items()
        }

    def before_change(self) -> None:
        if self._kept is None:
            self._kept = [parameter.detach().clone() for parameter in self.parameters]

    def sample(self, add: Callable[[Tensor, Tensor], None]) -> None:
        for overlay in self.overlays:
            overlay.sample(add)

    def mark_published(self) -> None:
        super().mark_published()
        self._kept = None

    def write_export(self, directory: Path, form: str) -> None:
        if form == "adapter":
            members = [member for overlay in self.overlays for member in overlay.group.members]
            export_adapter(self.model, self.adapter, members, self.named(self.parameters), directory)
        else:
            merged: dict[str, Tensor] = {}
            for overlay, part in self._by_overlay(self.parameters):
                merged |= overlay.group.by_member(overlay.merged_weight(part))
            export_merged(self.model, merged, directory)

    def close(self) -> None:
        if self.model.installed is not None and self.model.installed[0] is self:
            self.uninstall()

    def uninstall(self) -> None:
        """Restores the model's base weights."""
        for overlay in self.overlays:
            overlay.remove()
        self.model.installed = None
        self.model.use_vision(None)

    def _install(self, revision: int, values: list[Tensor]) -> LanguageModel:
        """Merges a revision into the model, unless it is the one merged last."""
        installed = self.model.installed
        if installed == (self, revision):
            return self.model
        with torch.inference_mode(False), torch.no_grad():
            if installed is not None and installed[0] is not self:
                installed[0].uninstall()
            self.model.installed = None  # correct even if merging fails half-way
            for overlay, part in self._by_overlay(values):
                overlay.merge(part)
            self.model.installed = (self, revision)
            self.model.use_vision(self.vision_version(revision))
        return self.model

    def _by_overlay(self, values: list[Tensor]) -> Iterator[tuple[LoraOverlay, list[Tensor]]]:
        start = 0
        for overlay in self.overlays:
            stop = start + len(overlay.parameters)
            yield overlay, values[start:stop]
            start = stop
