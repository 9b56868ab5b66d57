"""What the model's files say about it."""

from pathlib import Path
from typing import Any

from hone_worker.errors import UserMistake, first_line
from transformers import AutoConfig, GenerationConfig


def model_facts(folder: Path, name: str, device: str) -> dict[str, Any]:
    """ModelInfo of the engine interface, in snake_case, without what the workers know."""
    if not (folder / "config.json").exists():
        raise UserMistake(f"{name}: {folder} has no config.json, so it is not a model")
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise UserMistake(f"{name} is not a model that verl's transformers can load: {first_line(error)}") from error
    text = config.get_text_config()
    ends = getattr(config, "eos_token_id", None) or text.eos_token_id
    if (folder / "generation_config.json").exists():
        ends = GenerationConfig.from_pretrained(folder).eos_token_id or ends
    return {
        "name": name,
        "directory": str(folder),
        "architecture": (config.architectures or [type(config).__name__])[0],
        "vocabulary_size": text.vocab_size,
        "max_length": text.max_position_embeddings,
        "eos_token_ids": ends if isinstance(ends, list) else [] if ends is None else [ends],
        "device": device,
        "attention": "padded",
        "attention_reason": "verl's engines compute it",
    }
