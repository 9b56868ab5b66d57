"""How much memory training a model needs, computed before its weights are loaded.

The model is built on torch's meta device, where tensors have a shape and no memory. The learner's own code runs on it once: a policy, a
forward and a backward of one row, an optimizer's state. The plan is the bytes of the tensors that are alive at the same time.
Kernels are known only by what they keep: attention is replaced by functions that allocate what the real one allocates."""

import weakref
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    AttentionInterface,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)

from .attention.context import NAME, AttentionSpec, use
from .attention.recurrent import find_mixers
from .attention.tree import score_limit
from .models.experts import find_experts
from .models.linears import LinearGroup, Member, can_pack
from .models.loading import reads_images
from .models.model import LanguageModel
from .models.plain_model import ModelSource, PlainModel
from .policies.adamw import make_optimizer
from .policies.lora import LoraPolicy
from .policies.registry import FullPolicy
from .training.head import token_outputs

_META = torch.device("meta")


@dataclass(frozen=True)
class Sharing:
    """How several processes train one model (hone_sharded)."""

    processes: int
    sharding: str
    offload_parameters: bool = False
    offload_optimizer: bool = False
    sequence_parallel: int = 1


@dataclass(frozen=True)
class Training:
    """What is trained, as far as it changes the memory. `device` is the type of the device that trains."""

    adapter: dict
    """As in the protocol."""
    tokens: int
    """Of the longest row."""
    dtype: torch.dtype
    device: str
    checkpointing: bool = False
    merged: bool = True
    """Whether the weights of LoRA layers are merged into a copy."""
    chunk_size: int = 256
    optimizer: str = "adamw"
    sharing: Sharing | None = None
    """None: one process trains."""


@dataclass(frozen=True)
class Parts:
    """Bytes. With several processes, of the one that has the most."""

    weights: int = 0
    merged: int = 0
    """The copy with a LoRA policy's weights."""
    masters: int = 0
    """Trained parameters in float32, if the model computes with other tensors."""
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    """What a row of the longest length needs beyond the above."""
    head: int = 0
    """Beyond that: what the output layer adds."""
    gathered: int = 0
    """Beyond that: what several processes exchange, such as the weights of a layer that other processes keep."""
    last: int = 0
    """What their last exchange of a backward needs, when the activations are gone."""
    offloaded: int = 0
    """Of the above: in CPU memory, if that is not the device that trains."""
    cache_per_token: int = 0
    """Keys and values of one token in the sampler."""

    @property
    def fixed(self) -> int:
        return self.weights + self.merged + self.masters + self.gradients + self.optimizer - self.offloaded

    @property
    def working(self) -> int:
        """What a forward and backward need beyond `fixed`."""
        return max(self.activations + self.head + self.gathered, self.last)

    @property
    def needed(self) -> int:
        return self.fixed + self.working


Measure = Callable[[PreTrainedConfig, Training], Parts]


def measure(config: PreTrainedConfig, training: Training) -> Parts:
    """Raises any error of an architecture that cannot run on shapes alone."""
    return by_layers(config, training, _measure)


def measure_frozen(config: PreTrainedConfig, training: Training, tokens: int, scores: bool) -> Parts:
    """A model that only computes outputs of rows of this many tokens: a reference or a teacher, or, with `scores`, a reward model."""
    return by_layers(config, training, partial(_measure_frozen, tokens=tokens, scores=scores))


def by_layers(config: PreTrainedConfig, training: Training, measured: Measure) -> Parts:
    """`measured`, computed with two and three layers if all layers are equal: each further layer adds the same."""
    layers = config.get_text_config().num_hidden_layers
    if layers <= 3 or not _has_equal_layers(config, training.dtype):
        return measured(config, training)
    two, three = (measured(_with_layers(config, count), training) for count in (2, 3))
    pairs = zip(astuple(two), astuple(three), strict=True)
    return Parts(*(fewer + (layers - 2) * (more - fewer) for fewer, more in pairs))


