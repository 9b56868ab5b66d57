"""A policy: weights over a base model with a published and a current version, an optimizer, and its files.

Sampling uses the published weights, training the current ones. They are the same until an optimizer step;
publishing makes them the same again. How the weights lie over the model is the subclasses' business."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from math import isfinite
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from ..errors import UserMistake
from ..folders import write_folder, write_json, write_tensors
from ..models.checkpoint_files import read_json
from ..models.model import LanguageModel
from .adamw import AdamSettings, AdamW
from .value_head import ValueHead

_identities = count()


class Policy(ABC):
    """What the worker's operations call. `model` is the LanguageModel that the weights lie over."""

    trains_head = False
    """Whether the output layer gets gradients."""

    value_head: ValueHead | None = None
    """What makes it a critic: it gives values, samples nothing and is not exported."""

    def __init__(self, model: LanguageModel, adapter: dict):
        self.model = model
        self.adapter = adapter
        self.version = 0
        self.identity = next(_identities)

    @abstractmethod
    def published(self) -> AbstractContextManager[LanguageModel]:
        """Within the block the model's weights are those of the last publish."""

    @abstractmethod
    def current(self) -> AbstractContextManager[LanguageModel]:
        """Within the block the model's weights are the current ones."""

    @property
    def can_sample(self) -> bool:
        """Whether `published()` is possible now; where not, a publish makes it so."""
        return True

    @property
    def trainable_parameters(self) -> int:
        return 0

    @abstractmethod
    def require_trainable(self) -> None:
        """Raises UserMistake for a policy that is never trained."""

    def require_language_model(self) -> None:
        """Raises UserMistake for a critic."""
        if self.value_head is not None:
            raise UserMistake(
                "this policy has a value head: it gives values, samples nothing and has no export",
                "sample from, and export, a policy without one",
            )

    @abstractmethod
    def publish(self) -> int:
        """Makes the current weights those that sampling uses; gives the new version."""

    @abstractmethod
    def export(self, directory: Path, form: str) -> None:
        """`adapter`: PEFT's files; `merged`: a Hugging Face folder. Of the current weights."""

    def close(self) -> None:
        """Frees what the policy holds."""


class BasePolicy(Policy):
    """The base model as it is."""

    @contextmanager
    def published(self) -> Iterator[LanguageModel]:
        if self.model.installed is not None:
            self.model.installed[0].uninstall()
        yield self.model

    def current(self) -> AbstractContextManager[LanguageModel]:
        return self.published()

    def require_trainable(self) -> None:
        raise UserMistake(
            "this policy is the base model as it is and has nothing to train", "create one with lora or full"
        )

    def publish(self) -> int:
        self.require_trainable()
        return 0

    def export(self, directory: Path, form: str) -> None:
        from .export import export_merged

        if form != "merged":
            raise UserMistake("the base model has no adapter to export", "export it as merged")
        export_merged(self.model, {}, directory)


