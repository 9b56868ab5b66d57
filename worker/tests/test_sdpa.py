"""Attention by SDPA, for Apple's GPUs, equals attention by tiles, forward and backward."""

import pytest
import torch
from hone_worker.attention.context import AttentionSpec
from hone_worker.attention.tree import SdpaTree, Tree
from hone_worker.models import model as model_module
from models import build, load
from test_flex import SPECS, packed_row


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("seed", range(3))
def test_equals_tiles_forward_and_backward(name: str, seed: int):
    generator = torch.Generator().manual_seed(seed)
    families, positions = packed_row(generator, 4)
    shapes = [(4, 8), (2, 8), (2, 16)]
    inputs = [torch.randn(len(positions), *shape, generator=generator) for shape in shapes]
    gradient = torch.randn(len(positions), 4, 16, generator=generator)
    sinks = torch.randn(4, generator=generator) if SPECS[name]["sinks"] else None
    spec = AttentionSpec(**(SPECS[name] | {"scaling": 0.4, "sinks": sinks}))

    def run(context) -> list[torch.Tensor]:
        leaves = [x.clone().requires_grad_() for x in inputs]
        output = context.attend(0, *leaves, spec)
        output.backward(gradient)
        return [output.detach(), *(x.grad for x in leaves)]

    for found, expected in zip(run(SdpaTree(families, positions)), run(Tree(families, positions)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["qwen2", "gpt_oss"])
def test_a_model_is_checked_with_it_when_it_is_loaded(kind: str, tmp_path, monkeypatch):
    monkeypatch.setattr(model_module, "fastest_attention", lambda _: SdpaTree)
    assert load(build(kind, tmp_path)).tree is SdpaTree
