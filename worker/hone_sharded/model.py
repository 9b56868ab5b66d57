"""A model with its adapter and value head as one module, whose forward computes the outputs of tokens. Its vision part stays outside
of the module."""

import copy
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from hone_worker.errors import UserMistake
from hone_worker.folders import read_value_layer
from hone_worker.images.pictures import Piece, place
from hone_worker.images.vision import Vision, vision_of
from hone_worker.models.linears import Member, find_members
from hone_worker.models.plain_model import ModelSource, PlainModel
from hone_worker.models.selfcheck import head_is_plain
from hone_worker.policies.lora import initial_a
from hone_worker.training.head import outputs_of_logits, token_outputs
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

# The vision part is removed from the model. It is not trained, so every rank keeps a full copy outside of the sharded
# model.


@dataclass(frozen=True)
class VisionPart:
    """The vision part of a model whose language part is sharded."""

    vision: Vision
    weights: dict[str, Tensor]
    """The weights, by their names in the model's files."""

    def features(self, pieces: list[Piece], device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Returns the places `[K]` of image tokens in padded rows, and the features `[K,D]` that replace them."""
        placed = place(pieces, device)
        return None if placed is None else (placed.places, self.vision.features(placed.images)[placed.features])

    def positions(self, pieces: list[Piece], shape: tuple[int, int]) -> np.ndarray | None:
        """The positions `[3,B,L]` of padded rows `[B,L]`; None if the model numbers all tokens in order."""
        flat = torch.arange(shape[1]).expand(shape).flatten()
        found = self.vision.row_positions(pieces, flat) if pieces else None
        return None if found is None else found.view(3, *shape).numpy()


def take_vision(model: PlainModel) -> VisionPart | None:
    """Returns None for a language model. Raises UserMistake if the image processor cannot be used."""
    base, source = model.base, model.source
    if not callable(getattr(base, "get_image_features", None)):
        return None
    seeing = copy.copy(base)
    seeing._modules = dict(base._modules)
    decoder = model.module.get_decoder()
    weights: dict[str, Tensor] = {}
    for name, part in list(base._modules.items()):
        if part is decoder:
            del seeing._modules[name]
            continue
        part.to(source.device).requires_grad_(False)
        del base._modules[name]
        weights |= {f"{model.base_name}.{name}.{key}": value for key, value in part.state_dict().items()}
    vision = vision_of(seeing, model.directory, source.processor)
    vision.most_pixels = source.most_pixels
    if hasattr(base.config.vision_config, "deepstack_visual_indexes"):
        raise UserMistake(
            f"images for models of type {base.config.model_type} are not supported with local.processes > 1",
            "use local.processes=1",
        )
    return VisionPart(vision, weights)


# Low-rank adapters as plain modules: each adapted layer gets the children `lora_A` and `lora_B`, so that its
# parameters have the names that they have in checkpoints.


@dataclass
class Adapter:
    """The adapted layers of one model."""

    members: list[Member]
    scale: float
    on: bool = True
    """Off: the base model."""


def add_lora(model: PlainModel, spec: dict) -> Adapter:
    """`spec`: `{"kind": "lora", "rank", "alpha", "targets", "seed"}`."""
    rank, targets = spec["rank"], set(spec["targets"])
    members = [member for member in linear_members(model) if member.kind in targets]
    if rank < 1 or not members:
        raise UserMistake(
            f"{type(model.module).__name__} has no adapter of rank {rank} for {', '.join(sorted(targets))}",
            "use rank >= 1 and other targets, or full fine-tuning",
        )
    adapter = Adapter(members, spec["alpha"] / rank)
    for member in members:
        layer, (outputs, inputs) = member.module, member.weight.shape
        device = member.weight.device
        forward = layer.forward
        layer.lora_A = nn.Linear(inputs, rank, bias=False, device=device, dtype=torch.float32)
        layer.lora_B = nn.Linear(rank, outputs, bias=False, device=device, dtype=torch.float32)
        with torch.no_grad():
            layer.lora_A.weight.copy_(initial_a(spec["seed"], member.name, rank, inputs))
            layer.lora_B.weight.zero_()
        layer.forward = partial(_forward, adapter, layer, forward)
    return adapter


def linear_members(model: PlainModel) -> list[Member]:
    """The layers that an adapter can have."""

    @torch.no_grad()
    def run() -> None:
        model.base(input_ids=torch.arange(3, device=model.head.weight.device)[None], use_cache=False)

    groups = find_members(model.base, f"{model.base_name}.", run)
    return [member for group in groups for member in group] + [Member(model.head_name, model.head, "unembed")]


def _forward(adapter: Adapter, layer: nn.Module, forward, x: Tensor) -> Tensor:
    y = forward(x)
    return y + adapter.scale * layer.lora_B(layer.lora_A(x)) if adapter.on else y


# The module.

_MIXTURES = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


class DenseModel(PlainModel):
    """The language part of a model."""

    def __init__(self, source: ModelSource):
        """Loads the model on the CPU. Raises UserMistake if it is not a dense language model."""
        super().__init__(source, torch.device("cpu"))
        self.vision: VisionPart | None = take_vision(self)
        _refuse_others(self)

    def info(self) -> dict:
        return super().info() | {"images": None if self.vision is None else self.vision.vision.info()}


def load_plain(source: ModelSource) -> DenseModel:
    """Loads the model on the CPU, and checks it."""
    model = DenseModel(source)
    model.plain_head = head_is_plain(model)
    model.attention_reason = "processes that share a model use transformers' own attention"
    if source.gradient_checkpointing:
        model.checkpoint_gradients()
    return model


class TokenOutputs(nn.Module):
    """All computation is in `forward`, so a sharding only has to wrap this module and its layers."""

    def __init__(self, model: DenseModel, spec: dict, head: str | None, chunk_size: int):
        """`spec` and `head`: `adapter` and `head` of create_policy."""
        super().__init__()
        self.plain = model
        self.chunk = max(1, chunk_size)
        self.module = model.module
        self.adapter: Adapter | None = add_lora(model, spec) if spec["kind"] == "lora" else None
        if self.adapter is not None:
            for member in self.adapter.members:
                member.module.lora_A.requires_grad_(True)
                member.module.lora_B.requires_grad_(True)
        elif spec["kind"] == "full":
            for parameter in self.module.parameters():
                if parameter.is_floating_point():
                    parameter.data = parameter.data.float()  # master weights
                    parameter.requires_grad_(True)
        self.value_head = _value_head(model) if head == "value" else None
        self.differentiates_head = any(parameter.requires_grad for parameter in model.head.parameters())

    @property
    def layers(self) -> list[nn.Module]:
        """The layers, outermost first. The weights of one layer are gathered at a time."""
        return [module for module in self.module.modules() if isinstance(module, GradientCheckpointingLayer)]

    def named(self) -> dict[str, nn.Parameter]:
        """All parameters by their names in checkpoints."""
        return {name.removeprefix("module."): parameter for name, parameter in self.named_parameters()}

    def forward(
        self,
        ids: Tensor,
        positions: Tensor | None,
        sources: Tensor,
        targets: Tensor,
        names: list[str],
        places: Tensor | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        """Computes N outputs as fp32 `[len(names), N]`. ids `[B,L]` are the tokens of the rows. For each output,
        sources `[N]` has its position in the flat ids, and targets `[N]` the token that it scores. features `[K,D]`
        replace the embeddings of the flat ids at places `[K]`."""
        given = {"input_ids": ids} if positions is None else {"input_ids": ids, "position_ids": positions}
        if self.plain.vision is not None:  # with and without images, because all ranks of ZeRO-3 need the same order
            embedded = self.module.get_input_embeddings()(given.pop("input_ids"))
            if features is not None:
                embedded = embedded.flatten(0, 1).index_copy(0, places, features.to(embedded.dtype)).view(embedded.shape)
                if self.plain.vision.vision.sees_ahead:
                    kinds = torch.zeros(ids.numel(), dtype=torch.int32, device=ids.device)
                    given["token_type_ids"] = kinds.index_fill_(0, places, 1).view(ids.shape)
            given["inputs_embeds"] = embedded
        hidden = self.plain.base(**given, use_cache=False).last_hidden_state
        hidden = hidden.flatten(0, 1)[sources]
        of_tokens = [name for name in names if name != "values"]
        found = dict(zip(of_tokens, self._of_tokens(hidden, targets, of_tokens))) if of_tokens else {}
        if "values" in names:
            found["values"] = self.value_head(hidden.to(self.value_head.weight.dtype)).float()[:, 0]
        return torch.stack([found[name] for name in names])

    def _of_tokens(self, hidden: Tensor, targets: Tensor, names: list[str]) -> Tensor:
        if not (self.differentiates_head and torch.is_grad_enabled()):
            return token_outputs(self.plain, hidden, targets, names, self.chunk, False)
        parts = [
            checkpoint(self._logit_outputs, h, t, names, use_reentrant=False)
            for h, t in zip(hidden.split(self.chunk), targets.split(self.chunk))
        ]
        return torch.cat(parts, 1)

    def _logit_outputs(self, hidden: Tensor, targets: Tensor, names: list[str]) -> Tensor:
        return outputs_of_logits(self.plain.logits(hidden), targets, names)


def _value_head(model: PlainModel) -> nn.Linear:
    """Has the same initial values as hone_worker's ValueHead."""
    layer = read_value_layer(model.directory)
    head = nn.Linear(model.head.in_features, 1, dtype=torch.float32)
    with torch.no_grad():
        head.weight.copy_(layer.weight if layer else torch.zeros(1))
        head.bias.copy_(layer.bias if layer else torch.zeros(1))
    return head


def _refuse_others(model: PlainModel) -> None:
    """Raises UserMistake for models that are not dense language models."""
    if model.config is not model.module.config and model.vision is None:
        raise UserMistake(
            f"{model.source.name} has more parts than a language model, which local.processes > 1 does not support",
            "use local.processes=1",
        )
    layers = [module for module in model.module.modules() if isinstance(module, GradientCheckpointingLayer)]
    parts = {part for layer in layers for part in layer.modules() if part is not layer}
    if any(layer in parts for layer in layers):  # Zamba 2
        raise UserMistake(
            f"{model.source.name} has layers within layers, which local.processes > 1 does not support", "use local.processes=1"
        )
    if hasattr(model.base, "layers_are_rescaled"):  # RWKV
        raise UserMistake(
            f"{model.source.name} changes its weights in its forward, which local.processes > 1 does not support",
            "use local.processes=1",
        )
    if any((getattr(model.config, name, None) or 1) > 1 for name in _MIXTURES):
        raise UserMistake(
            f"{model.source.name} is a mixture of experts, which local.processes > 1 does not support",
            "use local.processes=1, or rllm/backend=verl",
        )
