"""The names that a model can have, and the errors for names that are not a model."""

import errno
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hone_worker import folders
from hone_worker.errors import UserMistake
from hone_worker.folders import write_folder, write_tensors
from hone_worker.models import loading
from hone_worker.models.loading import Bar, reported_to
from hone_worker.operations import describe_error
from models import build, load, reference, reference_outputs, sample_sequences
from safetensors import SafetensorError
from transformers import AutoTokenizer


@pytest.fixture
def folder(tmp_path):
    return build("llama", tmp_path)


def test_info_names_what_the_model_is(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2]}))
    model = load(folder)
    assert model.eos_ids == [2, 5]
    assert model.info() == {
        "name": "tiny",
        "directory": str(folder),
        "architecture": "LlamaForCausalLM",
        "parameters": model.parameters,
        "vocabulary_size": config["vocab_size"],
        "max_length": 128,
        "eos_token_ids": [2, 5],
        "dtype": "float32",
        "device": str(model.device),
        "attention": "packed",
        "images": None,
    }
    padded = load(build("bloom", folder.parent)).info()
    assert padded["attention"] == "padded" and padded["attention_reason"]


def _cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def _shrink(folder: Path) -> None:
    """A whole file that lacks a tensor."""
    file = folder / "model.safetensors"
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["model.other.weight"] = header.pop("model.norm.weight")
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def _to_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _configure(**settings):
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))

    return change


