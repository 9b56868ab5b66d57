"""A policy that only samples: its weights are those of the last folder that another learner published."""

from dataclasses import replace
from pathlib import Path

import torch

from ..errors import UserMistake
from ..models.model import LanguageModel
from ..models.plain_model import PlainModel
from .export import export_merged
from .policy import Policy


class LoadedPolicy(Policy):
    """`adapter`: `{"kind": "loaded"}`. It has a model of its own."""

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
