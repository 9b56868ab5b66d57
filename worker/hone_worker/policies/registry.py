"""Creates policies: LoRA policies share the loaded base model; a policy that trains all weights, or that only samples what another
learner published, has a model of its own."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ..errors import UserMistake
from ..memory import trim_heap
from ..models.model import LanguageModel
from ..models.plain_model import PlainModel
from .files import export_merged, merged_weights
from .interface import PolicyTable
from .lora import LoraPolicy
from .policy import BasePolicy, Policy, TrainedPolicy, ValueHead, trains_vision
from .rounding import Probe, Thresholds


class FullPolicy(TrainedPolicy):
    """`adapter`: `{"kind": "full"}`. Trains all weights of its model, with fp32 masters if the model computes in less. It has one
    copy of the weights: after an optimizer step, sampling waits for a publish."""

    trains_head = True

    def __init__(self, model: LanguageModel, adapter: dict, value_head: ValueHead | None = None):
        self._weights = {
            name: weight
            for name, weight in model.weights_to_train(trains_vision(model, adapter)).items()
            if weight.is_floating_point()
        }
        # In fp32 these are the weights themselves.
        masters = [weight.detach().float() for weight in self._weights.values()]
        for master in masters:
            master.grad = torch.zeros_like(master)
        super().__init__(model, adapter, masters, value_head)
        self._thresholds = [
            Thresholds(name, tuple(weight.shape), model.device) for name, weight in self._weights.items()
        ]
        self.backs_up = False  # memory may have no room for a copy of a full gradient
        vision = model.vision_groups if self.trains_vision else []
        for group in [*model.groups, *vision, model.head_group]:
            group.train_in_place()
        self._hooks = []
        for weight, master in zip(self._weights.values(), masters):
            weight.requires_grad_(True)
            self._hooks.append(weight.register_post_accumulate_grad_hook(_into(master)))

    @property
    def can_sample(self) -> bool:
        return self.revision == self.published_revision

    def use_published(self) -> LanguageModel:
        if not self.can_sample:
            raise UserMistake(
                "full weights cannot be sampled between an optimizer step and the next publish",
                "publish first, or use LoRA",
            )
        return self._use()

    def use_current(self) -> LanguageModel:
        return self._use()

    def _use(self) -> LanguageModel:
        self.model.use_vision(self.vision_version(self.revision))
        return self.model

    def named_weights(self, values: list[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self._weights, values))

    @torch.no_grad()
    def after_change(self) -> None:
        for weight, master, thresholds in zip(self._weights.values(), self.parameters, self._thresholds):
            if weight.data_ptr() != master.data_ptr():
                thresholds.round(master, weight)

    def sample(self, add: Callable[[Tensor, Tensor], None]) -> None:
        for weight, master in zip(self._weights.values(), self.parameters):
            if weight.ndim == 2:
                add(master[Probe.rows].clone(), weight[Probe.rows].float())

    def write_export(self, directory: Path, form: str) -> None:
        export_merged(self.model, {}, directory)

    def weights(self) -> dict[str, Tensor]:
        return merged_weights(self.model, {})

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _into(master: Tensor):
    """Moves a weight's gradient into its master's, where micro-batches add up in fp32."""

    def move(weight: Tensor) -> None:
        master.grad.add_(weight.grad)
        weight.grad = None

    return move


class LoadedPolicy(Policy):
    """`adapter`: `{"kind": "loaded"}`. Only samples: its weights are those of the last folder that another learner published."""

    def __init__(self, model: LanguageModel, adapter: dict):
        super().__init__(model, adapter)
        for group in [*model.groups, model.head_group]:
            group.train_in_place()  # frees copies in other layouts

    def use_published(self) -> LanguageModel:
        return self.model

    use_current = use_published

    def require_trainable(self) -> None:
        raise UserMistake("this policy only samples", "train the learner that publishes its weights")

    @torch.no_grad()
    def load_published(self, directory: Path, version: int) -> None:
        """Replaces all weights by those of an exported Hugging Face folder."""
        published = dict(PlainModel(replace(self.model.source, directory=directory)).module.named_parameters())
        for name, weight in self.model.module.named_parameters():
            weight.copy_(published[name])
        self.version = version

    def write_export(self, directory: Path, form: str) -> None:
        export_merged(self.model, {}, directory)


class Policies(PolicyTable[Policy]):
    """All policies of the worker. Loads the base model again if full weights took it."""

    kinds = ("lora", "full", "none", "loaded")

    def __init__(self, model: LanguageModel):
        super().__init__()
        self._base: LanguageModel | None = model
        self._source = model.source

    def _make(self, adapter: dict, head: str | None) -> Policy:
        kind = adapter["kind"]
        model = self._base or LanguageModel(self._source)
        self._base = model
        if kind in ("full", "loaded"):
            if any(policy.model is model for policy in self._open.values()):
                model = LanguageModel(self._source)
            else:
                self._base = None
        value_head = ValueHead(model) if head else None
        if kind == "none":
            policy: Policy = BasePolicy(model, adapter)
        elif kind == "loaded":
            policy = LoadedPolicy(model, adapter)
        else:
            policy = (FullPolicy if kind == "full" else LoraPolicy)(model, adapter, value_head)
        trim_heap()  # frees what loading and joining weights left behind
        return policy
