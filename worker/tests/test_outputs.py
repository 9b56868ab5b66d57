"""Packed rows, and their padded substitute, against transformers' own attention and autograd."""

import pytest
import torch
from hone_worker.policies.registry import Policies
from hone_worker.training import head
from hone_worker.training.trainer import Trainer
from models import (
    CONFIGS,
    VOCABULARY,
    build,
    load,
    reference,
    reference_outputs,
    sample_sequences,
    sequences_of,
    weighing,
)

PADDED = {"bloom"}
NAMES = ["logprobs", "entropy"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    found, expected = found.cpu(), expected.cpu()
    difference = (found - expected).abs().max() / expected.abs().max().clamp(min=1)
    assert difference < tolerance, float(difference)


@pytest.mark.parametrize("kind", CONFIGS)
def test_outputs_and_gradients_equal_autograd(kind, folder):
    path = build(kind, folder)
    model = load(path)
    assert (model.attention == "padded") == (kind in PADDED), model.attention_reason
    policies = Policies(model)
    policy = policies[policies.create({"kind": "full"})]
    sequences, trainer = sample_sequences(), Trainer(chunk_size=5, micro_batch_tokens=12)
    plain = reference(path)
    expected = reference_outputs(plain, sequences)
    found = trainer.forward(policy, sequences, [*NAMES, "concentration"])
    for name in found:
        close(found[name], expected[name].detach())
    weights = {
        name: torch.randn(len(expected[name]), generator=torch.Generator().manual_seed(i))
        for i, name in enumerate(NAMES)
    }
    sum((weights[name] * expected[name]).sum() for name in NAMES).backward()
    trainer.forward_backward(policy, sequences, NAMES, weighing(sequences, weights))
    assert trainer.counters["train/micro_batches"] > 4
    gradients = dict(plain.named_parameters())
    for (name, _), parameter in zip(model.module.named_parameters(), policy.parameters):
        expected_gradient = gradients[name].grad
        close(parameter.grad, torch.zeros_like(parameter) if expected_gradient is None else expected_gradient)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_frozen_head_gives_the_same_hidden_gradient_as_a_trained_one(kind, folder):
    model = load(build(kind, folder / "heads"))
    from hone_worker.training.head import token_outputs

    hidden = torch.randn(11, 32, generator=torch.Generator().manual_seed(0)).to(model.device)
    targets = torch.arange(11, device=model.device)
    gradients = []
    for trained in (False, True):
        x = hidden.clone().requires_grad_()
        outputs = token_outputs(model, x, targets, NAMES, 4, trained)
        outputs.backward(torch.arange(22.0, device=model.device).view(2, 11))
        gradients.append(x.grad)
    close(gradients[0], gradients[1])


def test_long_rows_are_cut_into_tiles(folder, monkeypatch):
    """Tiny limits force every way of cutting: between branches, and inside long prompts and branches."""
    from hone_worker.attention import tree

    path = build("qwen2", folder / "tiles")
    model = load(path)
    policies = Policies(model)
    policy = policies[policies.create({"kind": "none"})]
    expected = reference_outputs(reference(path), sample_sequences())["logprobs"].detach()
    fit = tree._fit
    monkeypatch.setattr(tree, "_fit", lambda bundle, limit, inside: fit(bundle, 24, inside))
    close(Trainer().forward(policy, sample_sequences(), ["logprobs"])["logprobs"], expected)


@pytest.mark.parametrize("adapter", [{"kind": "full"}, {"kind": "lora"}])
def test_a_prompt_that_a_group_shares_is_computed_once_though_it_gives_outputs_too(adapter, folder):
    """As a Tinker client sends a group: every place gives an output, and a prompt's carry no gradient."""
    path = build("llama", folder / "groups")
    draw = torch.Generator().manual_seed(2)
    tokens = lambda n: torch.randint(3, VOCABULARY, (n,), generator=draw).tolist()  # noqa: E731
    shown, prompts = tokens(6), [tokens(4), tokens(5)]
    groups = [[shown + prompt + tokens(n) for n in (3, 5, 1, 3)] for prompt in prompts]
    items = [item for pair in zip(*groups) for item in pair]
    items += [items[0], items[0] + tokens(2), shown[:3], tokens(5)]
    sequences = sequences_of([(item, [1] * (len(item) - 1)) for item in items])
    plain, policies = reference(path), Policies(load(path))
    if adapter["kind"] == "lora":
        adapter = {"kind": "lora", "rank": 2, "alpha": 4.0, "targets": ["attn", "unembed"], "seed": 1}
    policy = policies[policies.create(adapter)]
    trainer = Trainer(chunk_size=4, micro_batch_tokens=1000)
    expected = reference_outputs(plain, sequences)["logprobs"]
    close(trainer.forward(policy, sequences, ["logprobs"])["logprobs"], expected.detach())
    assert trainer.counters["train/tokens_computed"] < sum(map(len, items)) / 2
    places = torch.cat([torch.arange(len(item) - 1) for item in items])
    weights = {"logprobs": torch.where(places < 9, 0.0, torch.randn(len(places), generator=draw))}
    (weights["logprobs"] * expected).sum().backward()
    trainer.forward_backward(policy, sequences, ["logprobs"], weighing(sequences, weights))
    if adapter["kind"] == "full":
        gradients = dict(plain.named_parameters())
        for (name, _), parameter in zip(policy.model.module.named_parameters(), policy.parameters):
            close(parameter.grad, gradients[name].grad)
    else:
        together = [parameter.grad.clone() for parameter in policy.parameters]
        policy.zero_grad()
        # One at a time nothing is shared.
        Trainer(chunk_size=4, micro_batch_tokens=1).forward_backward(
            policy, sequences, ["logprobs"], weighing(sequences, weights)
        )
        for found, parameter in zip(together, policy.parameters):
            close(found, parameter.grad)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_draws_follow_the_distribution_at_each_place(folder, temperature):
    """Whatever is computed together: a draw depends on the seed and its number alone."""
    path = build("llama", folder / "draws")
    policies = Policies(load(path))
    policy = policies[policies.create({"kind": "none"})]
    item = [5, 6, 7, 5, 6]
    sequences = sequences_of([(item, [1] * 4), (item[:3], [0, 1])])
    tokens, logprobs = Trainer().draws(policy, sequences, 3000, temperature, 3)
    assert tokens.shape == (5, 3000)
    with torch.no_grad():
        logits = reference(path)(torch.tensor([item])).logits[0].float()
    for row, place in enumerate([0, 1, 2, 3, 1]):
        own = logits[place].log_softmax(-1)
        close(logprobs[row], own[tokens[row].long()], 1e-4)
        share = torch.bincount(tokens[row].long(), minlength=VOCABULARY) / 3000
        expected = (logits[place] / temperature).softmax(-1)
        assert float((share - expected).abs().sum()) < 0.35
    assert (tokens[1] != tokens[4]).any()
    alone, _ = Trainer(micro_batch_tokens=1).draws(policy, sequences, 3000, temperature, 3)
    assert float((alone == tokens).float().mean()) > 0.999
    greedy, _ = Trainer().draws(policy, sequences, 2, 0.0, 3)
    assert greedy[:4, 0].tolist() == greedy[:4, 1].tolist() == logits[:4].argmax(-1).tolist()


def test_torchs_chunked_cross_entropy_has_the_same_outputs_and_gradients(tmp_path, monkeypatch):
    """As on a GPU, where it computes the log-probabilities of a trained output layer."""
    if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        pytest.skip("this torch does not have it")
    policies, sequences = Policies(load(build("qwen3", tmp_path))), sample_sequences()
    policy, calls = policies[policies.create({"kind": "full"})], []
    found = []
    for device in ("cpu", "cuda"):
        monkeypatch.setattr(head, "uses_library", lambda *_, device=device: calls.append(device) or device == "cuda")
        policy.zero_grad()
        outputs = []

        def ask(_, values):
            outputs.append(values["logprobs"])
            return {"logprobs": torch.linspace(-1, 1, len(values["logprobs"]))}

        Trainer(chunk_size=5).forward_backward(policy, sequences, ["logprobs"], ask)
        found.append([*outputs, *(parameter.grad.clone() for parameter in policy.parameters)])
    assert set(calls) == {"cpu", "cuda"}
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