@pytest.mark.parametrize(
    "damage,message",
    [
        (lambda f: (f / "config.json").unlink(), "config.json does not exist"),
        (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
        (lambda f: (f / "config.json").write_text("{}"), "has no model_type"),
        (_configure(model_type="nonsuch"), "architecture nonsuch"),
        (_configure(model_type="t5"), "architecture t5"),
        (lambda f: (f / "model.safetensors").unlink(), "is missing model.safetensors"),
        (_to_pickle, "pickle"),
        (_cut, "not a complete safetensors file"),
        (_shrink, "is missing weights .* model.norm.weight"),
        (_configure(hidden_size=64), "is missing weights|cannot be loaded"),
    ],
)
def test_a_broken_folder_is_named(damage, message, folder):
    damage(folder)
    with pytest.raises(UserMistake, match=message) as caught:
        load(folder)
    assert caught.value.hint


@pytest.mark.parametrize(
    "name,message",
    [
        ("/no/such/folder", "does not exist"),
        ("./nor-this", "does not exist"),
        ("not a name", "does not exist"),
    ],
)
def test_a_missing_model_is_named(name, message, tmp_path):
    with pytest.raises(UserMistake, match=message):
        loading.find_folder(name, tmp_path)


def test_devices_and_dtypes(folder, monkeypatch):
    for bad in ("cuda:99", "tpu", "cpu:0x"):
        with pytest.raises(UserMistake, match="not available"):
            loading.choose_device(bad)
    with pytest.raises(UserMistake, match="float8"):
        load(folder, dtype="float8")
    monkeypatch.setattr(loading, "available_bytes", lambda _: 1000)
    with pytest.raises(UserMistake, match="free"):
        load(folder)


def test_a_folder_is_written_whole_or_not_at_all(tmp_path):
    def fill(folder: Path) -> None:
        (folder / "a").write_text("a")
        raise ValueError("half-way")

    with pytest.raises(ValueError, match="half-way"):
        write_folder(tmp_path / "out", fill)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def gguf_file(tmp_path) -> Path:
    """A random llama of 1 layer whose tokenizer knows bytes, digits and two special tokens."""
    import gguf as writer_of

    file = tmp_path / "tiny.gguf"
    writer = writer_of.GGUFWriter(file, "llama")
    rng = np.random.default_rng(0)
    letters = list(byte_letters())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "12"]
    size, inner, heads = 32, 32, 2
    for add, value in (
        (writer.add_context_length, 64),
        (writer.add_embedding_length, size),
        (writer.add_block_count, 1),
        (writer.add_feed_forward_length, inner),
        (writer.add_head_count, heads),
        (writer.add_head_count_kv, heads),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_rope_freq_base, 10000.0),
        (writer.add_vocab_size, len(tokens)),
        (writer.add_rope_dimension_count, size // heads),
        (writer.add_tokenizer_model, "gpt2"),
        (writer.add_tokenizer_pre, "smollm"),
        (writer.add_token_list, tokens),
        (writer.add_token_merges, ["1 2"]),
        (writer.add_token_types, [3, 3, 3] + [1] * (len(tokens) - 3)),
        (writer.add_bos_token_id, 1),
        (writer.add_eos_token_id, 2),
        (writer.add_pad_token_id, 2),
        (writer.add_chat_template, "{{ messages }}"),
    ):
        add(value)
    square = {
        "attn_q": (size, size),
        "attn_k": (size, size),
        "attn_v": (size, size),
        "attn_output": (size, size),
        "ffn_gate": (inner, size),
        "ffn_up": (inner, size),
        "ffn_down": (size, inner),
    }
    shapes = {
        "token_embd.weight": (len(tokens), size),
        "output_norm.weight": (size,),
        **{f"blk.0.{name}.weight": shape for name, shape in square.items()},
        "blk.0.attn_norm.weight": (size,),
        "blk.0.ffn_norm.weight": (size,),
    }
    for name, shape in shapes.items():
        writer.add_tensor(name, rng.standard_normal(shape).astype(np.float32) * 0.2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def byte_letters() -> list[str]:
    """The 256 letters that byte-level tokenizers write bytes with."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return sorted(bytes_to_unicode().values())


def test_a_gguf_file_becomes_a_folder_once(gguf_file, tmp_path, monkeypatch):
    folder = loading.find_folder(str(gguf_file), tmp_path / "cache")
    files = {file.name for file in folder.iterdir()}
    assert {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    } <= files
    assert json.loads((folder / "tokenizer_config.json").read_text())["chat_template"] == "{{ messages }}"
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize("a  12") == ["a", "Ġ", "Ġ", "1", "2"], "digits stand alone"
    model = load(folder)
    assert model.attention == "packed" and model.eos_ids == [2]
    plain = reference(folder)
    expected = reference_outputs(plain, sample_sequences())["logprobs"]
    assert torch.isfinite(expected).all()
    monkeypatch.setattr(loading, "_convert", None)  # a second time it must not convert
    assert loading.find_folder(str(gguf_file), tmp_path / "cache") == folder
    (tmp_path / "bad.gguf").write_bytes(b"nonsense")
    with pytest.raises(UserMistake, match="not a GGUF"):
        loading.find_folder(str(tmp_path / "bad.gguf"), tmp_path / "cache")


@pytest.mark.parametrize(
    "key, value",
    [
        ("hidden_size", -1),
        ("num_hidden_layers", 10**6),
        ("hidden_size", 10**6),
        ("vocab_size", 10**9),
        ("intermediate_size", 10**9),
    ],
)
def test_sizes_that_the_weights_cannot_have_are_refused_before_the_model_is_built(folder, key, value):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(UserMistake) as refused:
        load(folder)
    assert "config.json" in refused.value.message


def test_a_full_disk_and_other_system_errors_travel_by_their_number(tmp_path):
    for error, code, path in [
        (OSError(errno.ENOSPC, "no", "/full"), "ENOSPC", "/full"),
        (PermissionError(errno.EACCES, "no", "/closed"), "EACCES", "/closed"),
        (OSError(errno.EFBIG, "no"), "EFBIG", None),
    ]:
        described = describe_error(error)
        assert (described["kind"], described["code"], described.get("path")) == ("system", code, path)
    assert describe_error(OSError("text alone"))["kind"] == "internal"

    def full(_):
        raise OSError(errno.ENOSPC, "no")

    with pytest.raises(OSError) as failed:
        write_folder(tmp_path / "export", full)
    assert failed.value.filename == str(tmp_path / "export")


def test_tensors_on_a_full_disk_raise_the_systems_error(tmp_path, monkeypatch):
    def full(*_):
        raise SafetensorError("Error while serializing: I/O error: File too large (os error 27)")

    monkeypatch.setattr(folders, "save_file", full)
    with pytest.raises(OSError) as failed:
        write_tensors(tmp_path / "a", {"a": torch.zeros(1)})
    assert (failed.value.errno, failed.value.filename) == (errno.EFBIG, str(tmp_path / "a"))


def test_loading_and_downloading_report_how_far_they_are(folder):
    texts = []
    with reported_to(texts.append):
        load(folder)
        bar = Bar(total=3_000_000_000, unit="B", name="a download")
        bar.update(1_200_000_000)
        bar.refresh()
        bar.close()
    assert texts[0].startswith("loading weights: ") and "loading weights: 100%" in texts
    assert "downloading: 1.2 of 3.0 GB" in texts
    count = len(texts)
    load(folder)
    assert len(texts) == count
