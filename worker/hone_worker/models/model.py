"""A language model: token ids -> hidden states -> logits, packed or padded."""

import torch
from torch import Tensor

from ..attention.context import AttentionContext, use
from ..errors import first_line
from .linears import LinearGroup, Member, find_members
from .plain_model import ModelSource, PlainModel, find_source
from .selfcheck import causal_row, head_is_plain, why_not_packed


def load_model(model: str, name: str, **options) -> "LanguageModel":
    """Loads the language model that `find_source` finds with these options."""
    return LanguageModel(find_source(model, name, **options))


class LanguageModel(PlainModel):
    """One base model in memory, with the merged weights of the LoRA policy that used it last."""

    def __init__(self, source: ModelSource):
        super().__init__(source)
        self.installed: tuple | None = None
        """The LoRA policy whose weights are merged into the model now, and their revision."""
        plain_attention = self.module.config._attn_implementation
        self.attention_reason = self._try_packed()
        self.attention = "padded" if self.attention_reason else "packed"
        if self.attention_reason:
            self.module.set_attn_implementation(plain_attention)
        self.plain_head = head_is_plain(self)
        self.groups = self._group_linears()
        self.head_group = LinearGroup([Member(self.head_name, self.head, "unembed")], pack=True)
        if source.gradient_checkpointing:
            self.checkpoint_gradients()

    def hidden(self, context: AttentionContext, ids: Tensor, positions: Tensor) -> Tensor:
        """Last hidden states `[T,D]` of one packed row of ids `[T]` at positions `[T]`."""
        with use(context):
            return self._body(input_ids=ids[None], position_ids=positions[None])[0]

    def padded_hidden(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Last hidden states `[B,L,D]` of rows `[B,L]`, padded on the right, by transformers' attention."""
        return self._body(input_ids=ids, attention_mask=mask)

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
