"""Creates policies: LoRA policies share the loaded base model, full weights have a model of their own."""

from ..errors import UserMistake
from ..memory import trim_heap
from ..models.model import LanguageModel
from .full_policy import FullPolicy
from .loaded_policy import LoadedPolicy
from .lora_policy import LoraPolicy
from .policy import BasePolicy, Policy
from .value_head import ValueHead


class Policies:
    """All policies of the worker, by number."""

    def __init__(self, model: LanguageModel):
        self._base: LanguageModel | None = model
        self._source = model.source
        self._alive: dict[int, Policy] = {}
        self._next = 0

    def create(self, adapter: dict, head: str | None = None) -> int:
        """`adapter` and `head` as in the protocol. Loads the base model again if full weights took it."""
        kind = adapter["kind"]
        if kind not in ("lora", "full", "none", "loaded"):
            raise UserMistake(f"adapter kind {kind} does not exist", "use lora, full or none")
        if head not in (None, "value"):
            raise UserMistake(f"head {head} does not exist", "use value, or omit it")
        if head is not None and kind in ("none", "loaded"):
            raise UserMistake(
                "the base model is never trained, so it cannot have a value head",
                "create the critic with lora or full",
            )
        model = self._base or LanguageModel(self._source)
        self._base = model
        if kind in ("full", "loaded"):
            if any(policy.model is model for policy in self._alive.values()):
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
        self._next += 1
        self._alive[self._next] = policy
        return self._next

    def __getitem__(self, number: int) -> Policy:
        if number not in self._alive:
            raise UserMistake(f"policy {number} does not exist", "it was never created, or was closed")
        return self._alive[number]

    def close(self, number: int) -> None:
        """Frees the policy, and with full weights its model."""
        self[number].close()
        del self._alive[number]
