"""Tiny random vision-language models with transformers' own image processors, and what Hone says about their images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers as hf
from hone_worker.folders import read_json, write_json
from hone_worker.models.model import load_model
from make_tiny_model import make_tokenizer
from tiny_vision_models import IMAGE_TOKEN
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

from .text import spread

_ROWS = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
_MORE = ["<row>", "<fake_token_around_image>", "<global-img>", "<start>", "<end>", "<break>", "<video>", *_ROWS]


@dataclass(frozen=True)
class ImageFamily:
    title: str
    kind: str
    settings: dict[str, Any]
    pixels: dict[str, Any]
    """Of the image processor."""
    processor: dict[str, Any]
    """processor_config.json"""
    tokens: dict[str, str]
    """Special tokens of the tokenizer that the processor reads."""
    token: str = "<image>"
    """Token IMAGE_TOKEN."""


_TEXT = dict(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=1024,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
_CLIP = dict(
    model_type="clip_vision_model", hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2,
    image_size=32, patch_size=8, projection_dim=32)
_SIGLIP = {**_CLIP, "model_type": "siglip_vision_model"}
_PIXTRAL = dict(
    model_type="pixtral", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, head_dim=16,
    image_size=64, patch_size=8)
_QWEN_VISION = dict(depth=3, hidden_size=32, intermediate_size=48, num_heads=2, patch_size=4, spatial_merge_size=2,
                    temporal_patch_size=2, out_hidden_size=64)
_QWEN_TOKENS = dict(image_token_id=IMAGE_TOKEN, video_token_id=10, vision_start_token_id=7, vision_end_token_id=8)
_QWEN_PIXELS = dict(patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": 64 * 24})
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 4], "mrope_interleaved": True}
_SQUARE = {"height": 32, "width": 32}


def _llama(**more: Any) -> dict[str, Any]:
    return {**_TEXT, "model_type": "llama", **more}


IMAGES: tuple[ImageFamily, ...] = (
    ImageFamily("LLaVA", "llava", dict(text_config=_llama(), vision_config=_CLIP, image_token_index=IMAGE_TOKEN,
                                       image_seq_length=16, vision_feature_layer=-2),
                dict(size={"shortest_edge": 32}, crop_size=_SQUARE),
                dict(patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1), {}),
    ImageFamily("LLaVA-NeXT", "llava_next", dict(
        text_config=_llama(), vision_config=_CLIP, image_token_index=IMAGE_TOKEN, image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]],
        image_seq_length=16),
                dict(size={"shortest_edge": 32}, crop_size=_SQUARE, image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]]),
                dict(patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1), {}),
    ImageFamily("LLaVA-OneVision", "llava_onevision", dict(
        text_config={**_TEXT, "model_type": "qwen2"}, vision_config=_SIGLIP, image_token_id=IMAGE_TOKEN, video_token_id=10,
        image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]], vision_feature_select_strategy="full", vision_feature_layer=-1),
                dict(size=_SQUARE, image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]]),
                dict(num_image_tokens=16, vision_feature_select_strategy="full", video_token="<video>"), {}),
    ImageFamily("Pixtral (12B)", "llava", dict(
        text_config={**_TEXT, "model_type": "mistral", "sliding_window": None}, vision_config=_PIXTRAL, image_token_index=IMAGE_TOKEN,
        vision_feature_select_strategy="full", vision_feature_layer=-1, image_seq_length=1),
                dict(size={"longest_edge": 64}, patch_size={"height": 8, "width": 8}),
                dict(processor_class="PixtralProcessor", patch_size=8, image_break_token="<break>", image_end_token="<end>"), {}),
    ImageFamily("Mistral Small 3.1, Ministral 3", "mistral3", dict(
        text_config={**_TEXT, "model_type": "mistral", "sliding_window": None}, vision_config=_PIXTRAL, image_token_id=IMAGE_TOKEN,
        spatial_merge_size=2, vision_feature_layer=-1),
                dict(size={"longest_edge": 64}, patch_size={"height": 16, "width": 16}),
                dict(patch_size=8, spatial_merge_size=2, image_break_token="<break>", image_end_token="<end>"), {}),
    ImageFamily("InternVL 3", "internvl", dict(
        text_config={**_TEXT, "model_type": "qwen2"}, vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": [32, 32], "patch_size": [8, 8]}, image_token_id=IMAGE_TOKEN, image_seq_length=4),
                dict(size=_SQUARE, crop_to_patches=True, min_patches=1, max_patches=4),
                dict(image_seq_length=4),
                dict(start_image_token="<start>", end_image_token="<end>", context_image_token="<image>", video_token="<video>")),
    ImageFamily("Gemma 3", "gemma3", dict(
        text_config={**_TEXT, "model_type": "gemma3_text", "sliding_window": 64}, vision_config=_SIGLIP, mm_tokens_per_image=4,
        image_token_id=IMAGE_TOKEN, boi_token_index=7, eoi_token_index=8),
                dict(size=_SQUARE), dict(image_seq_length=4), dict(boi_token="<start>", eoi_token="<end>", image_token="<image>")),
    ImageFamily("PaliGemma", "paligemma", dict(
        text_config={**_TEXT, "model_type": "gemma2"}, vision_config={**_SIGLIP, "num_image_tokens": 16}, image_token_index=IMAGE_TOKEN,
        projection_dim=64),
                dict(size=_SQUARE, image_seq_length=16), {}, dict(image_token="<image>")),
    ImageFamily("Qwen2-VL", "qwen2_vl", dict(
        text_config={**_TEXT, "model_type": "qwen2_vl_text", "rope_parameters": {**_ROPE, "mrope_interleaved": False}},
        vision_config=dict(depth=2, embed_dim=32, hidden_size=64, num_heads=2, patch_size=4, spatial_merge_size=2, temporal_patch_size=2),
        **_QWEN_TOKENS), _QWEN_PIXELS, {}, {}, "<|image_pad|>"),
    ImageFamily("Qwen2.5-VL", "qwen2_5_vl", dict(
        text_config={**_TEXT, "model_type": "qwen2_5_vl_text", "rope_parameters": {**_ROPE, "mrope_interleaved": False}},
        vision_config={**_QWEN_VISION, "window_size": 16, "fullatt_block_indexes": [1]}, **_QWEN_TOKENS),
                _QWEN_PIXELS, {}, {}, "<|image_pad|>"),
    ImageFamily("Qwen3-VL", "qwen3_vl", dict(
        text_config={**_TEXT, "model_type": "qwen3_vl_text", "rope_parameters": _ROPE},
        vision_config={**_QWEN_VISION, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16}, **_QWEN_TOKENS),
                _QWEN_PIXELS, {}, {}, "<|image_pad|>"),
    ImageFamily("Qwen3-VL-MoE", "qwen3_vl_moe", dict(
        text_config={**_TEXT, "model_type": "qwen3_vl_moe_text", "rope_parameters": _ROPE, "num_experts": 4, "num_experts_per_tok": 2,
                     "moe_intermediate_size": 32},
        vision_config={**_QWEN_VISION, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16}, **_QWEN_TOKENS),
                _QWEN_PIXELS, {}, {}, "<|image_pad|>"),
    ImageFamily("Qwen3.5 to 3.8", "qwen3_5", dict(
        text_config={**_TEXT, "model_type": "qwen3_5_text", "layer_types": ["linear_attention", "linear_attention", "full_attention"],
                     "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
                     "rope_parameters": {**_ROPE, "partial_rotary_factor": 1.0}},
        vision_config={**_QWEN_VISION, "num_position_embeddings": 16}, **_QWEN_TOKENS), _QWEN_PIXELS, {}, {}, "<|image_pad|>"),
    ImageFamily("GLM-4.1V, GLM-4.5V (dense)", "glm4v", dict(
        text_config={**_TEXT, "model_type": "glm4v_text", "rope_parameters": {**_ROPE, "mrope_section": [2, 2, 4]}},
        vision_config=dict(depth=2, hidden_size=32, intermediate_size=48, num_heads=2, patch_size=4, spatial_merge_size=2,
                           temporal_patch_size=2, out_hidden_size=64, image_size=32), image_start_token_id=7, image_end_token_id=8,
        image_token_id=IMAGE_TOKEN, video_token_id=10),
                dict(patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": 64 * 48}), {},
                dict(image_token="<image>", video_token="<video>")),
    ImageFamily("SmolVLM", "smolvlm", dict(
        text_config=_llama(), vision_config={**_SIGLIP, "model_type": "smolvlm_vision"}, scale_factor=2, image_token_id=IMAGE_TOKEN),
                dict(size={"longest_edge": 64}, max_image_size={"longest_edge": 32}), {}, {}),
    ImageFamily("Idefics 3", "idefics3", dict(
        text_config=_llama(), vision_config={**_SIGLIP, "model_type": "idefics3_vision"}, scale_factor=2, image_token_id=IMAGE_TOKEN),
                dict(size={"longest_edge": 64}, max_image_size={"longest_edge": 32}), {}, {}),
    ImageFamily("LFM2-VL", "lfm2_vl", dict(
        text_config={**_TEXT, "model_type": "lfm2", "layer_types": ["conv", "full_attention", "conv"], "block_ff_dim": 96,
                     "block_multiple_of": 8},
        vision_config={**_SIGLIP, "model_type": "siglip2_vision_model", "num_patches": 16}, image_token_id=IMAGE_TOKEN,
        downsample_factor=2),
                dict(encoder_patch_size=8, tile_size=32, downsample_factor=2, min_tiles=1, max_tiles=4, min_image_tokens=2,
                     max_image_tokens=16, max_num_patches=64, do_image_splitting=False), {},
                dict(image_start_token="<start>", image_end_token="<end>", image_thumbnail_token="<break>")),
)


def build(family: ImageFamily, directory: Path) -> Path:
    torch.manual_seed(sum(map(ord, family.title)))
    model = hf.AutoModelForImageTextToText.from_config(hf.AutoConfig.for_model(family.kind, **family.settings), dtype=torch.float32)
    spread(model)
    folder = directory / family.kind
    model.save_pretrained(folder)
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>", family.token, *_MORE]
    tokenizer = make_tokenizer(special)
    tokenizer.save_pretrained(folder)
    write_json(folder / "tokenizer_config.json", {**read_json(folder / "tokenizer_config.json"), **family.tokens})
    if (pixels := _pixels(family)) is not None:
        pixels.save_pretrained(folder)
    else:
        write_json(folder / "preprocessor_config.json", {"image_processor_type": "needs torchvision"})
    if family.processor:
        write_json(folder / "processor_config.json", family.processor)
    return folder


def _pixels(family: ImageFamily) -> Any:
    kind = {"Pixtral (12B)": "pixtral", "Qwen3-VL-MoE": "qwen3_vl"}.get(family.title, family.kind)
    classes = IMAGE_PROCESSOR_MAPPING_NAMES[kind]
    name = classes.get("pil") if isinstance(classes, dict) else classes
    if name is None:
        return None
    from transformers.models.auto import image_processing_auto

    return image_processing_auto.get_image_processor_class_from_name(name)(**family.pixels)


def record(family: ImageFamily) -> dict[str, Any]:
    with TemporaryDirectory() as directory:
        folder = build(family, Path(directory))
        model = load_model(str(folder), "tiny", cache_dir=folder.parent, device="cpu", dtype="float32")
        images = True if model.vision is not None else model.images_reason
        return {"title": family.title, "kind": family.kind, "images": images}
