"""A device that is not the CPU, simulated on the CPU: `HONE_TEST_DEVICE=simulated pytest worker/tests/test_outputs.py`.

As on a GPU, a tensor is on one device, and operations refuse tensors of two devices. So tests find code that forgets to
move a tensor, on machines without a GPU. Speed, memory and the arithmetic of GPU kernels are not simulated."""

from typing import Any

import torch
from hone_worker.models import plain_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend


class _Module(_DummyBackendModule):
    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:  # for recomputed checkpoints
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend("simulated", _Module())
DEVICE = torch.device("simulated:0")
_library = torch.library.Library("aten", "IMPL")
# Operations that take tensors of both devices, on a GPU too. An index may be on the CPU.
_MIXED = ("aten::copy_", "aten::_to_copy")
_INDEXED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_unsafe_index", "aten::_index_put_impl_")


class SimulatedTensor(Tensor):
    """A tensor on the simulated device, whose values are in `inner`, a tensor on the CPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "SimulatedTensor":
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner
        return made

    def tolist(self):
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def __repr__(self, **_: Any) -> str:
        return f"simulated({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return _run(operation, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Also receives operations without a simulated tensor, such as `torch.zeros(3, device=DEVICE)`."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return _run(operation, args, kwargs or {})


def _run(operation, args: tuple, kwargs: dict) -> Any:
    name = operation._schema.name
    leaves = tree_leaves((args, kwargs))
    simulated = {id(leaf.inner): leaf for leaf in leaves if isinstance(leaf, SimulatedTensor)}
    if simulated:
        _check(name, args, leaves)
    here = isinstance(args[0], SimulatedTensor) if name == "aten::copy_" else bool(simulated)
    if (device := kwargs.get("device")) is not None:
        here = torch.device(device).type == DEVICE.type
        kwargs = {**kwargs, "device": torch.device("cpu")}
    kwargs.pop("pin_memory", None)
    args, kwargs = tree_map(_inner, (args, kwargs))

    def outer(value: Any) -> Any:
        if not here or not isinstance(value, Tensor):
            return value
        return simulated[id(value)] if id(value) in simulated else SimulatedTensor(value)

    if name == "aten::histc" and not args[0].is_floating_point():  # GPUs count integers too, CPUs do not
        return outer(operation(args[0].float(), *args[1:]).to(args[0].dtype))
    return tree_map(outer, operation(*args, **kwargs))


def _check(name: str, args: tuple, leaves: list) -> None:
    """Raises RuntimeError, as torch does for a GPU, if an operation mixes devices."""
    generators = [leaf for leaf in leaves if isinstance(leaf, torch.Generator)]
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0]
    elsewhere = [tensor for tensor in tensors if not isinstance(tensor, SimulatedTensor)]
    if name in _MIXED or (name in _INDEXED and isinstance(args[0], SimulatedTensor)):
        elsewhere = []
    if generators or elsewhere:
        shapes = [tuple(tensor.shape) for tensor in elsewhere]
        raise RuntimeError(f"{name}: {DEVICE} and the CPU in one operation: {shapes or 'a generator'}")


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, SimulatedTensor) else value


def install() -> None:
    """Makes models load onto the device, and torch pass all operations to it."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor([1], device=DEVICE)` copies where the mode sees it
    # Where torch itself reads a number from a tensor, e.g. the end of a slice, the mode is off.
    _library.impl("_local_scalar_dense", lambda tensor: tensor.inner.item(), "PrivateUse1")
    plain_model.choose_device = lambda _: DEVICE
    _Mode().__enter__()