def _measure(config: PreTrainedConfig, training: Training) -> Parts:
    ledger = Ledger()
    with ledger:
        model = _ShapeModel(config, training)
        weights = ledger.live
        policy = (FullPolicy if training.adapter["kind"] == "full" else LoraPolicy)(model, training.adapter)
        gradients = sum(parameter.grad.nbytes for parameter in policy.parameters)
        before = ledger.live
        policy.use_current()
        merged = ledger.live - before
        policy.optimizer = make_optimizer(training.optimizer, policy.parameters)
        before = ledger.live
        policy.optimizer.begin()
        optimizer = ledger.live - before
        policy.before_change()  # a LoRA policy keeps the published parameters until the next publish
        masters = ledger.live - weights - merged - gradients - optimizer
        activations, head = _row(ledger, model, policy, training)
    cached = model.attention_context.cached // training.tokens
    if training.adapter["kind"] != "full":
        weights += _packed_head(model, training)
    return Parts(weights, merged, masters, gradients, optimizer, activations, head, cache_per_token=cached)


def _measure_frozen(config: PreTrainedConfig, training: Training, tokens: int, scores: bool) -> Parts:
    ledger = Ledger()
    with ledger, torch.no_grad():
        ids = torch.zeros(1, tokens, dtype=torch.long, device=_META)
        if scores:
            with _META:
                body = AutoModel.from_config(config, dtype=training.dtype)
            use_sdpa_shapes(body)
            weights = ledger.restart()
            body(input_ids=ids, use_cache=False)
            return Parts(weights, activations=ledger.peak - weights)
        model = _ShapeModel(config, training)
        weights = ledger.restart()
        hidden = model.hidden(model.attention_context, ids[0], ids[0])
        token_outputs(model, hidden, ids[0], ["logprobs"], training.chunk_size, False)
    return Parts(weights + _packed_head(model, training), activations=ledger.peak - weights)


def _packed_head(model: "_ShapeModel", training: Training) -> int:
    """An output layer that is not trained is packed beside its plain weight, where this machine packs weights."""
    return model.head.weight.nbytes if can_pack(training.dtype, training.device) else 0


def _has_equal_layers(config: PreTrainedConfig, dtype: torch.dtype) -> bool:
    """Whether all layers of the language part have weights of the same shapes, and all of the model's layers are there."""
    if reads_images(config):
        return False
    base = getattr(module := _build(config, dtype), module.base_model_prefix)
    layers = [
        [tuple(weight.shape) for weight in layer.parameters()]
        for part in base.children()
        if isinstance(part, torch.nn.ModuleList)
        for layer in part
    ]
    return len(layers) == config.num_hidden_layers and all(layer == layers[0] for layer in layers)


def _with_layers(config: PreTrainedConfig, count: int) -> PreTrainedConfig:
    values = config.to_dict()
    values["num_hidden_layers"] = count
    for name in ("layer_types", "mlp_layer_types"):
        if values.get(name):
            values[name] = values[name][:count]
    return type(config)(**values)


