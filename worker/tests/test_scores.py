"""Scores of reward models against transformers' own."""

import json

import numpy as np
import pytest
import torch
from hone_worker.errors import UserMistake
from hone_worker.models.plain_model import find_source
from hone_worker.models.score_model import ScoreModel
from make_tiny_reward_model import make_reward_model, make_reward_tokenizer, plant_preference
from models import _SMALL, CONFIGS, DEVICE, VOCABULARY, WORKER_DEVICE
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSequenceClassification
from worker_client import Client, ragged

PAD = _SMALL["pad_token_id"]


def build(kind, folder, labels=1):
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **_SMALL, **CONFIGS[kind], num_labels=labels)
    model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(folder)
    return model


def open_scores(folder, **options):
    source = find_source(str(folder), "judge", cache_dir=folder, device=DEVICE, dtype="float32")
    return ScoreModel(source, **options)


def scores_of(model, sequences):
    arrays = ragged(sequences)
    return model.score(arrays["tokens"], arrays["offsets"])


def draw_sequences(count):
    """Sequences of different lengths, without the padding token."""
    g = np.random.default_rng(1)
    return [g.integers(3, VOCABULARY, g.integers(1, 40)).tolist() for _ in range(count)]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma2", "qwen3"])
def test_scores_equal_transformers(kind, tmp_path):
    plain = build(kind, tmp_path)
    sequences = draw_sequences(9)
    with torch.no_grad():
        expected = torch.cat([plain(input_ids=torch.tensor([s])).logits[:, 0] for s in sequences])
    found = scores_of(open_scores(tmp_path, micro_batch_tokens=64), sequences)
    assert (found - expected).abs().max() < 1e-4
    assert expected.std() > 0.01


def test_the_last_token_is_pooled_even_where_it_is_the_padding_token(tmp_path):
    plain = build("llama", tmp_path)
    sequences = [s + [PAD] for s in draw_sequences(5)] + [[5, PAD, 7], [PAD], [4, PAD, PAD]]
    with torch.no_grad():
        expected = torch.cat(
            [plain.score(plain.model(input_ids=torch.tensor([s])).last_hidden_state[:, -1])[:, 0] for s in sequences]
        )
        pooled_before = plain(input_ids=torch.tensor([sequences[0]])).logits[0, 0]
    found = scores_of(open_scores(tmp_path), sequences)
    assert (found - expected).abs().max() < 1e-4
    assert (found[0] - pooled_before).abs() > 1e-3