class TrainedPolicy(Policy):
    """A policy with fp32 parameters that gradients are added to. Those of a value head come last."""

    def __init__(
        self, model: LanguageModel, adapter: dict, weights: list[Tensor], value_head: ValueHead | None
    ):
        super().__init__(model, adapter)
        self.value_head = value_head
        self._weight_count = len(weights)
        self.parameters = [*weights, *(value_head.parameters if value_head else [])]
        self.optimizer = AdamW(self.parameters)
        self.revision = 0
        """Counts changes of the current weights."""
        self._has_gradient = False
        self.backs_up = model.device.type != "cpu"
        """Whether a backward that runs out of memory can be undone. On a CPU that is the end of the process
        anyway."""

    @property
    def trainable_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters)

    def named(self, values: list[Tensor]) -> dict[str, Tensor]:
        """Tensors shaped like the parameters, as views under the names that files use."""
        count = self._weight_count
        head = ValueHead.named(values[count:]) if self.value_head else {}
        return {**self.named_weights(values[:count]), **head}

    @abstractmethod
    def named_weights(self, values: list[Tensor]) -> dict[str, Tensor]:
        """The same without the value head."""

    @abstractmethod
    def before_change(self) -> None:
        """The current weights are about to change: keeps the published ones, if they can be kept."""

    @abstractmethod
    def after_change(self, as_published: bool) -> None:
        """The current weights have changed; `as_published` says that they count as published."""

    def require_trainable(self) -> None:
        pass

    def zero_grad(self) -> None:
        """Drops accumulated gradients."""
        for parameter in self.parameters:
            parameter.grad.zero_()
        self._has_gradient = False

    def gradient_added(self) -> None:
        """Notes that a backward has completed."""
        self._has_gradient = True

    def gradient_backup(self) -> list[Tensor] | None:
        """What `restore_gradient` needs to undo a backward; None if there is no gradient, or no backup."""
        if not (self._has_gradient and self.backs_up):
            return None
        return [parameter.grad.clone() for parameter in self.parameters]

    def restore_gradient(self, backup: list[Tensor] | None) -> None:
        """Undoes a backward that was broken off; without a backup nothing is left, which the person is
        told."""
        if backup is not None:
            for parameter, value in zip(self.parameters, backup, strict=True):
                parameter.grad.copy_(value)
            return
        lost = self._has_gradient
        self.zero_grad()
        if lost:
            raise UserMistake(
                "a backward was broken off; the gradient of the micro-batches before it is dropped",
                "lower micro_batch_tokens so that it does not run out of memory",
            )

    def optim_step(self, settings: AdamSettings) -> tuple[float, bool]:
        """Applies and clears the gradient: (its norm before clipping, True). One that is not finite is
        dropped: (norm, False), weights and optimizer untouched."""
        norm = self.optimizer.gradient_norm()
        if isfinite(norm):
            self.before_change()
            self.optimizer.step(settings, norm)
            self.revision += 1
            self.after_change(as_published=False)
        self.zero_grad()
        return norm, isfinite(norm)

    def save_state(self, directory: Path, optimizer: bool = True) -> None:
        """Current weights, optimizer and version into a folder that does not exist yet: safetensors and
        JSON. Without `optimizer` the state is that of one that has not begun."""

        def fill(folder: Path) -> None:
            adam = self.optimizer
            write_tensors(folder / "weights.safetensors", self.named(self.parameters))
            if optimizer and adam.begun:
                moments = {
                    f"{name}.{kind}": tensor
                    for kind, values in (("mean", adam.mean), ("square", adam.square))
                    for name, tensor in self.named(values).items()
                }
                write_tensors(folder / "optimizer.safetensors", moments)
            write_json(
                folder / "policy.json",
                {
                    "adapter": self.adapter,
                    "version": self.version,
                    "steps": adam.steps if optimizer else 0,
                    "model": self.model.source.name,
                    **({"head": "value"} if self.value_head else {}),
                },
            )

        write_folder(Path(directory), fill)

    @torch.no_grad()
    def load_state(self, directory: Path, optimizer: bool) -> None:
        """Puts a saved state in place, as published. Without `optimizer` its moments begin anew. All or
        nothing."""
        directory = Path(directory)
        if (directory / "adapter_config.json").exists():
            self._load_adapter(directory)
            return
        state = read_json(directory / "policy.json")
        self._check_adapter(directory, state.get("adapter", {}))
        if (state.get("head") == "value") != (self.value_head is not None):
            theirs, ours = ("a critic", "is none") if self.value_head is None else ("no critic", "is one")
            raise UserMistake(
                f"{directory} holds the state of {theirs}, and this policy {ours}",
                "a run's checkpoint has the policy in policy/ and the critic in critic/",
            )
        weights = _tensors(directory / "weights.safetensors", self.named(self.parameters))
        moments: dict[str, Tensor] = {}
        if optimizer and state["steps"] > 0:
            names = {
                f"{name}.{kind}": tensor
                for kind in ("mean", "square")
                for name, tensor in self.named(self.parameters).items()
            }
            moments = _tensors(directory / "optimizer.safetensors", names)
        for name, target in self.named(self.parameters).items():
            target.copy_(weights[name])
        self._begin_anew(state["version"])
        if moments:
            self.optimizer.begin()
            self.optimizer.steps = state["steps"]
            for kind, values in (("mean", self.optimizer.mean), ("square", self.optimizer.square)):
                for name, target in self.named(values).items():
                    target.copy_(moments[f"{name}.{kind}"])

    def _begin_anew(self, version: int) -> None:
        """After other weights were put in place: they are published, without optimizer or gradient."""
        self.optimizer.reset()
        self.version = version
        self.revision += 1
        self.after_change(as_published=True)
        self.zero_grad()

    def _load_adapter(self, directory: Path) -> None:
        """Weights in the form of PEFT, as `export` writes them."""
        config, ours = read_json(directory / "adapter_config.json"), self.adapter
        if ours["kind"] != "lora" or (config.get("r"), config.get("lora_alpha")) != (ours["rank"], ours["alpha"]):
            raise UserMistake(
                f"{directory} holds an adapter of rank {config.get('r')} and alpha {config.get('lora_alpha')}; "
                f"this policy is {ours}",
                "create the policy with the adapter's settings",
            )
        targets = {f"base_model.model.{name}": tensor for name, tensor in self.named(self.parameters).items()}
        weights = _tensors(directory / "adapter_model.safetensors", targets)
        if more := sorted(set(weights) - set(targets)):
            raise UserMistake(
                f"{directory} adapts modules that this policy does not, for example {more[0]}",
                "create the policy with the adapter's targets",
            )
        for name, target in targets.items():
            target.copy_(weights[name])
        self._begin_anew(0)

    def _check_adapter(self, directory: Path, saved: dict) -> None:
        shape = ("kind", "rank", "alpha", "targets")
        ours, theirs = ({key: adapter.get(key) for key in shape} for adapter in (self.adapter, saved))
        if ours != theirs:
            raise UserMistake(
                f"{directory} holds the state of another adapter: {theirs}, this policy has {ours}",
                "create the policy with the saved settings, or begin anew",
            )


def _tensors(path: Path, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file, which must have the expected names and shapes."""
    try:
        found = load_file(path)
    except Exception as error:
        raise UserMistake(f"{path} cannot be read: {error}", "use another checkpoint") from None
    wrong = [
        name for name, value in expected.items() if name not in found or found[name].shape != value.shape
    ]
    if wrong:
        raise UserMistake(
            f"{path} does not fit this model, for example {wrong[0]}",
            "load it with the model it was made with",
        )
    return found
