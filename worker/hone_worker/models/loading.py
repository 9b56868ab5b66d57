"""From a model's name (a folder, a GGUF file or a hub id) to a transformers model in memory."""

import hashlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from tqdm import tqdm
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
from transformers.utils import logging as transformers_logging

from ..errors import UserMistake, first_line
from ..folders import check_model_folder, check_sizes, read_json, write_folder, write_json, write_tensors
from ..memory import available_bytes, is_out_of_memory

# How much of a model has been downloaded and loaded, by the progress bars of the libraries that do it.

_report: Callable[[str], None] | None = None


class Bar(tqdm):
    """A progress bar that sends a text for each twentieth, at most one per second, instead of drawing."""

    _sent = 0

    def __init__(self, *args, **settings):
        # The hub's client also passes the name of its bar.
        settings = {key: value for key, value in settings.items() if key not in ("name", "disable")}
        super().__init__(*args, **settings, disable=_report is None, file=io.StringIO(), mininterval=1)

    def display(self, *_, **__) -> None:
        reached = 20 * self.n // self.total if self.total else 0
        if _report is None or reached <= self._sent:
            return
        self._sent = reached
        if self.unit == "B":
            _report(f"downloading: {self.n / 1e9:.1f} of {self.total / 1e9:.1f} GB")
        elif self.desc == "Loading weights":
            _report(f"loading weights: {100 * self.n // self.total}%")


@contextmanager
def reported_to(report: Callable[[str], None]) -> Iterator[None]:
    """Calls `report` with the progress of downloads and of loading inside."""
    global _report
    _report = report
    transformers_logging.set_tqdm_hook(lambda _, args, settings: Bar(*args, **settings))
    try:
        yield
    finally:
        _report = None
        transformers_logging.set_tqdm_hook(None)


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_CONFIGURATIONS = ("*.json", "*.jinja")
_HUB_FILES = (*_CONFIGURATIONS, "model*.safetensors", "tokenizer.model")


def find_folder(model: str, cache_dir: Path) -> Path:
    """The Hugging Face folder of a model: the folder itself, a converted GGUF file, or a download into the
    cache."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix != ".gguf":
            raise UserMistake(
                f"{path} is a file, but not a .gguf file", "name a model folder, a .gguf file or a hub id"
            )
        return _converted(path, cache_dir)
    if model.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(model):
        raise UserMistake(
            f"{model} does not exist", "name a model folder, a .gguf file or a hub id such as org/model"
        )
    return _download(model, cache_dir)


def find_processor(name: str, cache_dir: Path) -> Path:
    """The folder of an image processor: the folder itself, or a download into the cache."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if name.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(name):
        raise UserMistake(
            f"the image processor {name} does not exist", "name a model folder or a hub id such as org/model"
        )
    return _download(name, cache_dir, _CONFIGURATIONS)


