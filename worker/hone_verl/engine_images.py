"""Images in verl: their tokens and positions, and verl's FSDP engines for models that read them.

verl shards the vision part with the rest of the model. A rank without images in a microbatch then takes no part in
gathering these weights, and the others wait forever. Therefore the vision part is not sharded: every rank has a complete,
unchanged copy, whose features replace the embeddings of the images' tokens."""

import copy
from pathlib import Path
from typing import Any

import torch
from hone_worker.errors import UserMistake
from hone_worker.images.pictures import Image
from hone_worker.images.vision import Vision, vision_of
from hone_worker.models.loading import reads_images
from tensordict import TensorDict
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageTextToText
from verl.models.transformers import qwen2_vl
from verl.utils.device import get_device_id
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead


def open_vision(folder: Path) -> tuple[Vision | None, str | None]:
    """No weights are needed. Without Vision, the second value is the reason; None for a language model."""
    config = AutoConfig.from_pretrained(folder)
    if not reads_images(config):
        return None, None
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    try:
        vision = vision_of(model.base_model, folder)
    except UserMistake as mistake:
        return None, mistake.message
    if vision.sees_ahead:
        return None, "verl's rows are read from left to right, but the parts of an image attend to each other; use rllm/backend=local"
    return vision, None


def _embed(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None = None, *_: Any) -> tuple:
    return model.get_input_embeddings()(input_ids), attention_mask


# verl's own function runs the vision part in every forward, also without images.
qwen2_vl._get_input_embeds = _embed


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cuda", vendor="nvidia")
class LanguageModelEngine(FSDPEngineWithLMHead):
    """verl's engine, for models with or without a vision part; verl prefers an engine of the vendor to its own. Set
    `images` to the images of a batch before its forward. `image_rows` in the batch has, for each token, the row in these
    images' features, or -1."""

    images: tuple[Image, ...] = ()

    def _build_module(self) -> nn.Module:
        module = super()._build_module()
        self._computed: tuple[tuple[Image, ...], Tensor] | None = None
        self.vision, _ = open_vision(Path(self.model_config.local_path))
        if self.vision is not None:
            self._take_vision(module)
        return module

    def _take_vision(self, module: nn.Module) -> None:
        """Removes the vision part before adapters are added and the model is sharded."""
        self._base = module.base_model
        decoder = module.get_decoder()
        self._parts = {name: part for name, part in self._base.named_children() if part is not decoder}
        for name in self._parts:
            del self._base._modules[name]
        self._seeing = copy.copy(self._base)
        self._seeing._modules = self._parts
        module.get_input_embeddings().register_forward_hook(self._replace)

    def _build_fsdp_module(self, module: nn.Module) -> nn.Module:
        sharded = super()._build_fsdp_module(module)
        if self.vision is not None:
            self._return_vision()
        return sharded

    def _return_vision(self) -> None:
        """Adds the vision part again, so checkpoints and published weights have it. verl loads only rank 0's weights."""
        device, is_first = get_device_id(), torch.distributed.get_rank() == 0
        for name, part in self._parts.items():
            part = part.to(device) if is_first else part.to_empty(device=device)
            self._base._modules[name] = part.requires_grad_(False)
            tensors = {**dict(part.named_parameters()), **dict(part.named_buffers())}
            for key in sorted(tensors):
                torch.distributed.broadcast(tensors[key].data, src=0)
        self.vision = vision_of(self._seeing, Path(self.model_config.local_path))

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        inputs, outputs = super().prepare_model_inputs(micro_batch)
        self._placed: tuple[Tensor, Tensor] | None = None
        rows = micro_batch.get("image_rows", None)
        if rows is not None:
            ids = inputs["input_ids"]
            flat = rows.values() if len(ids) == 1 else torch.nested.to_padded_tensor(rows, -1, ids.shape).flatten()
            places = torch.nonzero(flat >= 0)[:, 0]
            self._placed = places, flat[places]
        return inputs, outputs

    def _features(self) -> Tensor:
        if self._computed is None or self._computed[0] is not self.images:
            self._computed = self.images, self.vision.features(self.images)
        return self._computed[1]

    def _replace(self, _: nn.Module, __: Any, embedded: Tensor) -> Tensor:
        if self._placed is None:
            return embedded
        places, rows = self._placed
        features = self._features()[rows].to(embedded.dtype)
        return embedded.flatten(0, 1).index_copy(0, places, features).view(embedded.shape)
