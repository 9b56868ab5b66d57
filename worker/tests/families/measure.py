"""What Hone does with one tiny model, compared with transformers' own forward, autograd and generation, and with PEFT."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import peft
import torch
from hone_worker.attention.recurrent import apply_step_limits
from hone_worker.errors import UserMistake, first_line
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
from transformers import AutoModelForCausalLM, PreTrainedModel

from .text import VOCABULARY, Family, build

Logprobs = Callable[[list[int]], torch.Tensor]

_TOLERANCE = 2e-4
"""Of log-probabilities, and of gradients relative to the largest one."""
_PROMPTS = ([7, 9, 11, 13, 40, 41], [5, 4, 3, 21, 22, 23, 24, 25, 26, 27, 28])
_ADAPTER = {"kind": "lora", "rank": 3, "alpha": 6, "seed": 1}


@dataclass
class Row:
    """The columns of the table. A text says why something is not so; True means that the numbers agree."""

    title: str
    kind: str
    architecture: str
    rows: str
    """`packed`, `hybrid` (packed, with states for each sequence), `padded`, or `none`."""
    reason: str | None
    sampling: bool | str
    full_gradient: bool | str
    lora_gradient: bool | str
    lora_layers: list[str]
    """The last names of adapted layers and weights."""
    merged: bool | str
    adapter: bool | str


def measure(family: Family, folder: Path) -> Row:
    """`folder`: where its model is."""
    try:
        model = _load(folder)
    except UserMistake as mistake:
        return Row(family.title, family.kind, "", "none", mistake.message, *("not loaded",) * 3, [], *("not loaded",) * 2)
    theirs = _reference(folder)
    rows = "hybrid" if model.attention == "packed" and model.mixers else model.attention
    found = {"sampling": lambda: _sampling(model, theirs), "full_gradient": lambda: _full_gradient(folder, theirs)}
    policy = _shaken(model)
    members = [member for overlay in policy.overlays for member in overlay.group.members]
    layers = sorted({part for member in members if not (part := member.name.rsplit(".", 1)[-1]).isdigit()})
    more = {
        "lora_gradient": lambda: _lora_gradient(policy, folder),
        "merged": lambda: _merged(policy),
        "adapter": lambda: _adapter(policy, folder),
    }
    columns = {name: _result(check) for name, check in {**found, **more}.items()}
    return Row(family.title, family.kind, type(model.module).__name__, rows, model.attention_reason, lora_layers=layers, **columns)


def record(family: Family) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        return asdict(measure(family, build(family, Path(folder))))


def _result(check: Callable[[], float]) -> bool | str:
    """`check` returns the largest difference."""
    try:
        error = check()
    except UserMistake as mistake:
        return mistake.message
    except Exception as error:  # noqa: BLE001 - the table says what fails
        return f"{type(error).__name__}: {first_line(error)}"
    return True if error <= _TOLERANCE else f"differs by {error:.1e}"


def _load(folder: Path) -> LanguageModel:
    return load_model(str(folder), "tiny", cache_dir=folder.parent, device="cpu", dtype="float32")


def _reference(folder: Path) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    apply_step_limits(model.base_model)
    return model


def _plain(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    """`[L-1]` by a plain forward."""
    ids = torch.tensor([tokens])
    found = model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
    return found.gather(1, ids[0, 1:, None])[:, 0]


def _sampling(model: LanguageModel, theirs: PreTrainedModel) -> float:
    """Samples of a shared prompt and a lone one, greedy and at temperature 1."""
    policies = Policies(model)
    events, failures = [], []
    sampler = Sampler(
        device=model.device,
        max_rows=8,
        make_batch=PackedBatch if model.attention == "packed" else PaddedBatch,
        open_tokenizer=lambda: None,
        emit=lambda header, arrays: events.append((header, arrays)),
        fail=lambda _, error: failures.append(error),
    )
    policy = policies[policies.create({"kind": "none"})]
    wanted = [(_PROMPTS[0], 1.0, 3), (_PROMPTS[1], 0.0, 9), (_PROMPTS[0], 0.0, 7), (_PROMPTS[0], 1.0, 9)]
    requests = [Request(prompt, Draw(t), count, frozenset(), (), seed) for seed, (prompt, t, count) in enumerate(wanted)]
    sampler.add(1, policy, requests, False)
    while sampler.busy and not failures:
        sampler.step()
    if failures:
        raise failures[0]
    error, differing = 0.0, []
    for header, arrays in events:
        if header.get("event") != "sample":
            continue
        prompt, temperature, count = wanted[header["request"]]
        tokens = arrays["tokens"].tolist()
        with torch.no_grad():
            expected = _plain(theirs, prompt + tokens)[len(prompt) - 1 :]
            best = theirs(torch.tensor([prompt + tokens]), use_cache=False).logits[0, len(prompt) - 1 : -1].argmax(-1)
        error = max(error, float((expected - torch.from_numpy(arrays["logprobs"])).abs().max()))
        if temperature == 0:
            written = theirs.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False)
            if written[0, len(prompt) :].tolist() != tokens:
                if best.tolist() != tokens:
                    return math.inf
                differing.append(prompt)
    if differing and error <= _TOLERANCE:
        raise UserMistake("equals transformers' plain forward, from which its own `generate` differs")
    return error


def _sequences() -> Sequences:
    """A prompt with three samples, one of them of a single token, a prompt with one, and a sequence without a prompt in common."""
    draw = np.random.default_rng(0)
    first, second = (draw.integers(3, VOCABULARY, n).tolist() for n in (7, 4))
    items = [(first, n) for n in (9, 1, 5)] + [(second, 11), ([8], 13)]
    tokens = [prompt + draw.integers(3, VOCABULARY, n).tolist() for prompt, n in items]
    flags = [[0] * (len(prompt) - 1) + [1] * n for prompt, n in items]
    offsets = np.cumsum([0, *map(len, tokens)])
    return Sequences(np.array(sum(tokens, []), np.int32), offsets, np.array(sum(flags, []), np.uint8))


_SEQUENCES = _sequences()
_WEIGHTS = torch.linspace(-1, 1, int(_SEQUENCES.starts[-1]))


def _exchange(indices: list[int], outputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"logprobs": _WEIGHTS[_SEQUENCES.outputs(indices)]}


def _their_logprobs(model: torch.nn.Module) -> torch.Tensor:
    parts = [
        _plain(model, _SEQUENCES.ids(s).tolist())[torch.from_numpy(_SEQUENCES.places(s))] for s in range(len(_SEQUENCES))
    ]
    return torch.cat(parts)


def _our_logprobs(policy: Policy) -> torch.Tensor:
    return Trainer().forward(policy, _SEQUENCES, ["logprobs"])["logprobs"]


def _relative(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    return max(float((found[name] - expected[name]).abs().max()) for name in expected) / largest


def _full_gradient(folder: Path, theirs: PreTrainedModel) -> float:
    policies = Policies(_load(folder))
    policy = policies[policies.create({"kind": "full"})]
    Trainer().forward_backward(policy, _SEQUENCES, ["logprobs"], _exchange)
    theirs.zero_grad()
    expected = _their_logprobs(theirs)
    (_WEIGHTS * expected).sum().backward()
    found = {name: master.grad for name, master in zip(policy._weights, policy.parameters)}
    wanted = {name: weight.grad for name, weight in theirs.named_parameters() if weight.grad is not None}
    return max(_relative(found, wanted), float((_our_logprobs(policy) - expected.detach()).abs().max()))


def _adapter_of(model: LanguageModel, *more: str) -> dict[str, Any]:
    experts = ["experts"] if model.expert_groups else []
    return {**_ADAPTER, "targets": ["attn", "mlp", *experts, *more]}


def _shaken(model: LanguageModel) -> Any:
    policies = Policies(model)
    policy = policies[policies.create(_adapter_of(model, "unembed"))]
    shake(policy)
    return policy


@torch.no_grad()
def shake(policy: Policy) -> None:
    """Gives a LoRA policy a B that is not zero."""
    generator = torch.Generator().manual_seed(7)
    for _, parameter in sorted(policy.named(policy.parameters).items()):
        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    policy.revision += 1
    policy.publish()


def _with_adapter(policy: Any, folder: Path, into: str) -> torch.nn.Module:
    policy.export(Path(into) / "adapter", "adapter")
    return peft.PeftModel.from_pretrained(_reference(folder), Path(into) / "adapter", is_trainable=True)


def _lora_gradient(policy: Any, folder: Path) -> float:
    with TemporaryDirectory() as into:
        theirs = _with_adapter(policy, folder, into)
    policy.zero_grad()
    Trainer().forward_backward(policy, _SEQUENCES, ["logprobs"], _exchange)
    (_WEIGHTS * _their_logprobs(theirs)).sum().backward()
    found = policy.named([parameter.grad for parameter in policy.parameters])
    found = {f"base_model.model.{name.removesuffix('.weight')}.default.weight": value for name, value in found.items()}
    return _relative(found, {name: p.grad for name, p in theirs.named_parameters() if p.requires_grad and p.grad is not None})


def _adapter(policy: Any, folder: Path) -> float:
    with TemporaryDirectory() as into, torch.no_grad():
        theirs = _their_logprobs(_with_adapter(policy, folder, into))
    return float((_our_logprobs(policy) - theirs).abs().max())


def _merged(policy: Any) -> float:
    with TemporaryDirectory() as into, torch.no_grad():
        policy.export(Path(into) / "merged", "merged")
        theirs = _their_logprobs(_reference(Path(into) / "merged"))
    return float((_our_logprobs(policy) - theirs).abs().max())
