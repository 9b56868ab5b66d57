"""Models that read images, against plain transformers and autograd: log-probabilities, gradients and samples."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from families import images as measured
from hone_worker.attention import tree
from hone_worker.images.pictures import Image
from hone_worker.images.vision import Vision
from hone_worker.models import model as model_module
from hone_worker.models.model import LanguageModel, load_model
from hone_worker.policies.policy import Policy
from hone_worker.policies.registry import Policies
from hone_worker.sampling.draw import Draw
from hone_worker.sampling.packed_batch import PackedBatch
from hone_worker.sampling.padded_batch import PaddedBatch
from hone_worker.sampling.rows import Request
from hone_worker.sampling.sampler import Sampler
from hone_worker.training.sequences import Sequences
from hone_worker.training.trainer import Trainer
from models import DEVICE, weighing
from tiny_vision_models import (
    FAMILIES,
    Sequence_,
    build,
    picture,
    plain_logprobs,
    reference,
    sequence,
    text,
)

torch.set_num_threads(1)
_FOLDERS = TemporaryDirectory()
LORA = {"kind": "lora", "rank": 2, "alpha": 4.0, "targets": ["attn", "mlp", "unembed"], "seed": 1}
ADAPTERS = {
    "full": {"kind": "full"},
    "full-vision": {"kind": "full", "train_vision": True},
    "lora": LORA,
    "lora-vision": {**LORA, "train_vision": True},
}


@cache
def folder(family: str) -> Path:
    if family in FAMILIES:
        return build(family, Path(_FOLDERS.name))
    return measured.build(next(one for one in measured.IMAGES if one.kind == family), Path(_FOLDERS.name))


def load(path: Path, attention: str = "packed") -> LanguageModel:
    with pytest.MonkeyPatch.context() as patch:
        if attention == "padded":
            patch.setattr(model_module, "why_not_packed", lambda _: "the test wants it")
        model = load_model(str(path), "tiny", cache_dir=path.parent, device=DEVICE, dtype="float32")
    assert model.attention == attention and model.vision is not None, model.info()
    return model


def images(model: LanguageModel) -> list[Image]:
    files = [picture(1), picture(2), picture(3, 44, 17, "JPEG")]
    return [model.vision.read(f"image {i}", file) for i, file in enumerate(files)]


def conversations(model: LanguageModel) -> list[Sequence_]:
    """Without images, groups that share images, equal texts with other images, several images in several turns, and
    a sequence that begins with an image."""
    one, two, wide = images(model)
    start, turn = text(0, 4), text(1, 5)
    return [
        sequence(start, one, turn, text(10, 3)),
        sequence(text(2, 9)),
        sequence(start, one, turn, text(11, 6)),
        sequence(start, two, turn, text(10, 3)),
        sequence(start, one, turn, wide, turn, text(12, 2), one, text(13, 4)),
        sequence(wide, text(15, 3)),
        sequence(start, turn, text(16, 4)),
    ]


def batch(items: list[Sequence_], trained: int = 3) -> Sequences:
    """The last tokens of each sequence are outputs."""
    offsets = np.cumsum([0, *(len(item.ids) for item in items)])
    flags = [[0] * (len(item.ids) - 1 - trained) + [1] * trained for item in items]
    tokens = np.array([token for item in items for token in item.ids], np.int32)
    pictures = [item.pictures for item in items]
    return Sequences(tokens, offsets, np.array(sum(flags, []), np.uint8), None, pictures)


def plain_outputs(plain, model: LanguageModel, items: list[Sequence_], trained: int = 3) -> torch.Tensor:
    found = []
    for item in items:
        log_p = plain_logprobs(plain, model.vision, item)[-1 - trained : -1]
        found.append(log_p.gather(1, torch.tensor(item.ids[-trained:])[:, None])[:, 0])
    return torch.cat(found)


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    found, expected = found.cpu(), expected.cpu()
    difference = (found - expected).abs().max() / expected.abs().max().clamp(min=1)
    assert difference < tolerance, float(difference)


def trained_policy(model: LanguageModel, adapter: dict) -> Policy:
    """With adapters that are not zero."""
    policies = Policies(model)
    policy = policies[policies.create(adapter)]
    if adapter["kind"] == "lora":
        generator = torch.Generator().manual_seed(3)
        for overlay in policy.overlays:
            for b in overlay.b:
                b.copy_(torch.randn(b.shape, generator=generator) * 0.1)
        policy.revision += 1
        policy.mark_published()
    return policy


def check_gradients(policy: Policy, plain) -> None:
    gradients = {name: weight.grad for name, weight in plain.named_parameters()}
    if policy.adapter["kind"] == "full":
        for name, parameter in policy.named(policy.parameters).items():
            expected = gradients[name]
            close(parameter.grad, torch.zeros_like(parameter) if expected is None else expected)
        return
    for overlay in policy.overlays:
        group = overlay.group
        for i, member in enumerate(group.members):
            # With W + s B A: dB = s dW A', dA = s B' dW.
            change, a, b = gradients[f"{member.name}.weight"], overlay.a[2 * i : 2 * i + 2], overlay.b[i]
            close(b.grad, overlay.scale * change @ a.cpu().t())
            close(overlay.a.grad[2 * i : 2 * i + 2], overlay.scale * b.cpu().t() @ change)


def check_training(family: str, adapter: dict, attention: str, tmp_path: Path) -> None:
    model = load(folder(family), attention)
    policy = trained_policy(model, adapter)
    policy.export(tmp_path / "merged", "merged")
    plain = reference(tmp_path / "merged")
    items = conversations(model)
    sequences, trainer = batch(items), Trainer(chunk_size=5, micro_batch_tokens=40)
    expected = plain_outputs(plain, model, items)
    close(trainer.forward(policy, sequences, ["logprobs"])["logprobs"], expected.detach())
    for item, logprobs in zip(items, expected.detach().split(3)):
        close(trainer.forward(policy, batch([item]), ["logprobs"])["logprobs"], logprobs)
    weights = {"logprobs": torch.randn(len(expected), generator=torch.Generator().manual_seed(1))}
    (weights["logprobs"] * expected).sum().backward()
    before = trainer.counters["train/micro_batches"]
    trainer.forward_backward(policy, sequences, ["logprobs"], weighing(sequences, weights))
    assert trainer.counters["train/micro_batches"] - before > 2
    check_gradients(policy, plain)
    vision = [name for name in policy.named(policy.parameters) if "visual" in name or "vision" in name]
    assert bool(vision) == bool(adapter.get("train_vision"))


@pytest.mark.parametrize(
    "family, adapter",
    [*product(FAMILIES, ADAPTERS), ("gemma3", "full-vision"), ("gemma3", "lora")],
)
def test_outputs_and_gradients_equal_autograd(family, adapter, tmp_path):
    check_training(family, ADAPTERS[adapter], "packed", tmp_path)


@pytest.mark.parametrize("family", ["qwen2_vl", "smolvlm", "gemma3"])
def test_padded_rows_equal_autograd(family, tmp_path):
    check_training(family, ADAPTERS["full-vision"], "padded", tmp_path)


@pytest.mark.parametrize("family", ["qwen2_vl", "gemma3"])
def test_every_place_may_be_an_output(family, tmp_path, monkeypatch):
    """As a Tinker client sends sequences: outputs are inside images too. Small tiles would begin and end there."""
    model = load(folder(family))
    fit = tree._fit
    monkeypatch.setattr(tree, "_fit", lambda bundle, limit, inside: fit(bundle, 24, inside))
    policy = trained_policy(model, LORA)
    policy.export(tmp_path / "merged", "merged")
    items = conversations(model)
    everywhere = Sequences(
        batch(items).tokens,
        batch(items).offsets,
        np.ones(sum(len(item.ids) - 1 for item in items), np.uint8),
        None,
        [item.pictures for item in items],
    )
    plain = reference(tmp_path / "merged")
    expected = [plain_outputs(plain, model, [item], len(item.ids) - 1).detach() for item in items]
    close(Trainer().forward(policy, everywhere, ["logprobs"])["logprobs"], torch.cat(expected))


@pytest.mark.parametrize(
    "family, dtype, name, wrong",
    [
        ("smolvlm", "float32", "features", lambda found: found.roll(1, 0)),
        ("smolvlm", "bfloat16", "features", lambda found: found.roll(1, 0)),
        ("qwen2_vl", "bfloat16", "features", lambda found: found.roll(1, 0)),
        ("qwen2_vl", "float32", "row_positions", lambda found: found[:1].expand(3, -1)),
    ],
)
def test_wrong_features_or_positions_are_noticed_at_load(family, dtype, name, wrong, monkeypatch):
    right = getattr(Vision, name)
    monkeypatch.setattr(Vision, name, lambda *given: wrong(right(*given)))
    model = load_model(str(folder(family)), "tiny", cache_dir=folder(family).parent, device=DEVICE, dtype=dtype)
    assert model.vision is None and "rows with images differ" in model.images_reason


def test_an_image_is_computed_once_while_the_vision_part_is_not_trained():
    model = load(folder("smolvlm"))
    policy = trained_policy(model, LORA)
    sequences, trainer, counters = batch(conversations(model)), Trainer(micro_batch_tokens=90), model.vision.counters
    before = counters["images/features_computed"]
    weights = {"logprobs": torch.ones(int(sequences.starts[-1]))}
    for _ in range(2):
        trainer.forward(policy, sequences, ["logprobs"])
        trainer.forward_backward(policy, sequences, ["logprobs"], weighing(sequences, weights))
    assert counters["images/features_computed"] - before == 3
    vision = trained_policy(load(folder("smolvlm")), ADAPTERS["full-vision"])
    counters = vision.model.vision.counters
    before = counters["images/features_computed"]
    for _ in range(2):
        trainer.forward(vision, sequences, ["logprobs"])
    assert counters["images/features_computed"] - before == 3
    vision.revision += 1
    trainer.forward(vision, sequences, ["logprobs"])
    assert counters["images/features_computed"] - before == 6


class Bench:
    """A sampler and what it answered."""

    def __init__(self, policy: Policy, max_rows: int = 5):
        make = PackedBatch if policy.model.attention == "packed" else PaddedBatch
        self.found: dict[int, dict[str, np.ndarray]] = {}
        self.failures: list[BaseException] = []
        self.policy = policy
        self.sampler = Sampler(
            policy.model.device, max_rows, make, lambda: None, self._emit, lambda _, error: self.failures.append(error)
        )

    def _emit(self, header: dict, arrays: dict[str, np.ndarray]) -> None:
        if header.get("event") == "sample":
            self.found[header["request"]] = arrays

    def sample(self, requests: list[Request]) -> list[dict[str, np.ndarray]]:
        self.sampler.add(1, self.policy, requests, False)
        while self.sampler.busy:
            self.sampler.step()
        assert not self.failures
        return [self.found[i] for i in range(len(requests))]


@pytest.mark.parametrize(
    "family, adapter, attention",
    [*((family, "full", "packed") for family in FAMILIES), ("qwen2_5_vl", "lora-vision", "packed")]
    + [("gemma3", "lora", "packed")]
    + [("qwen2_vl", "full", "padded"), ("smolvlm", "full", "padded"), ("gemma3", "full", "padded")],
)
def test_samples_equal_transformers(family, adapter, attention, tmp_path, monkeypatch):
    """Rows wait and join, prompts of a group are read once, equal texts have other images."""
    model = load(folder(family), attention)
    policy = trained_policy(model, ADAPTERS[adapter])
    policy.export(tmp_path / "merged", "merged")
    plain, items = reference(tmp_path / "merged"), conversations(model)
    requests = [
        Request(item.ids, Draw(), 7 + i % 3, frozenset(), (), seed, prompt_logprobs=True, pictures=item.pictures)
        for i, item in enumerate(items)
        for seed in (1, 2)
    ]
    monkeypatch.setattr(PackedBatch, "prefill_tokens", 70)  # a long prompt is read in parts
    bench = Bench(policy)
    for request, arrays in zip(requests, bench.sample(requests)):
        whole = Sequence_(request.prompt + arrays["tokens"].tolist(), request.pictures)
        log_p = plain_logprobs(plain, model.vision, whole).detach()[:-1]
        chosen = log_p.gather(1, torch.tensor(whole.ids)[1:, None])[:, 0]
        found = torch.from_numpy(np.concatenate([arrays["prompt_logprobs"][1:], arrays["logprobs"]]))
        close(found, chosen)
    if attention == "packed":
        assert bench.sampler.counters["prompts_shared"] >= 4
    greedy = Bench(policy).sample(
        [Request(item.ids, Draw(0), 6, frozenset(), (), 0, pictures=item.pictures) for item in items]
    )
    for item, arrays in zip(items, greedy):
        tokens: list[int] = []
        for _ in range(6):
            log_p = plain_logprobs(plain, model.vision, Sequence_(item.ids + tokens, item.pictures))
            tokens.append(int(log_p[-1].argmax()))
        assert arrays["tokens"].tolist() == tokens
