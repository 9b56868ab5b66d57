"""Policies whose weights are divided over the ranks. All ranks call the same methods; rank 0 writes the files."""

import os
from math import isfinite
from pathlib import Path

import torch
import torch.distributed as dist
from hone_worker.errors import UserMistake
from hone_worker.folders import require_new
from hone_worker.memory import trim_heap
from hone_worker.models.plain_model import ModelSource
from hone_worker.policies.adamw import AdamSettings
from hone_worker.policies.files import StateFacts, export_adapter, export_merged, read_state, write_state
from hone_worker.policies.interface import PolicyInterface, PolicyTable, StepTaken
from hone_worker.policies.rounding import Thresholds
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from . import ulysses
from .model import DenseModel, TokenOutputs, load_plain
from .sharding import MOMENTS, Fsdp, Sharding, ShardingOptions


class ShardedPolicy(PolicyInterface):
    def __init__(self, adapter: dict, model: TokenOutputs, sharding: Sharding):
        super().__init__(adapter)
        self.model, self.sharding = model, sharding
        self.is_critic = model.value_head is not None and adapter["kind"] != "none"

    @property
    def trainable_parameters(self) -> int:
        return sum(shape.numel() for shape in self._trained.values())

    @property
    def _trained(self) -> dict[str, torch.Size]:
        return {} if self.adapter["kind"] == "none" else self.sharding.trained

    def use(self) -> None:
        """Makes the model compute with this policy's weights."""
        if self.model.adapter is not None:
            self.model.adapter.on = self.adapter["kind"] == "lora"

    def zero_grad(self) -> None:
        self.sharding.zero_grad()

    def optim_step(self, settings: AdamSettings) -> StepTaken:
        """Does not measure the share of the update that is lost to rounding."""
        norm = self.sharding.gradient_norm()
        if isfinite(norm):
            self.sharding.step(settings, norm)
        self.sharding.zero_grad()
        return StepTaken(norm, isfinite(norm), 0.0 if self.model.plain.dtype == torch.float32 else None)

    def save_state(self, directory: Path, optimizer: bool = True) -> None:
        """Writes the same files as hone_worker's policies."""
        require_new(directory)  # on all ranks, before they gather weights
        steps = self.sharding.steps if optimizer else 0
        weights = {name: self.sharding.gather(name) for name in self._trained}
        moments = {
            f"{name}.{kind}": self.sharding.gather(name, kind) for kind in MOMENTS for name in self._trained if steps
        }
        if dist.get_rank() == 0:
            facts = StateFacts(self.adapter, self.version, steps, self.model.plain.source.name, self.is_critic)
            write_state(directory, facts, weights, moments or None)

    def load_state(self, directory: Path, optimizer: bool) -> None:
        """Loads the files of `save_state` or of hone_worker's policies, written by any number of ranks."""
        state = read_state(directory, self.adapter, self.is_critic, self._trained, optimizer)
        for name in self._trained:
            self.sharding.scatter(name, state.weights[name])
        self.sharding.reset()
        self.sharding.zero_grad()
        if state.moments is not None:
            for kind in MOMENTS:
                for name in self._trained:
                    self.sharding.scatter(name, state.moments[f"{name}.{kind}"], kind)
            self.sharding.steps = state.steps
        self.version = state.version

    def write_export(self, directory: Path, form: str) -> None:
        if form == "adapter":
            weights = {name: self.sharding.gather(name) for name in self._trained}
            if dist.get_rank() == 0:
                export_adapter(self.model.plain, self.adapter, self.model.adapter.members, weights, directory)
            return
        weights = {name: self.sharding.gather(name) for name in self.model.named()}
        if dist.get_rank() == 0:
            if self.model.adapter is not None:
                self._merge(weights, self.adapter["kind"] == "lora")
            plain = self.model.plain
            stored = plain.module.state_dict().keys()
            buffers = {name: buffer for name, buffer in plain.module.named_buffers() if name in stored}
            if plain.vision is not None:
                weights |= plain.vision.weights
            low = {name: weight.to(plain.dtype) for name, weight in weights.items()}
            export_merged(plain, low, directory, buffers)

    def _merge(self, weights: dict[str, Tensor], adapted: bool) -> None:
        """Removes the adapter's tensors from the weights, and merges them into the layers as hone_worker's sampler does."""
        for member in self.model.adapter.members:
            a, b = (weights.pop(f"{member.name}.lora_{which}.weight") for which in "AB")
            name = f"{member.name}.weight"
            if not adapted:
                continue
            base = weights.get(name)
            if base is None:  # an output layer that is tied to the embedding
                base = weights[self._embedding]
            transposed = isinstance(member.module, Conv1D)
            exact = torch.addmm((base.t() if transposed else base).float(), b, a, alpha=self.model.adapter.scale)
            rounded = torch.empty_like(exact, dtype=base.dtype)
            Thresholds(member.name, tuple(exact.shape), exact.device).round(exact, rounded)
            weights[name] = rounded.t() if transposed else rounded

    @property
    def _embedding(self) -> str:
        embedding = self.model.plain.module.get_input_embeddings()
        return next(f"{name}.weight" for name, each in self.model.plain.module.named_modules() if each is embedding)


class ShardedPolicies(PolicyTable[ShardedPolicy]):
    """`loaded`: the model of `source`, which the first policy uses; others load it again."""

    def __init__(
        self, source: ModelSource, loaded: DenseModel, options: ShardingOptions, chunk_size: int, sequence_ranks: int
    ):
        super().__init__()
        self._source = source
        self._loaded: DenseModel | None = loaded
        self._options = options
        self._chunk_size, self._sequence_ranks = chunk_size, sequence_ranks

    def _make(self, adapter: dict, head: str | None) -> ShardedPolicy:
        if adapter.get("train_vision"):
            raise UserMistake(
                "several processes do not train the vision part", "use model.train_vision=false or local.processes=1"
            )
        if adapter["kind"] == "none":
            shared = next((p for p in self._open.values() if p.adapter["kind"] != "full" and not p.is_critic), None)
            if shared is not None:  # the same weights without the adapter
                return ShardedPolicy(adapter, shared.model, shared.sharding)
        plain, self._loaded = self._loaded or load_plain(self._source), None
        model = TokenOutputs(plain, adapter, head, self._chunk_size)
        if self._sequence_ranks > 1:
            ulysses.enable(plain, self._sequence_ranks)
        sharding = make_sharding(model, self._options)
        trim_heap()
        return ShardedPolicy(adapter, model, sharding)


def make_sharding(module: TokenOutputs, options: ShardingOptions) -> Sharding:
    """Opens the sharding that the options name. ZeRO shards only trained weights, so a frozen model is sharded by FSDP."""
    if options.kind.startswith("zero") and any(weight.requires_grad for weight in module.parameters()):
        # DeepSpeed reads these variables when it is imported, and when it starts.
        rank, ranks = str(dist.get_rank()), str(dist.get_world_size())
        os.environ |= {"DS_ACCELERATOR": options.device.type, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
        from .zero import Zero

        return Zero(module, options)
    return Fsdp(module, options)
