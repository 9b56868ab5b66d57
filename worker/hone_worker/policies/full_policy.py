"""A policy that trains all weights of a model of its own, with fp32 masters where the model computes in
less."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from ..errors import UserMistake
from ..models.model import LanguageModel
from .policy import TrainedPolicy
from .value_head import ValueHead


class FullPolicy(TrainedPolicy):
    """`adapter`: `{"kind": "full"}`. There is no frozen sampler: after an optimizer step, sampling waits for
    a publish."""

    trains_head = True

    def __init__(self, model: LanguageModel, adapter: dict, value_head: ValueHead | None = None):
        self._weights = {
            name: weight for name, weight in model.module.named_parameters() if weight.is_floating_point()
        }
        masters = [
            weight.detach().float() for weight in self._weights.values()
        ]  # the weights themselves where they are fp32
        for master in masters:
            master.grad = torch.zeros_like(master)
        super().__init__(model, adapter, masters, value_head)
        self.backs_up = False  # a copy of a full gradient may be what memory has no room for
        model.owner = self
        for group in [*model.groups, model.head_group]:
            group.train_in_place(True)
        self._hooks = []
        for weight, master in zip(self._weights.values(), masters):
            weight.requires_grad_(True)
            self._hooks.append(weight.register_post_accumulate_grad_hook(_into(master)))
        self._published_revision = 0

    @property
    def can_sample(self) -> bool:
        return self.revision == self._published_revision

    @contextmanager
    def published(self) -> Iterator[LanguageModel]:
        if not self.can_sample:
            raise UserMistake(
                "with full weights there is no sampling between an optimizer step and the next publish",
                "publish first, or use LoRA",
            )
        yield self.model

    @contextmanager
    def current(self) -> Iterator[LanguageModel]:
        yield self.model

    def publish(self) -> int:
        self.version += 1
        self._published_revision = self.revision
        return self.version

    def named_weights(self, values: list[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self._weights, values))

    def before_change(self) -> None:
        pass

    @torch.no_grad()
    def after_change(self, as_published: bool) -> None:
        for weight, master in zip(self._weights.values(), self.parameters):
            if weight.data_ptr() != master.data_ptr():
                weight.copy_(master)
        if as_published:
            self._published_revision = self.revision

    def export(self, directory: Path, form: str) -> None:
        from .export import export_merged

        if form == "adapter":
            raise UserMistake("a policy with full weights has no adapter", "export it as merged")
        export_merged(self.model, {}, Path(directory))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self.model.owner = None


def _into(master: Tensor):
    """Moves a weight's gradient into its master's, where micro-batches add up in fp32."""

    def move(weight: Tensor) -> None:
        master.grad.add_(weight.grad)
        weight.grad = None

    return move
