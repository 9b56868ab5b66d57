"""Attention by FlexAttention equals attention by tiles, forward and backward."""

import os

import pytest
import torch
from hone_worker.attention import flex
from hone_worker.attention.context import AttentionSpec
from hone_worker.attention.flex import FlexTree
from hone_worker.attention.tree import Family, Span, Tree
from hone_worker.models import model as model_module
from hone_worker.models.selfcheck import why_not_packed
from hone_worker.policies.registry import Policies
from hone_worker.training.trainer import Trainer
from models import build, load, sample_sequences, weighing
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn.attention import flex_attention as torch_flex


@pytest.fixture(autouse=True)
def backward_on_a_cpu(monkeypatch):
    """Torch refuses the backward on a CPU; its plain implementation, which exists for all devices, is correct there too."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)


def packed_row(generator: torch.Generator, families: int) -> tuple[list[Family], torch.Tensor]:
    """Families of random sizes: without branches, with branches, and with empty prompts."""
    found, positions, at = [], [], 0

    def number(most: int) -> int:
        return int(torch.randint(0, most, (), generator=generator))

    for _ in range(families):
        prompt = Span(at, number(200))
        at += prompt.length
        positions.append(torch.arange(prompt.length))
        branches = []
        for _ in range(number(5)):
            branch = Span(at, number(150))
            at += branch.length
            positions.append(torch.arange(prompt.length, prompt.length + branch.length))
            branches.append(branch)
        found.append(Family(prompt, tuple(branches)))
    return found, torch.cat(positions)


SPECS = {
    "plain": dict(softcap=None, sliding_window=None, sinks=None),
    "window": dict(softcap=None, sliding_window=37, sinks=None),
    "softcap": dict(softcap=3.0, sliding_window=None, sinks=None),
    "sinks": dict(softcap=None, sliding_window=None, sinks="random"),
    "all of them": dict(softcap=2.0, sliding_window=190, sinks="random"),
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("seed", range(3))
def test_equals_tiles_forward_and_backward(name: str, seed: int):
    generator = torch.Generator().manual_seed(seed)
    families, positions = packed_row(generator, 4)
    heads, key_heads, size, value_size = 4, 2, 8, 16
    shapes = [(heads, size), (key_heads, size), (key_heads, value_size)]
    inputs = [torch.randn(len(positions), *shape, generator=generator) for shape in shapes]
    gradient = torch.randn(len(positions), heads, value_size, generator=generator)
    spec = SPECS[name]
    sinks = torch.randn(heads, generator=generator) if spec["sinks"] else None

    def run(context) -> list[torch.Tensor]:
        leaves = [x.clone().requires_grad_() for x in inputs]
        own = None if sinks is None else sinks.clone().requires_grad_()
        output = context.attend(0, *leaves, AttentionSpec(**(spec | {"scaling": 0.4, "sinks": own})))
        output.backward(gradient)
        return [output.detach(), *(x.grad for x in leaves), *([] if own is None else [own.grad])]

    for found, expected in zip(run(FlexTree(families, positions)), run(Tree(families, positions)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("window", [None, 1, 100, 300])
@pytest.mark.parametrize("seed", range(5))
def test_blocks_are_skipped_and_full_only_where_the_mask_says_so(window: int | None, seed: int):
    families, positions = packed_row(torch.Generator().manual_seed(seed), 6)
    context = FlexTree(families, positions)
    mask = context.mask(window)
    length = len(context._at)
    q, k = torch.arange(length)[:, None], torch.arange(length)[None]
    exact = mask.mask_mod(None, None, q, k).view(length // 128, 128, -1, 128).transpose(1, 2).flatten(2)
    some, full = context._blocks(window)
    assert not (exact.any(2) & ~some).any()
    assert not (full & ~exact.all(2)).any()
    if window is None:  # Few blocks are computed in vain.
        assert int(some.sum()) <= 1.5 * int(exact.any(2).sum()) + 2


def test_a_long_row_has_few_blocks_and_no_matrix_of_its_length():
    """65,536 tokens: 32 groups of a prompt with 8 replies."""
    families, positions, at = [], [], 0
    for _ in range(32):
        prompt = Span(at, 1024)
        branches = tuple(Span(at + 1024 + 128 * i, 128) for i in range(8))
        families.append(Family(prompt, branches))
        positions += [torch.arange(1024)] + [torch.arange(1024, 1152)] * 8
        at += 2048
    mask = FlexTree(families, torch.cat(positions)).mask(None)
    blocks = mask.kv_num_blocks.sum() + mask.full_kv_num_blocks.sum()
    # Per group: the prompt's triangle of 8 blocks, and 8 replies that see 8 blocks of the prompt and themselves.
    assert int(blocks) == 32 * (8 * 9 // 2 + 8 * 9)
    assert flex._BLOCK == 128


@pytest.mark.parametrize("kind", ["qwen2", "gemma2", "gpt_oss"])
def test_a_model_has_the_same_outputs_and_gradients(kind: str, tmp_path):
    model = load(build(kind, tmp_path))
    policies, sequences = Policies(model), sample_sequences()
    policy = policies[policies.create({"kind": "full"})]

    def run(tree) -> list[torch.Tensor]:
        model.tree = tree
        policy.zero_grad()
        trainer = Trainer(chunk_size=5)
        outputs = trainer.forward(policy, sequences, ["logprobs"])["logprobs"]
        weights = torch.randn(len(outputs), generator=torch.Generator().manual_seed(0))
        trainer.forward_backward(policy, sequences, ["logprobs"], weighing(sequences, {"logprobs": weights}))
        return [outputs, *(parameter.grad.clone() for parameter in policy.parameters)]

    assert model.tree is Tree  # on a CPU
    for found, expected in zip(run(FlexTree), run(Tree), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt_oss"])
def test_the_check_at_load_finds_wrong_outputs_and_gradients(kind: str, tmp_path):
    model = load(build(kind, tmp_path))
    assert why_not_packed(model, FlexTree) is None

    class WrongGradients(FlexTree):
        def attend(self, layer, query, key, value, spec):
            return super().attend(layer, query.detach() + 2 * (query - query.detach()), key, value, spec)

    class WrongOutputs(FlexTree):
        def mask(self, window):
            return super().mask(3)

    assert "gradients of attention differ" in why_not_packed(model, WrongGradients)
    assert "packed rows differ" in why_not_packed(model, WrongOutputs)


def test_a_device_that_fails_keeps_tiles(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(model_module, "fastest_attention", lambda _: FlexTree)
    folder = build("llama", tmp_path)
    assert load(folder).tree is FlexTree

    def fail(*_):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(FlexTree, "attend", fail)
    model = load(folder)
    assert model.tree is Tree and model.attention == "packed"
    assert "attention by tiles, which need more memory for long rows: RuntimeError: no kernel" in capfd.readouterr().err
    policies, sequences = Policies(model), sample_sequences()
    policy = policies[policies.create({"kind": "none"})]
    assert len(Trainer().forward(policy, sequences, ["logprobs"])["logprobs"]) > 0


@pytest.mark.skipif(not os.environ.get("HONE_NIGHTLY"), reason="compiles for a minute; runs in nightly")
def test_rows_of_other_sizes_are_not_compiled_again(monkeypatch):
    """Traced as on a GPU, forward and backward, but computed without kernels."""
    compiled = []

    def keep(graph, _inputs):
        compiled.append(graph)
        return make_boxed_func(graph.forward)

    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 64)
    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    traced = torch.compile(torch_flex.flex_attention, dynamic=True, fullgraph=True, backend=backend)
    monkeypatch.setattr(flex, "_flex", lambda _: traced)
    generator, counts = torch.Generator().manual_seed(0), []
    for _ in range(3):
        for spec in (SPECS["plain"], SPECS["window"], SPECS["softcap"]):
            families, positions = packed_row(generator, 4)
            inputs = [torch.randn(len(positions), heads, 8) for heads in (4, 2, 2)]
            found = []
            for context in (FlexTree(families, positions), Tree(families, positions)):
                leaves = [x.clone().requires_grad_() for x in inputs]
                output = context.attend(0, *leaves, AttentionSpec(**(spec | {"scaling": 0.4})))
                output.backward(torch.ones_like(output))
                found.append([output.detach(), *(x.grad for x in leaves)])
            for one, other in zip(*found, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=5e-5)
        counts.append(len(compiled))
    assert counts[0] > 0 and counts == [counts[0]] * 3
