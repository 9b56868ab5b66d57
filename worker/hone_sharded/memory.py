"""How much memory each of several processes needs to train a model, computed before its weights are loaded.

As in hone_worker/memory_plan.py, the learner's own module runs once on tensors without memory. Weights, gradients and moments are divided
as by ZeRO (Rajbhandari et al., 2020, section 5), with P weights, T of them trained, b bytes per weight and N processes:

| | weights | gradients | optimizer |
|---|---|---|---|
| zero1 | b P | b T | 12 T / N |
| zero2 | b P | 4 T / N | 12 T / N |
| zero3 | b P / N | 4 T / N | 12 T / N |
| fsdp | (b (P - T) + 4 T) / N | 4 T / N | 8 T / N |

DeepSpeed keeps float32 master weights, 4 T / N of the optimizer's, even if the weights are float32."""

from dataclasses import replace

import torch
from hone_worker.memory_plan import Ledger, Parts, ShapePlain, Sharing, Training, by_layers, use_sdpa_shapes
from torch import nn
from transformers import PreTrainedConfig

from .model import TokenOutputs

_FLOAT32 = 4
_BUCKET = 1 << 24
"""Elements of DeepSpeed's messages (zero.py)."""


def measure_shared(config: PreTrainedConfig, training: Training) -> Parts:
    """Raises any error of an architecture that cannot run on shapes alone."""
    if hasattr(config, "vision_config"):
        raise NotImplementedError("a vision part in several processes")
    return by_layers(config, training, _measure)


def _measure(config: PreTrainedConfig, training: Training) -> Parts:
    sharing = training.sharing
    if training.adapter["kind"] == "none":  # ZeRO shards only trained weights
        sharing = replace(sharing, sharding="fsdp", offload_optimizer=False)
    ledger = Ledger()
    with ledger:
        plain = ShapePlain(config, training)
        use_sdpa_shapes(plain.module)
        if training.checkpointing:
            plain.checkpoint_gradients()
        model = TokenOutputs(plain, training.adapter, None, training.chunk_size)
        units = _units(model)
        states = _fsdp(units, sharing) if sharing.sharding == "fsdp" else _zero(units, sharing, training.dtype.itemsize)
        model.to(training.dtype)  # what is computed with, also if the trained weights are float32
        activations = _row(ledger, model, units[0], -(-training.tokens // sharing.sequence_parallel))
    offloaded = 0
    if training.device != "cpu":
        offloaded += states["weights"] if sharing.offload_parameters else 0
        offloaded += states["optimizer"] if sharing.offload_optimizer else 0
        if sharing.offload_optimizer and sharing.sharding != "fsdp":
            offloaded += _trained(units) * _FLOAT32 // sharing.processes  # the gradients that DeepSpeed's optimizer reads
    return Parts(**states, activations=activations, **_exchanged(units, sharing, training), offloaded=offloaded)


def _units(model: TokenOutputs) -> list[list[nn.Parameter]]:
    """The parameters outside of the layers, then those of each layer. A unit is gathered as a whole."""
    layers, known = [], set()
    for layer in model.layers:
        layers.append([weight for weight in layer.parameters() if id(weight) not in known])
        known.update(map(id, layers[-1]))
    return [[weight for weight in model.parameters() if id(weight) not in known], *layers]


def _elements(weights: list[nn.Parameter]) -> int:
    return sum(weight.numel() for weight in weights)


def _trained(units: list[list[nn.Parameter]]) -> int:
    return sum(weight.numel() for unit in units for weight in unit if weight.requires_grad)


def _fsdp(units: list[list[nn.Parameter]], sharing: Sharing) -> dict[str, int]:
    """FSDP2 divides each tensor's first dimension; a process may have a row more than another."""
    weights = [weight for unit in units for weight in unit]
    parts = [-(-weight.shape[0] // sharing.processes) * weight[0].numel() for weight in weights]
    trained = sum(part for part, weight in zip(parts, weights) if weight.requires_grad)
    kept = sum(part * weight.dtype.itemsize for part, weight in zip(parts, weights))
    return {"weights": kept, "gradients": trained * _FLOAT32, "optimizer": 2 * trained * _FLOAT32}


def _zero(units: list[list[nn.Parameter]], sharing: Sharing, size: int) -> dict[str, int]:
    stage, processes = sharing.sharding, sharing.processes
    trained = _trained(units)
    weights = size * sum(map(_elements, units))
    return {
        "weights": weights // processes if stage == "zero3" else weights,
        "gradients": size * trained if stage == "zero1" else _FLOAT32 * trained // processes,
        "optimizer": 3 * _FLOAT32 * trained // processes,
    }


def _row(ledger: Ledger, model: TokenOutputs, outside: list[nn.Parameter], tokens: int) -> int:
    """A forward and a backward of one row in which all tokens are trained. The gradients of a layer are exchanged, and so freed, before
    those of the next; the others stay until the end."""

    def exchange(weight: nn.Parameter) -> None:
        weight.grad = None

    kept = set(map(id, outside))
    for weight in model.parameters():
        if weight.requires_grad and id(weight) not in kept:
            weight.register_post_accumulate_grad_hook(exchange)
    start = ledger.restart()
    ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    with torch.set_grad_enabled(any(weight.requires_grad for weight in model.parameters())):
        outputs = model(ids, None, ids[0], ids[0], ["logprobs"])
    if outputs.requires_grad:
        outputs.backward(torch.ones_like(outputs))
    return ledger.peak - start


def _exchanged(units: list[list[nn.Parameter]], sharing: Sharing, training: Training) -> dict[str, int]:
    """What a process holds of the others' weights, and of gradients before they are divided."""
    sharding, processes, size = sharing.sharding, sharing.processes, training.dtype.itemsize
    bucket = size * _BUCKET
    if sharding in ("zero1", "zero2"):
        return {"gathered": bucket}
    if sharding == "zero3":
        return {"gathered": 2 * bucket + size * max(map(_elements, units))}
    outside, layer = units[0], max(units[1:], key=_elements, default=[])
    outside_trained = _trained([outside])
    # A layer is gathered into a buffer, and copied from there. Its gradients are float32 while they are exchanged, which takes until the
    # next layer's are known. Without recomputing, they take the place of its activations.
    # The weights outside of the layers stay gathered, and their gradients are exchanged at the end.
    exchanged = _FLOAT32 * _trained([layer]) if training.checkpointing else 0
    gathered = size * (_elements(outside) + 2 * _elements(layer)) + exchanged
    last = size * (_elements(outside) + outside_trained) + _FLOAT32 * (outside_trained + outside_trained // processes)
    return {"gathered": gathered, "last": last}
