"""A language model: token ids -> hidden states -> logits, packed or padded."""

import sys
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..attention.context import NAME, AttentionContext, use
from ..attention.recurrent import RecurrentRow, find_mixers
from ..attention.tree import Family, PackedAttention, SdpaTree, Tree
from ..errors import UnusableImage, UserMistake, first_line
from ..images.pictures import Piece, place
from .experts import Mixtures, find_experts
from .linears import LinearGroup, Member, find_members
from .loading import reads_images
from .plain_model import ModelSource, PlainModel, find_source
from .selfcheck import causal_row, head_is_plain, why_images_differ, why_not_packed

if TYPE_CHECKING:
    from ..images.vision import Probe, Vision


def fastest_attention(device: str) -> PackedAttention | None:
    """For packed rows on an accelerator; None: tiles."""
    if device == "cuda":
        from ..attention.flex import FlexTree  # needs a torch that has FlexAttention's auxiliary outputs

        return FlexTree
    if device == "mps":
        return SdpaTree
    return None


_WITHOUT_OUT_PROJ = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
"""Types of models for which PEFT refuses adapters with this layer."""


def load_model(model: str, name: str, **options) -> "LanguageModel":
    """Loads the language model that `find_source` finds with these options."""
    return LanguageModel(find_source(model, name, **options))


