"""DeepSpeed's ZeRO (Rajbhandari et al., 2020): stage 1 shards the optimizer state, stage 2 also the gradients,
stage 3 also the weights.

The optimizer is torch's fused AdamW, also where it is offloaded to the CPU. DeepSpeed's own Adam, and its all-reduce through
shared memory, are compiled at first use: one to two minutes, with a C++ compiler. It is not faster: a step of 20 million
float32 weights takes 0.012 s with either on one core (0.11 s if AdamW is not fused); after six steps the weights differ by 2e-6.

A learner does not know which backward pass is the last before a step, hence `managed_gradient_accumulation: false`. DeepSpeed
averages gradients over the processes, so the gradients of the outputs are multiplied by their number. Its clipping is off: Hone
clips by the norm that the step reports."""

import logging
import math
from contextlib import AbstractContextManager, nullcontext

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.ops import __compatible_ops__
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
)
from hone_worker.policies.adamw import AdamSettings
from torch import Tensor
from torch.nn import functional

from .model import TokenOutputs
from .sharding import Kind, ShardingOptions

# DeepSpeed's all-reduce through shared memory takes a minute to compile and is faster only for small messages.
__compatible_ops__["deepspeed_shm_comm"] = False
logging.getLogger("DeepSpeed").setLevel(logging.ERROR)

# Number of elements in one message.
_BUCKET = 1 << 24
_MOMENTS = {"mean": "exp_avg", "square": "exp_avg_sq"}


