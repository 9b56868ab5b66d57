"""Tiny random models that read images, and transformers' own answers to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
import transformers as hf
from hone_worker.images.pictures import Image, Picture
from hone_worker.images.vision import Vision
from make_tiny_model import make_tokenizer
from PIL import Image as Pillow
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

_ROWS = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
_SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<image>", "<fake_token_around_image>", "<global-img>", *_ROWS]
VOCABULARY = len(make_tokenizer(_SPECIAL))
IMAGE_TOKEN = 3
_TEXT = dict(
    vocab_size=VOCABULARY,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=1024,
    initializer_range=0.2,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
_SIGLIP = dict(
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    image_size=32,
    patch_size=8,
    initializer_range=0.2,
)
_QWEN_NAMES = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
_QWEN_VISION = dict(depth=2, num_heads=4, patch_size=4, spatial_merge_size=2, temporal_patch_size=2)


def _text(kind: str, head_size: int, **more: object) -> dict:
    return {**_TEXT, "hidden_size": 4 * head_size, "model_type": kind, **more}


def _qwen(kind: str, head_size: int, **vision: object) -> dict:
    sections = [head_size // 8, head_size // 8, head_size // 4]
    rope = {"rope_type": "default", "mrope_section": sections, "rope_theta": 10000.0}
    text = _text(f"{kind}_text", head_size, rope_parameters=rope)
    tokens = dict(image_token_id=IMAGE_TOKEN, video_token_id=4, vision_start_token_id=5, vision_end_token_id=6)
    return dict(text_config=text, vision_config={**_QWEN_VISION, **vision, "initializer_range": 0.3}, **tokens)


def _siglip(head_size: int) -> dict:
    text = _text("llama", head_size)
    return dict(text_config=text, vision_config=_SIGLIP, scale_factor=2, image_token_id=IMAGE_TOKEN)


_QWEN_PIXELS = dict(patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": 64 * 24})
_TILES = dict(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
FAMILIES = {
    "qwen2_vl": (
        lambda head: _qwen("qwen2_vl", head, embed_dim=16, hidden_size=4 * head),
        Qwen2VLImageProcessorPil(**_QWEN_PIXELS),
    ),
    "qwen2_5_vl": (
        lambda head: _qwen(
            "qwen2_5_vl",
            head,
            hidden_size=16,
            intermediate_size=24,
            out_hidden_size=4 * head,
            window_size=16,
            fullatt_block_indexes=[1],
        ),
        Qwen2VLImageProcessorPil(**_QWEN_PIXELS),
    ),
    "smolvlm": (_siglip, SmolVLMImageProcessorPil(**_TILES)),
    "idefics3": (_siglip, Idefics3ImageProcessorPil(**_TILES)),
}


def build(family: str, directory: Path, head_size: int = 8) -> Path:
    """A complete model folder with random weights and a byte-level tokenizer. Inference servers require a head size of at least 32."""
    torch.manual_seed(sum(map(ord, family)))
    settings, pixels = FAMILIES[family]
    config = hf.AutoConfig.for_model(family, **settings(head_size))
    model = hf.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1 and "norm" not in name:
                weight.normal_(std=0.3)
    folder = directory / family
    model.save_pretrained(folder)
    pixels.save_pretrained(folder)
    special = [*_SPECIAL[:3], *_QWEN_NAMES, *_SPECIAL[7:]] if family.startswith("qwen") else _SPECIAL
    make_tokenizer(special).save_pretrained(folder)
    return folder


def reference(folder: Path) -> hf.PreTrainedModel:
    """The same model, by transformers alone."""
    auto = hf.AutoModelForImageTextToText
    return auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def picture(seed: int, width: int = 20, height: int = 28, form: str = "PNG") -> bytes:
    """The file of a picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = BytesIO()
    Pillow.fromarray(pixels).save(file, form)
    return file.getvalue()


@dataclass(frozen=True)
class Sequence_:
    """Tokens with images in them."""

    ids: list[int]
    pictures: tuple[Picture, ...] = ()


def sequence(*parts: list[int] | Image) -> Sequence_:
    """Texts and images, end to end."""
    ids: list[int] = []
    pictures = []
    for part in parts:
        if isinstance(part, Image):
            pictures.append(Picture(len(ids), part))
        ids += part.tokens.tolist() if isinstance(part, Image) else part
    return Sequence_(ids, tuple(pictures))


def text(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(len(_SPECIAL), VOCABULARY, count).tolist()


def plain_logprobs(model: hf.PreTrainedModel, vision: Vision, one: Sequence_) -> torch.Tensor:
    """`[L, V]` by transformers' own forward, which finds the placeholders by their token."""
    ids = torch.tensor([one.ids])
    images = [vision.inputs(shown.image) for shown in one.pictures]
    inputs = _joined(images)
    if images and model.config.model_type.startswith("qwen"):
        inputs["mm_token_type_ids"] = (ids == IMAGE_TOKEN).int()
    if vision.sees_ahead:
        inputs["token_type_ids"] = (ids == IMAGE_TOKEN).int()
    return model(input_ids=ids, **inputs, use_cache=False).logits[0].float().log_softmax(-1)


def _joined(images: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The inputs of one sequence's images: patches end to end, or tiles of one batch entry padded to one number."""
    if not images:
        return {}
    if "image_grid_thw" in images[0] or images[0]["pixel_values"].ndim == 4:
        return {name: torch.cat([image[name] for image in images]) for name in images[0]}
    return {name: torch.cat([image[name] for image in images], 1) for name in images[0]}