class LanguageModel(PlainModel):
    """One base model in memory, with the merged weights of the LoRA policy that used it last."""

    balances = False
    """Whether forwards compute `balance`, transformers' auxiliary loss of mixtures of experts."""
    balance: Tensor | None = None

    def __init__(self, source: ModelSource):
        super().__init__(source)
        self.installed: tuple | None = None
        """The LoRA policy whose weights are merged into the model now, and their revision."""
        self.groups: list[LinearGroup] = []
        """All linear layers of the body, once they are found."""
        self.decoder = self.module.get_decoder() if reads_images(self.module.config) else self.module
        """The language part, whose attention can be packed."""
        self.vision, probe, self.images_reason = self._open_vision()
        self.plain_attention = self.decoder.config._attn_implementation
        """Transformers' own implementation."""
        self.mixers = find_mixers(self.decoder)
        self.mixtures = Mixtures(self.module, self.base)
        self.attention_reason = self._try_packed(Tree)
        self.attention = "padded" if self.attention_reason else "packed"
        if self.attention_reason:
            self.decoder.set_attn_implementation(self.plain_attention)
        self.tree = self._choose_tree()
        """Computes attention over packed rows in training."""
        self.plain_head = head_is_plain(self)
        if probe is not None and (reason := why_images_differ(self, probe)):
            self.vision, self.images_reason = None, self._unsupported(reason)
        self.groups = self._group_linears()
        self.vision_groups = [] if self.vision is None else self._group_vision(probe)
        self.expert_groups = find_experts(self.base, f"{self.base_name}.")
        self.head_group = LinearGroup([Member(self.head_name, self.head, "unembed")], pack=True)
        if source.gradient_checkpointing:
            self.checkpoint_gradients()

    def inputs(self, ids: Tensor, positions: Tensor, pieces: Sequence[Piece] = ()) -> dict[str, Tensor]:
        """What transformers' forward reads for ids and positions `[B,L]`. `pieces` are those of the flat ids that
        have images."""
        own = self.vision.row_positions(pieces, positions.flatten()) if pieces else None
        given = {"position_ids": positions if own is None else own.view(3, *ids.shape)}
        placed = place(pieces, self.device)
        if placed is None:
            return {"input_ids": ids, **given}
        embedded = self.module.get_input_embeddings()(ids)
        features = self.vision.features(placed.images)[placed.features].to(embedded.dtype)
        first, *deeper = features.split(embedded.shape[-1], -1)
        filled = embedded.flatten(0, 1).index_copy(0, placed.places, first)
        at = torch.zeros(ids.numel(), dtype=torch.bool, device=self.device).index_fill_(0, placed.places, True).view(ids.shape)
        if self.vision.sees_ahead and self.attention == "padded":
            given["token_type_ids"] = at.int()
        if deeper:
            order = placed.places.argsort()
            given["deeper"] = {
                "visual_pos_masks": at,
                "deepstack_visual_embeds": [layer[order] for layer in deeper],
            }
        return {"inputs_embeds": filled.view(embedded.shape), **given}

    def row(self, families: list[Family], positions: Tensor, tree: PackedAttention | None = None) -> AttentionContext:
        """The context of a packed row in training."""
        attention = (tree or self.tree)(families, positions)
        return RecurrentRow(attention, families, self.device) if self.mixers else attention

    def hidden(
        self, context: AttentionContext, ids: Tensor, positions: Tensor, pieces: Sequence[Piece] = ()
    ) -> Tensor:
        """Last hidden states `[T,D]` of one packed row of ids `[T]` at positions `[T]`."""
        if pieces and self.vision.sees_ahead:
            context.see_ahead(self.vision.since(pieces, positions))
        with use(context):
            return self._body(**self.inputs(ids[None], positions[None], pieces))[0]

    def padded_hidden(self, ids: Tensor, mask: Tensor, pieces: Sequence[Piece] = ()) -> Tensor:
        """Last hidden states `[B,L,D]` of rows `[B,L]`, padded on the right, by transformers' attention."""
        if not pieces:
            return self._body(input_ids=ids, attention_mask=mask)
        positions = torch.arange(ids.shape[1], device=self.device).expand(ids.shape)
        return self._body(**self.inputs(ids, positions, pieces), attention_mask=mask)

    def info(self) -> dict:
        facts = super().info() | self._cost() | {"images": None if self.vision is None else self.vision.info()}
        promised = self.vision is None and reads_images(self.module.config)
        return facts | ({"images_reason": self.images_reason} if promised else {})

    def _cost(self) -> dict[str, str]:
        """What padded rows, or recurrent layers in packed rows, cost."""
        if self.attention == "padded":
            return {"attention_reason": f"{self.attention_reason}; each sample computes its prompt again"}
        if not self.mixers:
            return {}
        repeats = not all(mixer.continues for mixer in self.mixers)
        many = len(self.mixers) > 1
        if repeats:
            how = f"compute{'' if many else 's'} the prompt again for each of its samples"
        else:
            how = f"continue{'' if many else 's'} the state of the prompt"
        return {"attention_reason": f"{len(self.mixers)} recurrent layer{'s' if many else ''}, which {how}"}

    def weights_to_train(self, vision: bool) -> dict[str, nn.Parameter]:
        """The model's weights by name, of the language part or of all parts."""
        language = {id(weight) for part in (self.decoder, self.head) for weight in part.parameters()}
        named = self.module.named_parameters()
        return {name: weight for name, weight in named if vision or id(weight) in language}

    def use_vision(self, version: Hashable) -> None:
        """Says which weights the vision part has now; None: those of the model's files."""
        if self.vision is not None:
            self.vision.version = version

    def forget(self) -> None:
        """Drops what an interrupted forward left behind."""
        for group in self.groups:
            group.forget()

    def run_body(self, deeper: dict | None = None, **inputs):
        """transformers' output for what `inputs` returns."""
        if deeper is None:
            return self.base(**inputs, use_cache=False)
        # The body only passes these on if it computes the images itself.
        hook = self.decoder.register_forward_pre_hook(lambda _, args, named: (args, {**named, **deeper}), with_kwargs=True)
        try:
            return self.base(**inputs, use_cache=False)
        finally:
            hook.remove()

    def _body(self, **inputs) -> Tensor:
        try:
            if not self.balances:
                return self.run_body(**inputs).last_hidden_state
            output = self.run_body(**inputs, output_router_logits=True)
            self.balance = self.mixtures.loss(output.router_logits, inputs.get("attention_mask"))
            return output.last_hidden_state
        except BaseException:
            self.forget()
            raise

    @torch.no_grad()
    def _open_vision(self) -> "tuple[Vision | None, Probe | None, str | None]":
        """The vision part, its test, and why there is none."""
        if not callable(getattr(self.base, "get_image_features", None)):
            return None, None, f"{type(self.module).__name__} reads only text"
        try:
            from ..images.vision import open_vision  # imports Pillow, which text models do not need

            processor = self.source.processor or self.directory
            return *open_vision(self.base, self.directory, processor, self.source.most_pixels), None
        except (UserMistake, UnusableImage) as reason:
            return None, None, self._unsupported(str(reason))
        except Exception as error:  # noqa: BLE001 - an unknown architecture can fail in any way
            return None, None, self._unsupported(f"{type(error).__name__}: {first_line(error)}")

    def _unsupported(self, cause: str) -> str:
        """The reason why images are not supported. In other families than the tested ones, the cause is rarely a mistake."""
        from ..images.processor import FAMILIES

        kind = self.module.config.model_type
        if kind in FAMILIES:
            return cause
        return f"images for models of type {kind} are not supported here ({cause}); docs/reference/models.md lists others"

    def _choose_tree(self) -> PackedAttention:
        """The accelerator's own attention, if it gives the same results there."""
        if self.attention == "padded":
            return Tree
        try:
            tree = fastest_attention(self.device.type)
        except ImportError as error:
            tree, reason = Tree, first_line(error)
        else:
            if tree is None:
                return Tree
            reason = self._try_packed(tree)
        self.decoder.set_attn_implementation(NAME)  # also after a failure
        if reason is None:
            return tree
        print(f"attention by tiles, which need more memory for long rows: {reason}", file=sys.stderr, flush=True)
        return Tree

    @torch.no_grad()
    def _try_packed(self, tree: PackedAttention) -> str | None:
        """Switches to packed rows and checks them. Returns the reason if they are not possible."""
        try:
            return why_not_packed(self, tree)
        except Exception as error:  # noqa: BLE001 - an unknown architecture can fail in any way
            return f"{type(error).__name__}: {first_line(error)}"

    def _group_linears(self) -> list[LinearGroup]:
        """All linear layers of the body. Layers that read one tensor are joined, which requires that they are
        called in sequence; a recomputed checkpoint does not promise that."""
        ids = torch.arange(3, device=self.device)

        @torch.no_grad()
        def run():
            if self.attention == "packed":
                self.hidden(causal_row(self, 3), ids, ids)
            else:
                self.padded_hidden(ids[None], torch.ones_like(ids)[None])

        return self._groups(run, self.source.gradient_checkpointing or self.attention == "padded")

    @torch.no_grad()
    def _group_vision(self, probe: "Probe") -> list[LinearGroup]:
        """All linear layers of the vision part, each by itself."""
        return self._groups(lambda: self.vision.compute([probe.image]), True)

    def _groups(self, run: Callable[[], object], apart: bool) -> list[LinearGroup]:
        found = find_members(self.base, f"{self.base_name}.", run)
        if self.module.config.model_type in _WITHOUT_OUT_PROJ:
            found = [[member for member in members if not member.name.endswith(".out_proj")] for members in found]
        if apart:
            found = [[member] for members in found for member in members]
        return [LinearGroup(members) for members in found if members]
