"""What FSDP keeps between passes."""

from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn import Module


def drop_whole_weights(model: Module) -> None:
    """To be called before an optimizer step. A forward pass without a backward pass leaves whole weights in modules: in the
    outermost one, with reshard_after_forward=false in all. A step does not change these, and the next forward pass would
    compute with them."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
        elif isinstance(module, FullyShardedDataParallel) and module._handle is not None:
            module._handle.reshard(True)  # FSDP 1 has no public call
