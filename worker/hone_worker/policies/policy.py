"""A policy: weights over a base model with a published and a current version, an optimizer, and its files.

Sampling uses the published weights, training the current ones. They are equal until an optimizer step, and
again after the next publish.

There is one merged copy of the weights, tagged with the policy and version that it was merged from, and `publish` only
moves the tag. The LoRA matrices of the published version are kept, and merged again when another adapter or the
reference is used, or when a sample needs the published weights after a step that is not published. All weights have no
second copy: a sample between a step and `publish` waits for `publish` (`capabilities.frozenSampler.full` is false)."""

from abc import abstractmethod
from collections.abc import Callable
from itertools import count
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor

from ..errors import UserMistake
from ..folders import read_value_layer
from ..models.model import LanguageModel
from .adamw import AdamSettings, make_optimizer
from .files import StateFacts, export_merged, read_adapter, read_state, write_state
from .interface import PolicyInterface, StepTaken
from .rounding import Probe


class ValueHead:
    """A critic's head: a linear layer from a hidden state to one value, in fp32. If the model's files have such a layer (those
    of a reward model do), it starts with their values. Otherwise it starts at zero: all first values are 0, and the first
    step trains only the head."""

    def __init__(self, model: LanguageModel):
        layer = read_value_layer(model.directory)
        if layer is None:
            self.weight = torch.zeros(1, model.head.in_features, device=model.device)
            self.bias = torch.zeros(1, device=model.device)
        else:
            self.weight, self.bias = layer.weight.to(model.device), layer.bias.to(model.device)
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    @property
    def parameters(self) -> list[Tensor]:
        """`[1, D]` and `[1]`."""
        return [self.weight, self.bias]

    @staticmethod
    def named(values: list[Tensor]) -> dict[str, Tensor]:
        """Tensors in the shapes of `parameters`, with their names in files."""
        return dict(zip(("value_head.weight", "value_head.bias"), values, strict=True))

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden `[N,D]` -> fp32 `[N]`: values of the states before the tokens that these hidden states
        predict."""
        return torch.nn.functional.linear(hidden.float(), self.weight, self.bias)[:, 0]


_numbers = count()


class Policy(PolicyInterface):
    """`model` is the LanguageModel that the weights belong to."""

    trains_head = False
    """Whether the output layer gets gradients."""

    value_head: ValueHead | None = None
    """Makes the policy a critic."""

    can_sample = True
    """Whether the published weights are available now. If not, a publish makes them available."""

    def __init__(self, model: LanguageModel, adapter: dict):
        super().__init__(adapter)
        self.model = model

    @property
    def is_critic(self) -> bool:
        return self.value_head is not None

    @abstractmethod
    def use_published(self) -> LanguageModel:
        """The model, with the weights of the last publish until another policy uses it."""

    @abstractmethod
    def use_current(self) -> LanguageModel:
        """The model, with the current weights until another policy uses it."""

    def load_published(self, directory: Path, version: int) -> None:
        """Samples from now on from a folder that another learner published, as this version."""
        raise UserMistake("this policy cannot load published weights", "create it with lora or loaded")

    def weights(self) -> dict[str, Tensor]:
        """All current weights by their names in the model's files, always in the same order."""
        raise UserMistake("only a policy with full weights broadcasts them", "export it instead")


def trains_vision(model: LanguageModel, adapter: dict) -> bool:
    """Whether the adapter also trains the vision part. Raises UserMistake if the model has none."""
    wanted = bool(adapter.get("train_vision"))
    if wanted and model.vision is None:
        raise UserMistake(
            f"the vision part of {model.source.name} cannot be trained: {model.images_reason}",
            "switch train_vision off, or use a model that reads images",
        )
    return wanted


class BasePolicy(Policy):
    """The base model without changes."""

    def use_published(self) -> LanguageModel:
        if self.model.installed is not None:
            self.model.installed[0].uninstall()
        return self.model

    use_current = use_published

    def write_export(self, directory: Path, form: str) -> None:
        export_merged(self.model, {}, directory)


