"""The optimizer's kernels for GPUs, on a CPU: torch's fused AdamW, and 8-bit moments by bitsandbytes, if that is installed."""

import pytest
import torch
from hone_worker.policies.adamw import AdamSettings, AdamW, make_optimizer

SETTINGS = AdamSettings(1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0)


def parameters(seed: int, *sizes: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for size in sizes]


def give_gradients(step: int, *lists: list[torch.Tensor]) -> None:
    for each in lists:
        for parameter, gradient in zip(each, parameters(step, *map(len, each))):
            parameter.grad = gradient


@pytest.mark.parametrize("norm", [0.5, 30.0])
def test_the_fused_step_equals_the_plain_one(norm: float):
    plain, fused = (parameters(0, 50, 7) for _ in range(2))
    one, other = AdamW(plain), AdamW(fused)
    for step in range(1, 4):
        give_gradients(step, plain, fused)
        one.step(SETTINGS, norm)
        other.begin()
        other.steps += 1
        other.fused_step(SETTINGS, SETTINGS.clipped(norm))
        for found, expected in zip(fused + other.mean + other.square, plain + one.mean + one.square):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_eight_bits_equal_the_optimizer_of_bitsandbytes():
    library = pytest.importorskip("bitsandbytes.optim")
    ours, theirs, exact = (parameters(0, 20_000, 100, 5000) for _ in range(3))
    optimizer, plain = make_optimizer("adamw_8bit", ours), AdamW(exact)
    reference = library.AdamW8bit(theirs, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(1, 6):
        give_gradients(step, ours, theirs, exact)
        optimizer.step(SETTINGS, 0.5)
        plain.step(SETTINGS, 0.5)
        reference.step()
        for found, expected, precise in zip(ours, theirs, exact):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
            assert (found - precise).norm() < 0.05 * (precise - found.new_zeros(())).norm()


def test_a_state_of_eight_bits_continues_exactly():
    pytest.importorskip("bitsandbytes.optim")
    first, second = (parameters(0, 20_000, 100) for _ in range(2))
    one, other = make_optimizer("adamw_8bit", first), make_optimizer("adamw_8bit", second)
    give_gradients(1, first)
    one.step(SETTINGS, 30.0)
    other.begin()
    other.steps = one.steps
    for target, source in zip(second, first):
        target.copy_(source)
    mean, square = one.moments()
    assert [each.shape for each in mean] == [each.shape for each in first]
    other.set_moments(mean, square)
    give_gradients(2, first, second)
    for optimizer in (one, other):
        optimizer.step(SETTINGS, 30.0)
    for found, expected in zip(second, first):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert one.begun and one.gradient_norm() > 0
    one.reset()
    assert not one.begun
