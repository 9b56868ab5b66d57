"""A language model: token ids -> hidden states -> logits, packed or padded."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from ..attention.context import AttentionContext, use
from ..errors import UserMistake, first_line
from .linears import LinearGroup, Member, find_members
from .loading import (
    choose_device,
    choose_dtype,
    end_tokens,
    find_folder,
    load_pretrained,
    longest_sequence,
)
from .selfcheck import causal_row, head_is_plain, why_not_packed


@dataclass(frozen=True)
class ModelSource:
    """What is needed to load the same model again."""

    directory: Path
    name: str
    device: torch.device
    dtype: torch.dtype
    gradient_checkpointing: bool
    output_layer: bool = True
    """False: the folder may lack the layer of a language model that predicts tokens."""


def find_source(
    model: str,
    name: str,
    *,
    cache_dir: Path,
    device: str = "auto",
    dtype: str = "auto",
    gradient_checkpointing: bool = False,
    output_layer: bool = True,
) -> ModelSource:
    """Finds a folder, a GGUF file or a hub id. Raises UserMistake for what the user can fix."""
    chosen = choose_device(device)
    folder = find_folder(model, Path(cache_dir).expanduser())
    return ModelSource(folder, name, chosen, choose_dtype(dtype, chosen), gradient_checkpointing, output_layer)


def load_model(model: str, name: str, **options) -> "LanguageModel":
    """Loads the language model that `find_source` finds with these options."""
    return LanguageModel(find_source(model, name, **options))


class LanguageModel:
    """One base model in memory, with the merged weights of the LoRA policy that used it last."""

    def __init__(self, source: ModelSource):
        self.source = source
        self.directory = source.directory
        self.device, self.dtype = source.device, source.dtype
        self.module = load_pretrained(
            source.directory, source.device, source.dtype, output_layer=source.output_layer
        )
        self.base = getattr(self.module, self.module.base_model_prefix, None)
        self.head = self.module.get_output_embeddings()
        if self.base is None or not isinstance(self.head, nn.Linear):
            raise UserMistake(
                f"{type(self.module).__name__} does not consist of a body and a linear output layer",
                "use another architecture",
            )
        self.config = self.module.config.get_text_config()
        self.eos_ids = end_tokens(source.directory, self.module)
        self.parameters = sum(p.numel() for p in self.module.parameters())
        self.installed: tuple | None = None
        """The LoRA policy whose weights are merged into the model now, and their revision."""
        plain_attention = self.module.config._attn_implementation
        self.attention_reason = self._try_packed()
        self.attention = "padded" if self.attention_reason else "packed"
        if self.attention_reason:
            self.module.set_attn_implementation(plain_attention)
        self.plain_head = head_is_plain(self)
        self.groups = self._group_linears()
        head_name = next(name for name, module in self.module.named_modules() if module is self.head)
        self.head_group = LinearGroup([Member(head_name, self.head, "unembed")], pack=True)
        if source.gradient_checkpointing:
            self._checkpoint_gradients()

    @property
    def vocabulary_size(self) -> int:
        return self.head.weight.shape[0]

    @property
    def max_length(self) -> int:
        return longest_sequence(self.config)

    def hidden(self, context: AttentionContext, ids: Tensor, positions: Tensor) -> Tensor:
        """Last hidden states `[T,D]` of one packed row of ids `[T]` at positions `[T]`."""
        with use(context):
            return self._body(input_ids=ids[None], position_ids=positions[None])[0]

    def padded_hidden(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Last hidden states `[B,L,D]` of rows `[B,L]`, padded on the right, by transformers' attention."""
        return self._body(input_ids=ids, attention_mask=mask)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states `[N,D]` -> logits `[N,V]`, including the model's soft-cap or scale."""
        return self.head(hidden) if self.plain_head else self.full_head(hidden)

    def full_head(self, hidden: Tensor) -> Tensor:
        """The model's own forward from the last hidden states `[N,D]` on."""
        prefix, body = self.module.base_model_prefix, self.base
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

    def forget(self) -> None:
        """Drops what an interrupted forward left behind."""
        for group in self.groups:
            group.forget()

    def _body(self, **inputs) -> Tensor:
        try:
            return self.base(**inputs, use_cache=False).last_hidden_state
        except BaseException:
            self.forget()
            raise

    @torch.no_grad()
    def _try_packed(self) -> str | None:
        """Switches to packed rows and checks them. Returns the reason if they are not possible."""
        try:
            return why_not_packed(self)
        except Exception as error:  # noqa: BLE001 - an unknown architecture can fail in any way
            return f"{type(error).__name__}: {first_line(error)}"

    def _group_linears(self) -> list[LinearGroup]:
        """All linear layers of the body. Layers that read one tensor are joined, which requires that they are
        called in sequence; a recomputed checkpoint does not promise that."""
        ids = torch.arange(3, device=self.device)

        @torch.no_grad()
        def run():
            if self.attention == "packed":
                self.hidden(causal_row(3, self.device), ids, ids)
            else:
                self.padded_hidden(ids[None], torch.ones_like(ids)[None])

        found = find_members(self.base, f"{self.module.base_model_prefix}.", run)
        if self.source.gradient_checkpointing or self.attention == "padded":
            found = [[member] for members in found for member in members]
        return [LinearGroup(members) for members in found]

    def _checkpoint_gradients(self) -> None:
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