class Zero:
    """Implements Sharding."""

    def __init__(self, module: TokenOutputs, options: ShardingOptions):
        self._weights = module.named()
        self.trained = {name: weight.shape for name, weight in self._weights.items() if weight.requires_grad}
        self._stage = int(options.kind.removeprefix("zero"))
        if self._stage == 3:  # a weight is gathered only within the forward of its own module
            module.differentiates_head = True
        self._offloads = options.offload_optimizer
        self._has_gradient = self._reduced = False
        self._steps = 0
        exact = {name: self._weights[name].detach().clone() for name in self.trained if options.dtype == torch.bfloat16}
        self._engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=torch.optim.AdamW([self._weights[name] for name in self.trained], fused=True),
            dist_init_required=False,
            config=_config(self._stage, options),
        )
        self._zero = self._engine.optimizer
        for name, weight in exact.items():  # DeepSpeed has rounded the weights
            self.scatter(name, weight)

    @property
    def steps(self) -> int:
        return self._steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._steps = steps
        for state in self._states():
            state["step"].fill_(float(steps))

    def run(self, *inputs) -> Tensor:
        return self._engine(*inputs)

    def backward(self, outputs: Tensor, gradient: Tensor) -> None:
        self._has_gradient = True
        # Undoes DeepSpeed's average over the ranks.
        self._engine.backward((outputs * (gradient * dist.get_world_size())).sum())

    def abandon(self) -> None:
        """Nothing to do: DeepSpeed frees gathered weights after each layer."""

    def zero_grad(self) -> None:
        zero = self._zero
        self._engine.zero_grad()
        zero.zero_grad(set_to_none=True)
        self._has_gradient = self._reduced = False
        if self._stage == 3:
            zero._pre_step()
            zero.averaged_gradients = {}
            return
        zero.micro_step_id = -1
        zero.averaged_gradients = {}
        zero.all_grad_tensors = {}
        for weight in self._weights.values():
            weight.grad_accum = None

    def gradient_norm(self) -> float:
        self._reduce()
        squares = [gradient.double().square().sum() for gradient in self._gradients()]
        total = torch.stack(squares).sum().to(self._engine.device)
        dist.all_reduce(total)
        return math.sqrt(float(total)) if total >= 0 else math.nan

    @torch.no_grad()
    def step(self, settings: AdamSettings, norm: float) -> None:
        self._reduce()
        clip = settings.max_grad_norm
        if clip > 0 and norm > clip:
            for gradient in self._gradients():
                gradient.mul_(clip / norm)
        for group in self._zero.param_groups:
            group.update(
                lr=settings.learning_rate,
                betas=(settings.beta1, settings.beta2),
                eps=settings.eps,
                weight_decay=settings.weight_decay,
            )
        self._zero.step()
        self.zero_grad()
        self._steps += 1

    def reset(self) -> None:
        self.steps = 0
        for state in self._states():
            for key in _MOMENTS.values():
                state[key].zero_()

    def gather(self, name: str, kind: Kind = "weight") -> Tensor:
        weight = self._weights[name]
        if kind != "weight":
            return safe_get_full_optimizer_state(weight, _MOMENTS[kind]).float().cpu()
        if weight.requires_grad:
            return safe_get_full_fp32_param(weight).clone().cpu()
        with self._whole(weight):
            return weight.detach().clone().cpu()

    @torch.no_grad()
    def scatter(self, name: str, whole: Tensor, kind: Kind = "weight") -> None:
        weight = self._weights[name]
        whole = whole.to(self._engine.device, torch.float32)
        if kind != "weight":
            self._create_moments()
            self._set(weight, whole, _MOMENTS[kind])
            return
        with self._whole(weight, changed=True):
            weight.copy_(whole)
        self._set(weight, whole)

    def _set(self, weight: Tensor, whole: Tensor, state: str | None = None) -> None:
        """Sets this rank's part of an fp32 weight of the optimizer, or of a state."""
        if self._stage < 3:
            weight.set_full_hp_param(whole, state)
            return
        size = weight.ds_tensor.numel()  # the last rank's part may end with padding
        padded = functional.pad(whole.flatten(), (0, size * dist.get_world_size() - whole.numel()))
        self._zero.set_local_hp_param(padded.narrow(0, size * dist.get_rank(), size), weight, state)

    def _reduce(self) -> None:
        """Sums the gradients over the ranks, once before a step."""
        if self._reduced:
            return
        self._reduced = True
        if not self._has_gradient:  # DeepSpeed creates its buffers in a backward
            self._zero.averaged_gradients = {}
            for index, partition in enumerate(self._partitions()):
                zeros = torch.zeros_like(partition)
                if self._offloads:
                    partition.grad = zeros
                else:
                    self._zero.averaged_gradients[index] = [zeros]
            return
        if self._stage > 1:
            self._zero.finalize_gradient_accumulation_boundary()
            return
        self._engine._is_gradient_accumulation_boundary = True
        self._engine.allreduce_gradients()
        self._engine._is_gradient_accumulation_boundary = None

    def _partitions(self) -> list[Tensor]:
        """This rank's part of the trained weights in fp32, as in the optimizer."""
        if self._stage == 3:
            return self._zero.fp32_partitioned_groups_flat
        return self._zero.single_partition_of_fp32_groups

    def _gradients(self) -> list[Tensor]:
        """This rank's part of the reduced gradients."""
        if self._offloads:
            return [partition.grad for partition in self._partitions()]
        return [gradient for group in self._zero.averaged_gradients.values() for gradient in group]

    def _states(self) -> list[dict[str, Tensor]]:
        return [state for partition in self._partitions() if (state := self._zero.optimizer.state.get(partition))]

    def _create_moments(self) -> None:
        if self._states():
            return
        for partition in self._partitions():
            zeros = {key: torch.zeros_like(partition) for key in _MOMENTS.values()}
            self._zero.optimizer.state[partition] = {"step": torch.tensor(0.0), **zeros}
        if self._stage < 3:
            self._zero._lazy_init_hp_params_optimizer_state()

    def _whole(self, weight: Tensor, changed: bool = False) -> AbstractContextManager[None]:
        if self._stage < 3:
            return nullcontext()
        return deepspeed.zero.GatheredParameters([weight], modifier_rank=0 if changed else None)


def _config(stage: int, options: ShardingOptions) -> dict:
    zero = {"stage": stage, "overlap_comm": False, "reduce_bucket_size": _BUCKET}
    if stage == 3:
        zero |= {"stage3_param_persistence_threshold": 1024, "stage3_prefetch_bucket_size": _BUCKET}
        # With the default, a model of up to a billion weights is not sharded.
        zero["stage3_max_reuse_distance"] = 0
    # Pinned memory needs the driver of a GPU.
    memory = {"device": "cpu", "pin_memory": options.device.type == "cuda"}
    if options.offload_parameters:
        zero["offload_param"] = memory
    if options.offload_optimizer:
        zero["offload_optimizer"] = memory
    config = {
        "train_micro_batch_size_per_gpu": 1,
        # A step ends the accumulation after any number of backward passes.
        "managed_gradient_accumulation": False,
        "gradient_clipping": 0.0,
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
    }
    if options.dtype == torch.bfloat16:
        config["bf16"] = {"enabled": True}
        if stage > 1:
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config