def choose_device(device: str) -> torch.device:
    """`auto` is the GPU if the machine has one. Raises UserMistake for a device that does not exist."""
    if device == "auto":
        has_mps = torch.backends.mps.is_available()
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu")
    kind, _, index = device.partition(":")
    present = {
        "cpu": device == "cpu",
        "mps": device == "mps" and torch.backends.mps.is_available(),
        "cuda": torch.cuda.is_available()
        and (index or "0").isdigit()
        and int(index or 0) < torch.cuda.device_count(),
    }
    if not present.get(kind, False):
        raise UserMistake(
            f"the device {device} is not available on this machine", "use cpu, cuda, cuda:N or mps; auto chooses one"
        )
    return torch.device(device)


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 if the hardware multiplies it, else float32."""
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if dtype == "auto":
        return torch.bfloat16 if _multiplies_bfloat16(device) else torch.float32
    if dtype not in known:
        raise UserMistake(f"dtype {dtype} is not supported", "use float32, bfloat16 or auto")
    if dtype == "bfloat16" and device.type == "mps" and not _multiplies_bfloat16(device):
        raise UserMistake("Apple GPUs have bfloat16 from macOS 14 on", "use float32, or update macOS")
    return known[dtype]


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "mps":
        return torch.backends.mps.is_macos_or_newer(14, 0)
    return device.type != "cpu" or _cpu_multiplies_bfloat16()


def load_pretrained(
    directory: Path,
    device: torch.device,
    dtype: torch.dtype,
    auto: type | None = None,
    output_layer: bool = True,
) -> PreTrainedModel:
    """The model of a folder as the transformers class `auto` reads it (default: a language model, with its vision
    part if it has one), frozen and in evaluation mode. Raises UserMistake if the folder is not complete. Without
    `output_layer`, the folder may lack that layer."""
    files = check_model_folder(directory)
    needed, free = files.elements * dtype.itemsize, available_bytes(device)
    if free is not None and needed > free:
        raise UserMistake(
            f"{directory.name} needs {needed / 1e9:.1f} GB on {device}, which has {free / 1e9:.1f} GB free",
            "use a smaller model or dtype bfloat16, or close other programs",
        )
    transformers_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
        check_sizes(directory, config.get_text_config(), files)
        auto = auto or (AutoModelForImageTextToText if reads_images(config) else AutoModelForCausalLM)
        model, report = auto.from_pretrained(
            directory,
            config=config,
            dtype=dtype,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
        model = model.to(device)
    except Exception as error:  # noqa: BLE001 - transformers raises errors of many classes
        raise _explained(directory, error) from error
    optional = () if output_layer else _output_layer_names(model)
    absent = sorted(set(report["missing_keys"]).difference(optional))
    absent += sorted(str(key) for key in report.get("mismatched_keys", ()))
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise UserMistake(
            f"{directory} is missing weights of the model: {', '.join(absent[:3])}{more}",
            "use a complete copy of the model",
        )
    _switch_off_dropout(model)
    return model.eval().requires_grad_(False)


def reads_images(config: PreTrainedConfig) -> bool:
    """Whether the model has a vision part."""
    return hasattr(config, "vision_config") and type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def _output_layer_names(model: PreTrainedModel) -> list[str]:
    layer = model.get_output_embeddings()
    names = [name for name, module in model.named_modules() if module is layer]
    return [f"{name}.{part}" for name in names for part in ("weight", "bias")]


def longest_sequence(config: PreTrainedConfig) -> int:
    """The longest sequence that a model can attend over. Chunked attention is exact within one chunk."""
    names = (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "seq_length",
        "attention_chunk_size",
    )
    known = [getattr(config, name, None) for name in names]
    return min([value for value in known if isinstance(value, int) and value > 0], default=2048)


def end_tokens(directory: Path, model: PreTrainedModel) -> list[int]:
    """The end-of-sequence ids of the configuration and of the generation configuration."""
    generation = directory / "generation_config.json"
    sources = [
        getattr(model.config.get_text_config(), "eos_token_id", None),
        read_json(generation).get("eos_token_id") if generation.exists() else None,
    ]
    found: list[int] = []
    for source in sources:
        found += [source] if isinstance(source, int) else list(source or ())
    return sorted(set(found))


def _explained(directory: Path, error: Exception) -> Exception:
    text = str(error)
    if is_out_of_memory(error):
        return UserMistake(f"not enough memory for {directory.name}", "use a smaller model or dtype bfloat16")
    if isinstance(error, StrictDataclassError):
        return UserMistake(
            f"{directory / 'config.json'} is not valid: {first_line(error.__cause__ or error)}",
            "compare it with the original model's, or copy the model again",
        )
    kind = read_json(directory / "config.json").get("model_type")
    unknown = ("does not recognize this architecture", "Unrecognized configuration class", "remote code")
    if any(words in text for words in unknown):
        return UserMistake(
            f"{directory}: transformers has no causal language model of the architecture {kind}",
            "use a model that needs no code of its own",
        )
    return UserMistake(
        f"{directory} cannot be loaded: {first_line(error)}",
        "check the folder, or download or copy the model again",
    )


def _download(name: str, cache_dir: Path, files: Sequence[str] = _HUB_FILES) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        folder = Path(snapshot_download(name, cache_dir=cache_dir / "hub", allow_patterns=list(files), tqdm_class=Bar))
    except GatedRepoError:
        raise UserMistake(
            f"{name} is gated on the hub", "request access on its page, then set HF_TOKEN"
        ) from None
    except RepositoryNotFoundError:
        raise UserMistake(
            f"model {name} does not exist, neither as a folder nor on the hub", "check the spelling"
        ) from None
    except Exception as error:  # the hub's client raises errors of several HTTP libraries
        raise UserMistake(
            f"{name} is neither a folder nor in the cache, and its download failed: {first_line(error)}",
            "check the spelling and the network, or name a model folder or a .gguf file",
        ) from error
    if files is _HUB_FILES and not any(folder.glob("*.safetensors")):
        raise UserMistake(
            f"{name} has no safetensors on the hub", "choose a model that has them; Hone does not read pickle files"
        )
    return folder


def _switch_off_dropout(model: torch.nn.Module) -> None:
    """Log-probabilities must be deterministic, also in layers that gradient checkpointing sets to training
    mode."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def _cpu_multiplies_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


# A GGUF file is converted, once, into a Hugging Face folder with safetensors and a tokenizer in the cache.

_LAYOUT = 1
"""Increased when the conversion changes, so that folders in the cache are converted again."""

_DIGIT_SPLITTING = frozenset({"smollm"})
"""GGUF pre-tokenizers that split numbers into digits, which transformers' conversion loses."""


def _converted(file: Path, cache_dir: Path) -> Path:
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
