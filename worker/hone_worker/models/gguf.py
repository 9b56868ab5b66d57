"""Converts a GGUF file, once, into a Hugging Face folder with safetensors and a tokenizer in the cache."""

import hashlib
import json
import re
import sys
from pathlib import Path

from ..errors import UserMistake
from ..folders import write_folder, write_json, write_tensors

_LAYOUT = 1
"""Increased when the conversion changes, so that folders in the cache are converted again."""

_DIGIT_SPLITTING = frozenset({"smollm"})
"""GGUF pre-tokenizers that split numbers into digits, which transformers' conversion loses."""


def converted(file: Path, cache_dir: Path) -> Path:
    """The folder with the model of `file`. Converts the file if the cache does not have it."""
    if file.open("rb").read(4) != b"GGUF":
        raise UserMistake(f"{file} is not a GGUF file", "download or copy it again")
    facts = file.stat()
    digest = hashlib.sha256(f"{_LAYOUT} {file.name} {facts.st_size} {facts.st_mtime_ns}".encode()).hexdigest()
    target = cache_dir / "gguf" / f"{re.sub(r'[^A-Za-z0-9._-]', '_', file.stem)}-{digest[:16]}"
    if not (target / "config.json").exists():
        print(f"converting {file.name} once (20 s for a small model) ...", file=sys.stderr, flush=True)
        try:
            write_folder(target, lambda folder: _convert(file, folder))
        except UserMistake:
            if not (target / "config.json").exists():  # otherwise another process was faster
                raise
    return target


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        metadata = _metadata(file)
        source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        tokenizer = AutoTokenizer.from_pretrained(**source)
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    except (ValueError, KeyError, NotImplementedError, OSError) as error:
        raise UserMistake(
            f"{file} cannot be converted: {error}", "use the model's Hugging Face folder or hub name instead"
        ) from error
    _save_tokenizer(tokenizer, folder)
    if metadata.get("tokenizer.ggml.pre") in _DIGIT_SPLITTING:
        _split_digits(folder / "tokenizer.json")
    config = model.config.to_dict()
    for stale in ("quantization_config", "_name_or_path", "gguf_file"):
        config.pop(stale, None)
    config["architectures"] = [type(model).__name__]
    config["dtype"] = "bfloat16"
    tokens = {
        f"{name}_token_id": metadata.get(f"tokenizer.ggml.{key}_token_id")
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    tokens = {name: value for name, value in tokens.items() if value is not None}
    write_json(folder / "config.json", {**config, **tokens})
    write_json(folder / "generation_config.json", tokens)
    weights = model.state_dict()
    if config.get("tie_word_embeddings"):
        weights.pop("lm_head.weight", None)
    write_tensors(folder / "model.safetensors", weights)


def _save_tokenizer(tokenizer, folder: Path) -> None:
    """tokenizer.json, and tokenizer_config.json with the chat template in it."""
    tokenizer.save_pretrained(folder)
    settings = folder / "tokenizer_config.json"
    template = folder / "chat_template.jinja"
    config = json.loads(settings.read_text(encoding="utf-8"))
    config = {name: value for name, value in config.items() if name not in ("is_local", "local_files_only")}
    if template.exists():
        config["chat_template"] = template.read_text(encoding="utf-8")
        template.unlink()
    write_json(settings, config)


def _metadata(file: Path) -> dict:
    """The scalar entries of the GGUF header."""
    from gguf import GGUFReader

    reader = GGUFReader(file)
    return {
        name: field.contents()
        for name, field in reader.fields.items()
        if field.types and len(field.types) == 1
    }


def _split_digits(tokenizer_file: Path) -> None:
    tokenizer = json.loads(tokenizer_file.read_text(encoding="utf-8"))
    tokenizer["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    }
    tokenizer_file.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
