"""Creates policies: LoRA policies share the loaded base model, full weights have a model of their own."""

from ..memory import trim_heap
from ..models.model import LanguageModel
from .full_policy import FullPolicy
from .interface import PolicyTable
from .loaded_policy import LoadedPolicy
from .lora_policy import LoraPolicy
from .policy import BasePolicy, Policy
from .value_head import ValueHead


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