def _build(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    auto = AutoModelForImageTextToText if reads_images(config) else AutoModelForCausalLM
    with _META:
        return auto.from_config(config, dtype=dtype).eval().requires_grad_(False)


def _row(ledger: "Ledger", model: "_ShapeModel", policy: FullPolicy | LoraPolicy, training: Training) -> tuple[int, int]:
    """A forward and a backward of one row in which all tokens are trained: what the layers need, and what the head adds."""
    start = ledger.restart()
    ids = torch.zeros(training.tokens, dtype=torch.long, device=_META)
    hidden = model.hidden(model.attention_context, ids, ids)
    body, kept = ledger.peak, ledger.live
    ledger.restart()
    outputs = token_outputs(model, hidden, ids, ["logprobs"], training.chunk_size, policy.trains_head)
    in_head = ledger.peak - kept
    del hidden
    ledger.restart()
    with use(model.attention_context):  # for recomputed checkpoints
        outputs.backward(torch.ones_like(outputs))
    whole = max(body, kept + in_head, ledger.peak) - start
    return whole - in_head, in_head


class Ledger(TorchDispatchMode):
    """Counts the bytes of the live tensors on the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def restart(self) -> int:
        """From now on, `peak` is the most since this call."""
        self.peak = self.live
        return self.live

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.is_meta:
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, key, size).atexit = False

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


class ShapePlain(PlainModel):
    """A model without weights, as far as a learner uses one."""

    def __init__(self, config: PreTrainedConfig, training: Training):
        none = Path()
        self.source = ModelSource(none, "", _META, training.dtype, training.checkpointing, merges_adapters=training.merged)
        self.directory, self.device, self.dtype = none, _META, training.dtype
        self.module = _build(config, training.dtype)
        self.base_name = self.module.base_model_prefix
        self.base = getattr(self.module, self.base_name)
        self.head = self.module.get_output_embeddings()
        self.head_name = next(name for name, module in self.module.named_modules() if module is self.head)
        self.config = config.get_text_config()
        self.vocabulary_size = self.head.weight.shape[0]
        self.plain_head = not getattr(self.config, "final_logit_softcapping", None)
        self.vision = None


class _ShapeModel(ShapePlain, LanguageModel):
    def __init__(self, config: PreTrainedConfig, training: Training):
        super().__init__(config, training)
        self.decoder = self.module.get_decoder() if reads_images(config) else self.module
        self.decoder.set_attn_implementation(NAME)
        self.installed, self.vision_groups, self.groups, self.mixers = None, [], [], find_mixers(self.decoder)
        self.balances, self.balance = False, None
        if self.mixers:
            raise NotImplementedError("recurrent layers")
        self.attention = "packed"
        self.attention_context = _Attention(training.device)
        ids = torch.zeros(3, dtype=torch.long, device=_META)
        with torch.no_grad():
            self.groups = self._groups(lambda: self.hidden(self.attention_context, ids, ids), training.checkpointing)
        self.expert_groups = find_experts(self.base, f"{self.base_name}.")
        self.head_group = LinearGroup([Member(self.head_name, self.head, "unembed")])
        if training.checkpointing:
            self.checkpoint_gradients()
        self.attention_context.cached = 0


class _Attention:
    """Attention that only allocates, as the kernels of a type of device do."""

    def __init__(self, device: str):
        self._kernel = _Fused if device in ("cuda", "mps") else _Tiles
        self._limit = score_limit(device)
        self._layers: set[int] = set()
        self.cached = 0

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        if self.cached == 0:
            self._layers.clear()
        if layer not in self._layers:
            self._layers.add(layer)
            self.cached += key.nbytes + value.nbytes
        return self._kernel.apply(query, key, value, self._limit)


class _Fused(torch.autograd.Function):
    """FlexAttention: no scores, and one number per query and head for the backward."""

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, _limit: int) -> Tensor:
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        ctx.save_for_backward(query, key, value, output, query.new_empty(query.shape[:2], dtype=torch.float32))
        return output

    @staticmethod
    def backward(ctx, gradient: Tensor):
        query, key, value, _, sums = ctx.saved_tensors
        _differences = torch.empty_like(sums)
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None


class _Tiles(torch.autograd.Function):
    """Attention by tiles (tree.py) of a row that is one sequence: the largest tile's tensors at a time, float32 on a CPU."""

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, limit: int) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.limit = limit
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        _tile = _Tiles._tensors(query, key, value, limit, copies=2)
        return output

    @staticmethod
    def backward(ctx, gradient: Tensor):
        query, key, value = ctx.saved_tensors
        sums = [torch.empty_like(each, dtype=torch.float32) for each in (key, value)]
        dq = torch.empty_like(query)
        _tile = _Tiles._tensors(query, key, value, ctx.limit, copies=3)
        return dq, *(each.to(key.dtype) for each in sums), None

    @staticmethod
    def _tensors(query: Tensor, key: Tensor, value: Tensor, limit: int, copies: int) -> list[Tensor]:
        length, heads = query.shape[:2]
        rows = min(length, max(1, limit // heads // length))
        scores = [torch.empty(heads, rows, length, device=_META) for _ in range(copies)]
        return [*scores, *(torch.empty_like(each, dtype=torch.float32) for each in (key, value))]


_SDPA = "hone_shapes"
"""No mask function is registered under this name, so transformers does not build a mask."""


def use_sdpa_shapes(module: PreTrainedModel) -> None:
    """Replaces torch's SDPA, which would compute scores on the meta device. Other attention of transformers stays as it is."""
    if module.config.get_text_config()._attn_implementation == "sdpa":
        module.set_attn_implementation(_SDPA)


def _sdpa_shapes(_module, query: Tensor, key: Tensor, value: Tensor, *_, **__) -> tuple[Tensor, None]:
    """As transformers' attention: `[B,H,L,D]` -> `[B,L,H,D]`."""
    return _Sdpa.apply(query, key, value), None


AttentionInterface.register(_SDPA, _sdpa_shapes)


class _Sdpa(torch.autograd.Function):
    """Flash attention of rows: no scores, and one number per query and head for the backward."""

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows, heads, length, _ = query.shape
        output = query.new_empty(rows, length, heads, value.shape[-1])
        ctx.save_for_backward(query, key, value, output, query.new_empty(rows, heads, length, dtype=torch.float32))
        return output

    @staticmethod
    def backward(ctx, gradient: Tensor):
        query, key, value, *_ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
