"""Makes policies: adapters share the loaded base model; full weights take a model for themselves."""

from ..errors import UserMistake
from ..memory import trim_heap
from ..models.model import LanguageModel
from .full_policy import FullPolicy
from .lora_policy import LoraPolicy
from .policy import BasePolicy, Policy
from .value_head import ValueHead


class Policies:
    """All policies of one worker, by number."""

    def __init__(self, model: LanguageModel):
        self._base: LanguageModel | None = model
        self._source = model.source
        self._alive: dict[int, Policy] = {}
        self._next = 0

    def create(self, adapter: dict, head: str | None = None) -> int:
        """`adapter` and `head` as in the protocol. The base is loaded again if full weights took it."""
        kind = adapter["kind"]
        if head not in (None, "value"):
            raise UserMistake(f"there is no head {head}", "use value, or none")
        if head is not None and kind == "none":
            raise UserMistake(
                "the base model as it is has no value head: it is never trained",
                "create the critic with lora or full",
            )
        model = self._base or LanguageModel(self._source)
        if kind == "full":
            if any(policy.model is model for policy in self._alive.values()):
                model = LanguageModel(self._source)
            else:
                self._base = None
            policy: Policy = FullPolicy(model, adapter, ValueHead(model) if head else None)
        elif kind in ("lora", "none"):
            self._base = model
            if kind == "lora":
                policy = LoraPolicy(model, adapter, ValueHead(model) if head else None)
            else:
                policy = BasePolicy(model, adapter)
        else:
            raise UserMistake(f"there is no adapter of kind {kind}", "use lora, full or none")
        trim_heap()  # what loading and joining weights left behind
        self._next += 1
        self._alive[self._next] = policy
        return self._next

    def __getitem__(self, number: int) -> Policy:
        if number not in self._alive:
            raise UserMistake(f"there is no policy {number}", "create it first; a closed one is gone")
        return self._alive[number]

    def close(self, number: int) -> None:
        """The model of full weights goes with its policy."""
        self[number].close()
        del self._alive[number]