@pytest.mark.parametrize("head", ["v_head.summary", "value_head"])
def test_value_heads(head, tmp_path):
    plain = build("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors[f"{head}.weight"] = tensors.pop("score.weight")
    tensors[f"{head}.bias"] = torch.tensor([0.5])
    save_file(tensors, file, metadata={"format": "pt"})
    sequences = draw_sequences(4)
    with torch.no_grad():
        expected = torch.cat([plain(input_ids=torch.tensor([s])).logits[:, 0] for s in sequences]) + 0.5
    assert (scores_of(open_scores(tmp_path), sequences) - expected).abs().max() < 1e-4


def test_a_value_head_that_the_configuration_names(tmp_path):
    plain = build("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["regression.weight"] = tensors.pop("score.weight")
    save_file(tensors, file, metadata={"format": "pt"})
    configure(tmp_path, value_head_prefix="regression")
    sequences = draw_sequences(4)
    with torch.no_grad():
        expected = torch.cat([plain(input_ids=torch.tensor([s])).logits[:, 0] for s in sequences])
    assert (scores_of(open_scores(tmp_path), sequences) - expected).abs().max() < 1e-4


def configure(folder, **settings):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def test_stored_moments_of_the_scores(tmp_path):
    build("llama", tmp_path)
    assert open_scores(tmp_path).info()["score_moments"] is None
    file = tmp_path / "model.safetensors"
    moments = {"mean": torch.tensor([3.0]), "std": torch.tensor([4.0])}
    save_file(load_file(file) | moments, file, metadata={"format": "pt"})
    assert open_scores(tmp_path).info()["score_moments"] == [3, 4]
    configure(tmp_path, mean=0.5, std=2)
    assert open_scores(tmp_path).info()["score_moments"] == [0.5, 2]
    configure(tmp_path, std=0)
    with pytest.raises(UserMistake, match="standard deviation 0 of the scores are not usable"):
        open_scores(tmp_path)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_a_critic_starts_from_a_reward_model(kind, tmp_path):
    """Its values are the scores of the states before the trained tokens."""
    plain = build("llama", tmp_path)
    tokens = draw_sequences(4)[2]
    with Client() as worker:
        load = {"model": str(tmp_path), "cache_dir": str(tmp_path), "device": WORKER_DEVICE, "dtype": "float32"}
        worker.call("load", **load, head="value")
        adapter = {"kind": kind, "rank": 2, "alpha": 4, "targets": ["attn"], "seed": 1}
        created = worker.call("create_policy", adapter=adapter, head="value")
        trained = np.ones(len(tokens) - 1, np.uint8)
        request = worker.send("forward", {**ragged([tokens]), "trained": trained}, policy=created["policy"], outputs=["values"])
        _, arrays, _ = worker.answer(request)
    with torch.no_grad():
        expected = plain.score(plain.model(input_ids=torch.tensor([tokens])).last_hidden_state)[0, :-1, 0]
    assert np.abs(arrays["values"] - expected.numpy()).max() < 1e-4


def test_models_that_are_not_reward_models(tmp_path):
    build("llama", tmp_path / "two", labels=2)
    with pytest.raises(UserMistake, match=r"shape \[2, 32\], so it gives 2 numbers for each sequence"):
        open_scores(tmp_path / "two")
    build("llama", tmp_path / "none")
    file = tmp_path / "none" / "model.safetensors"
    save_file({k: v for k, v in load_file(file).items() if k != "score.weight"}, file, metadata={"format": "pt"})
    with pytest.raises(UserMistake, match="is not a reward model"):
        open_scores(tmp_path / "none")


@pytest.mark.parametrize(
    "sequence, message",
    [([], "0 tokens"), ([3] * 129, "129 tokens; judge reads 1 to 128"), ([VOCABULARY], "outside the vocabulary")],
)
def test_sequences_that_cannot_be_scored(sequence, message, tmp_path):
    build("llama", tmp_path)
    with pytest.raises(UserMistake, match=message):
        scores_of(open_scores(tmp_path), [[3, 4], sequence])


def test_without_enough_memory_batches_are_split(tmp_path, monkeypatch):
    build("llama", tmp_path)
    model, sequences = open_scores(tmp_path), draw_sequences(7)
    expected = scores_of(model, sequences)
    forward = model._forward

    def forward_few(rows):
        if len(rows) > 2:
            raise MemoryError
        return forward(rows)

    monkeypatch.setattr(model, "_forward", forward_few)
    assert (scores_of(model, sequences) - expected).abs().max() < 1e-5


def test_a_planted_preference():
    tokenizer = make_reward_tokenizer()
    model = make_reward_model(tokenizer, 0, layers=1)
    plant_preference(model, tokenizer.convert_tokens_to_ids(["a"]))
    with torch.no_grad():
        scores = [
            float(model.score(model.model(input_ids=torch.tensor([tokenizer.encode(text)])).last_hidden_state[:, -1]))
            for text in ("bbbb", "abbb", "aabb", "aaaa")
        ]
    assert scores[0] == 0
    assert scores == sorted(scores)
    assert scores[3] > 0.5


def test_a_worker_with_a_reward_model(tmp_path):
    plain = build("llama", tmp_path)
    sequences = draw_sequences(3)
    with Client() as worker:
        load = {"model": str(tmp_path), "cache_dir": str(tmp_path), "device": WORKER_DEVICE, "dtype": "float32"}
        loaded = worker.call("load", **load, head="score")
        assert loaded["model"]["max_length"] == 128
        _, arrays, _ = worker.answer(worker.send("score", ragged(sequences)))
        with torch.no_grad():
            expected = [float(plain(input_ids=torch.tensor([s])).logits[0, 0]) for s in sequences]
        assert np.abs(arrays["scores"] - expected).max() < 1e-4
        refused = worker.call("create_policy", adapter={"kind": "full"})
        assert "another kind of model" in refused["error"]["message"]
        assert "ok" in worker.call("stats")
