"""A base model of plain transformers modules: hidden states -> logits, and what is known about it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from ..attention.recurrent import apply_step_limits
from ..errors import UserMistake
from .loading import (
    choose_device,
    choose_dtype,
    end_tokens,
    find_folder,
    find_processor,
    load_pretrained,
    longest_sequence,
)


@dataclass(frozen=True)
class ModelSource:
    """What is needed to load the same model again."""

    directory: Path
    name: str
    device: torch.device
    dtype: torch.dtype
    gradient_checkpointing: bool
    merges_adapters: bool = True
    """Whether the weights of a LoRA policy are merged into a copy of the base weights. Without, each product has two more."""
    optimizer: str = "adamw"
    """`adamw` or `adamw_8bit`"""
    output_layer: bool = True
    """False: the folder may lack the layer of a language model that predicts tokens."""
    processor: Path | None = None
    """The folder of the image processor, if it is not the model's own."""
    most_pixels: int = 1 << 25
    """The most pixels of an image."""


def find_source(
    model: str,
    name: str,
    *,
    cache_dir: Path,
    device: str = "auto",
    dtype: str = "auto",
    gradient_checkpointing: bool = False,
    optimizer: str = "adamw",
    output_layer: bool = True,
    processor: str | None = None,
    most_pixels: int = ModelSource.most_pixels,
) -> ModelSource:
    """Finds a folder, a GGUF file or a hub id. Raises UserMistake for what the user can fix."""
    chosen, cache = choose_device(device), Path(cache_dir).expanduser()
    return ModelSource(
        find_folder(model, cache),
        name,
        chosen,
        choose_dtype(dtype, chosen),
        gradient_checkpointing,
        optimizer=optimizer,
        output_layer=output_layer,
        processor=find_processor(processor, cache) if processor else None,
        most_pixels=most_pixels,
    )


def source_of(load: dict[str, Any], model: str | None = None, device: str | None = None) -> ModelSource:
    """What a `load` message names. `model` and `device` replace its own."""
    return find_source(
        model or load["model"],
        load.get("name", load["model"]),
        cache_dir=Path(load["cache_dir"]),
        device=device or load.get("device", "auto"),
        dtype=load.get("dtype", "auto"),
        gradient_checkpointing=load.get("gradient_checkpointing", False) is True,
        optimizer=load.get("optimizer", "adamw"),
        output_layer=load.get("head") is None,
        processor=load.get("processor"),
        most_pixels=load.get("max_image_pixels") or ModelSource.most_pixels,
    )


class PlainModel:
    """One base model in memory. A subclass sets `attention` and `plain_head`."""

    attention = "padded"
    attention_reason: str | None = None
    plain_head = False
    """Whether logits are the output layer's product and nothing else."""

    def __init__(self, source: ModelSource, device: torch.device | None = None):
        """`device`: where the weights are loaded; default: the source's."""
        self.source = source
        self.directory = source.directory
        self.device, self.dtype = source.device, source.dtype
        self.module = load_pretrained(
            source.directory, device or source.device, source.dtype, output_layer=source.output_layer
        )
        names = (self.module.base_model_prefix, "model")  # Llama 4's prefix is that of the model with a vision part
        self.base_name = next((name for name in names if isinstance(getattr(self.module, name, None), nn.Module)), None)
        self.base = self.base_name and getattr(self.module, self.base_name)
        self.head = self.module.get_output_embeddings()
        if self.base is None or not isinstance(self.head, nn.Linear):
            raise UserMistake(
                f"{type(self.module).__name__} does not consist of a body and a linear output layer",
                "use another architecture",
            )
        self.config = self.module.config.get_text_config()
        apply_step_limits(self.base)
        self.eos_ids = end_tokens(source.directory, self.module)
        self.parameters = sum(p.numel() for p in self.module.parameters())
        self.vocabulary_size = self.head.weight.shape[0]
        self.head_name = next(name for name, module in self.module.named_modules() if module is self.head)

    @property
    def max_length(self) -> int:
        return longest_sequence(self.config)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states `[N,D]` -> logits `[N,V]`, including the model's soft-cap or scale."""
        return self.head(hidden) if self.plain_head else self.full_head(hidden)

    def full_head(self, hidden: Tensor) -> Tensor:
        """The model's own forward from the last hidden states `[N,D]` on."""
        prefix, body = self.base_name, self.base
        self.module._modules[prefix] = _GivenHidden(hidden[None])
        try:
            ids = torch.zeros(1, 1, dtype=torch.long, device=hidden.device)
            return self.module(input_ids=ids, use_cache=False).logits[0]
        finally:
            self.module._modules[prefix] = body

    def info(self) -> dict:
        """ModelInfo of the engine interface, in snake_case."""
        facts = {
            "name": self.source.name,
            "directory": str(self.directory),
            "architecture": type(self.module).__name__,
            "parameters": self.parameters,
            "vocabulary_size": self.vocabulary_size,
            "max_length": self.max_length,
            "eos_token_ids": self.eos_ids,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "attention": self.attention,
        }
        return {**facts, "attention_reason": self.attention_reason} if self.attention_reason else facts

    def checkpoint_gradients(self) -> None:
        """Layers recompute their activations in the backward."""
        if not self.module.supports_gradient_checkpointing:
            raise UserMistake(
                f"{type(self.module).__name__} does not support gradient checkpointing", "switch it off"
            )
        self.module.activation_checkpointing_enable({"use_reentrant": False})
        for module in self.module.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = True  # required for checkpoints; dropout is off everywhere


class _GivenHidden(nn.Module):
    """Replaces the body of a model and returns given hidden states."""

    def __init__(self, hidden: Tensor):
        super().__init__()
        self.hidden = hidden

    def forward(self, *_, **__) -> BaseModelOutputWithPast:
        return _BodyOutput(last_hidden_state=self.hidden)


class _BodyOutput(BaseModelOutputWithPast):
    """Has only hidden states; every other field that a head reads (router logits, ...) is None."""

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        return None