class TrainedPolicy(Policy):
    """A policy with fp32 parameters, whose gradients add up in `.grad`. A value head's parameters come
    last."""

    def __init__(
        self, model: LanguageModel, adapter: dict, weights: list[Tensor], value_head: ValueHead | None
    ):
        super().__init__(model, adapter)
        self.value_head = value_head
        self._weight_count = len(weights)
        self.parameters = [*weights, *(value_head.parameters if value_head else [])]
        self.optimizer = make_optimizer(model.source.optimizer, self.parameters)
        self.revision = 0
        """Counts changes of the current weights."""
        self.published_revision = 0
        self._has_gradient = False
        self.trains_vision = trains_vision(model, adapter)
        self._number = next(_numbers)
        self.backs_up = model.device.type != "cpu"
        """Whether a backward that runs out of memory can be undone. On a CPU it ends the process anyway."""

    @property
    def trainable_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters)

    def named(self, values: list[Tensor]) -> dict[str, Tensor]:
        """Tensors in the shapes of the parameters, as views with their names in files."""
        count = self._weight_count
        head = ValueHead.named(values[count:]) if self.value_head else {}
        return {**self.named_weights(values[:count]), **head}

    @abstractmethod
    def named_weights(self, values: list[Tensor]) -> dict[str, Tensor]:
        """The same without the value head."""

    def before_change(self) -> None:
        """Called before a step changes the parameters."""

    def after_change(self) -> None:
        """Called after the parameters have changed."""

    @abstractmethod
    def sample(self, add: Callable[[Tensor, Tensor], None]) -> None:
        """Adds some weights to a Probe: as the parameters define them, and as the model has them."""

    def vision_version(self, revision: int) -> tuple[int, int] | None:
        """Identifies the weights of the vision part at a revision; None if this policy does not train it."""
        return (self._number, revision) if self.trains_vision else None

    def mark_published(self) -> None:
        """Makes the current weights the published ones."""
        self.published_revision = self.revision

    def publish(self) -> int:
        self.mark_published()
        return super().publish()

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad.zero_()
        self._has_gradient = False

    def gradient_added(self) -> None:
        """Called after each completed backward."""
        self._has_gradient = True

    def gradient_backup(self) -> list[Tensor] | None:
        """What `restore_gradient` needs to undo a backward; None without a gradient or without backups."""
        if not (self._has_gradient and self.backs_up):
            return None
        return [parameter.grad.clone() for parameter in self.parameters]

    def restore_gradient(self, backup: list[Tensor] | None) -> None:
        """Undoes an interrupted backward. Without a backup the whole gradient is dropped, with an error."""
        if backup is not None:
            for parameter, value in zip(self.parameters, backup, strict=True):
                parameter.grad.copy_(value)
            return
        lost = self._has_gradient
        self.zero_grad()
        if lost:
            raise UserMistake(
                "a backward was interrupted, so the gradient of the micro-batches before it is dropped",
                "lower micro_batch_tokens so that it does not run out of memory",
            )

    @torch.no_grad()
    def optim_step(self, settings: AdamSettings) -> StepTaken:
        norm = self.optimizer.gradient_norm()
        probe = Probe()
        rounds = self.model.dtype != torch.float32
        if isfinite(norm):
            self.before_change()
            if rounds:
                self.sample(probe.before)
            self.optimizer.step(settings, norm)
            self.revision += 1
            self.after_change()
            if rounds:
                self.sample(probe.after)
        self.zero_grad()
        return StepTaken(norm, isfinite(norm), probe.lost())

    def save_state(self, directory: Path, optimizer: bool = True) -> None:
        keeps = optimizer and self.optimizer.begun
        facts = StateFacts(
            self.adapter,
            self.version,
            self.optimizer.steps if optimizer else 0,
            self.model.source.name,
            self.is_critic,
        )
        write_state(directory, facts, self.named(self.parameters), self._named_moments(*self.optimizer.moments()) if keeps else None)

    @torch.no_grad()
    def load_state(self, directory: Path, optimizer: bool) -> None:
        """Also loads an exported adapter."""
        targets = self.named(self.parameters)
        shapes = {name: target.shape for name, target in targets.items()}
        state = read_state(directory, self.adapter, self.is_critic, shapes, optimizer)
        self._replace(targets, state.weights, state.version)
        if state.moments is not None:
            self.optimizer.begin()
            self.optimizer.steps = state.steps
            mean, square = self.optimizer.moments()
            for name, target in self._named_moments(mean, square).items():
                target.copy_(state.moments[name])
            self.optimizer.set_moments(mean, square)

    @torch.no_grad()
    def load_published(self, directory: Path, version: int) -> None:
        targets = self.named(self.parameters)
        shapes = {name: target.shape for name, target in targets.items()}
        self._replace(targets, read_adapter(directory, self.adapter, shapes), version)

    def _named_moments(self, mean: list[Tensor], square: list[Tensor]) -> dict[str, Tensor]:
        kinds = {"mean": mean, "square": square}
        return {
            f"{name}.{kind}": tensor
            for kind, values in kinds.items()
            for name, tensor in self.named(values).items()
        }

    def _replace(self, targets: dict[str, Tensor], weights: dict[str, Tensor], version: int) -> None:
        """Puts other weights in place, as published, with a fresh optimizer and without a gradient."""
        for name, target in targets.items():
            target.copy_(weights[name])
        self.optimizer.reset()
        self.version = version
        self.revision += 1
        self.after_change()
        self.mark_published()
        self.zero_grad()
