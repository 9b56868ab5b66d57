"""The simulated device refuses what a GPU refuses, so that the tests that pass on it say something."""

import pytest
import torch
from models import DEVICE

pytestmark = pytest.mark.skipif(DEVICE != "simulated", reason="HONE_TEST_DEVICE is not simulated")


def test_operations_refuse_tensors_of_two_devices():
    there, here = torch.ones(3, device=DEVICE), torch.ones(3)
    for mixed in (
        lambda: there + here,
        lambda: here.add_(there),
        lambda: torch.cat([there, here]),
        lambda: there * torch.nn.Parameter(here),
        lambda: here[there.long()],
        lambda: torch.multinomial(there, 1, generator=torch.Generator()),
    ):
        with pytest.raises(RuntimeError, match="and the CPU in one operation"):
            mixed()
    with pytest.raises(RuntimeError, match="numpy"):
        there.numpy()


def test_operations_take_what_a_gpu_takes():
    there, here = torch.ones(3, device=DEVICE), torch.zeros(3)
    assert (there[torch.tensor([1])] * torch.tensor(2.0)).tolist() == [2.0]
    assert (there.copy_(here) + here.to(DEVICE)).device.type == DEVICE
    assert here.copy_(there).device.type == "cpu"
