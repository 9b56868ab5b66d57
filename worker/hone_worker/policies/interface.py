"""What the protocol's operations do with a policy, in every backend."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import UserMistake
from ..folders import require_new
from .adamw import AdamSettings


@dataclass(frozen=True)
class StepTaken:
    """`grad_norm` is the norm before clipping; `lost_to_rounding` is Probe.lost(), None if it was not measured."""

    grad_norm: float
    applied: bool
    lost_to_rounding: float | None


class PolicyInterface(ABC):
    """`adapter`: as in the protocol. A critic computes values; it does not sample and cannot be exported."""

    trainable_parameters = 0
    is_critic = False

    def __init__(self, adapter: dict):
        self.adapter = adapter
        self.version = 0

    def require_trainable(self) -> None:
        """Raises UserMistake for a policy that is never trained."""
        if self.adapter["kind"] == "none":
            raise UserMistake(
                "the base model is not trained: it has nothing to train", "create a policy with lora or full"
            )

    def require_language_model(self) -> None:
        """Raises UserMistake for a critic."""
        if self.is_critic:
            raise UserMistake(
                "a policy with a value head cannot sample or be exported",
                "use a policy without a value head",
            )

    def publish(self) -> int:
        """Makes sampling use the current weights. Returns the new version."""
        self.require_trainable()
        self.version += 1
        return self.version

    def export(self, directory: Path, form: str) -> None:
        """Writes the current weights into a new folder: `adapter`: PEFT's files; `merged`: a Hugging Face folder."""
        self.require_language_model()
        if form == "adapter" and self.adapter["kind"] != "lora":
            raise UserMistake("a policy without LoRA has no adapter", "export it as merged")
        require_new(directory)
        self.write_export(directory, form)

    def close(self) -> None:
        """Frees what the policy holds."""

    @abstractmethod
    def write_export(self, directory: Path, form: str) -> None:
        """`export` without its checks."""

    # The operations call the following methods only after `require_trainable`.

    def zero_grad(self) -> None:
        """Drops accumulated gradients."""
        raise NotImplementedError

    def optim_step(self, settings: AdamSettings) -> StepTaken:
        """Applies and clears the gradient. A gradient that is not finite is dropped."""
        raise NotImplementedError

    def save_state(self, directory: Path, optimizer: bool = True) -> None:
        """Writes current weights, optimizer and version into a new folder. Without `optimizer`, the state has
        an optimizer that has made no step."""
        raise NotImplementedError

    def load_state(self, directory: Path, optimizer: bool) -> None:
        """Loads a saved state as published weights. Without `optimizer` the optimizer restarts. An error changes
        nothing."""
        raise NotImplementedError


P = TypeVar("P", bound=PolicyInterface)


class PolicyTable(ABC, Generic[P]):
    """All open policies, by number."""

    kinds = ("lora", "full", "none")

    def __init__(self) -> None:
        self._open: dict[int, P] = {}
        self._last = 0

    def create(self, adapter: dict, head: str | None = None) -> int:
        """`adapter` and `head` as in the protocol."""
        kind = adapter["kind"]
        if kind not in self.kinds:
            raise UserMistake(f"adapter kind {kind} does not exist", "use lora, full or none")
        if head not in (None, "value"):
            raise UserMistake(f"head {head} does not exist", "use value, or omit it")
        if head is not None and kind in ("none", "loaded"):
            raise UserMistake(
                "the base model is never trained, so it cannot have a value head",
                "create the critic with lora or full",
            )
        policy = self._make(adapter, head)
        number = self._number(policy)
        self._open[number] = policy
        return number

    def __getitem__(self, number: int) -> P:
        if number not in self._open:
            raise UserMistake(f"policy {number} does not exist", "it was never created, or was closed")
        return self._open[number]

    def close(self, number: int) -> None:
        """Frees the policy, and with full weights its model."""
        self[number].close()
        del self._open[number]

    @abstractmethod
    def _make(self, adapter: dict, head: str | None) -> P: ...

    def _number(self, policy: P) -> int:
        self._last += 1
        return self._last
