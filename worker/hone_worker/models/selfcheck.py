"""Checks, when a model is loaded, that packed trees give the same results as transformers' own attention."""

from contextlib import nullcontext
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention.context import NAME, AttentionContext, AttentionSpec, use
from ..attention.decode import Bucket, Decode, Prefill
from ..attention.tree import Family, PackedAttention, Span, Tree
from ..errors import UserMistake, first_line
from ..images.pictures import Piece

if TYPE_CHECKING:
    from ..images.vision import Probe

_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.06}
"""The largest difference of last hidden states, relative to their norm. SmolLM2-135M: 7e-7 and 0.02; with a
wrong window, 0.3."""


def causal_row(model, length: int) -> AttentionContext:
    """The attention context of one plain sequence."""
    return model.row([Family(Span(0, length), ())], torch.arange(length, device=model.device), Tree)


_KINDS = {"full_attention", "sliding_attention", "chunked_attention", "linear_attention", "conv", "hybrid", "hybrid_sliding"}
_KINDS |= {"mlp", "moe", "attention", "mamba", "recurrent"}
"""Kinds of layers that these checks cover. Others compress or choose keys, in rows that are longer than these."""


def why_not_packed(model, tree: PackedAttention = Tree) -> str | None:
    """Switches the model (a LanguageModel) to packed rows. Returns the reason if that is not possible."""
    if unknown := sorted(set(getattr(model.config, "layer_types", None) or ()) - _KINDS):
        return f"layers of the kind {unknown[0]} cannot be packed"
    reason = _why_rows_differ(model, tree)
    if reason is None or not model.mixers:
        return reason
    for mixer in model.mixers:
        mixer.continues = False
    return _why_rows_differ(model, tree)


def _why_rows_differ(model, tree: PackedAttention) -> str | None:
    generator = torch.Generator().manual_seed(0)
    sequences = [
        torch.randint(3, model.vocabulary_size, (n,), generator=generator).to(model.device)
        for n in (11, 8, 9)
    ]
    sequences[1][:5] = sequences[0][:5]
    model.decoder.set_attn_implementation(model.plain_attention)
    expected = torch.cat(
        [model.base(input_ids=s[None], use_cache=False).last_hidden_state[0] for s in sequences]
    )
    # One row: a prompt of five tokens with two branches, then a prompt without branches.
    ids = torch.cat([sequences[0], sequences[1][5:], sequences[2]])
    positions = torch.cat([torch.arange(11), torch.arange(5, 8), torch.arange(9)]).to(model.device)
    families = [Family(Span(0, 5), (Span(5, 6), Span(11, 3))), Family(Span(14, 9), ())]
    model.decoder.set_attn_implementation(NAME)
    watch = _Watch(model.row(families, positions, tree))
    packed = model.hidden(watch, ids, positions) if model.decoder.config._attn_implementation == NAME else None
    if packed is None or not watch.windows and not model.mixers:
        return f"{type(model.module).__name__} does not call transformers' attention registry"
    unannounced = _unannounced_window(model.config, watch.windows)
    if unannounced is not None:
        return f"layer {unannounced} does not pass its sliding window to the attention"
    rows = torch.cat([torch.arange(11), torch.arange(5), torch.arange(11, 23)]).to(model.device)
    error = _difference(packed[rows], expected)
    if not error <= _TOLERANCE[model.dtype]:
        return f"packed rows differ from plain ones by {error:.1e}"
    if model.mixers:
        error = _difference(*_continued_states(model, sequences, expected))
        if not error <= _TOLERANCE[model.dtype]:
            return f"steps after a state differ from plain rows by {error:.1e}"
    return None if tree is Tree else _why_gradients_differ(tree, families, positions, watch.calls, _TOLERANCE[model.dtype])


def _continued_states(model, sequences: list[Tensor], expected: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden states of two steps after two prompts, the first with two samples, as the sampler computes them. And those of
    plain rows."""
    lengths = (5, 7)
    prompts = Prefill(lengths, torch.float32, model.device)
    ids = torch.cat([sequences[0][:5], sequences[2][:7]])
    model.hidden(prompts, ids, torch.cat([torch.arange(n) for n in lengths]).to(model.device))
    bucket = Bucket(prompts.block, lengths)
    bucket.add_rows([0, 1, 0])
    starts, found, wanted = (5, 7, 5), [], []
    for step in range(2):
        places = [start + step for start in starts]
        bucket.begin_step(2)
        ids = torch.stack([sequences[s][at] for s, at in zip((0, 2, 1), places)])
        found.append(model.hidden(Decode([bucket]), ids, torch.tensor(places, device=model.device)))
        wanted += [expected[first + at] for first, at in zip((0, 19, 11), places)]
    return torch.cat(found), torch.stack(wanted)


def _why_gradients_differ(
    tree: PackedAttention, families: list[Family], positions: Tensor, calls: list["_Call"], tolerance: float
) -> str | None:
    """Compares the gradients of one layer of each kind with those of tiles."""
    for query, key, value, spec in calls:
        gradients = []
        for context in (tree(families, positions), Tree(families, positions)):
            leaves = [x.detach().clone().requires_grad_() for x in (query, key, value)]
            with torch.enable_grad():
                output = context.attend(0, *leaves, spec)
                output.backward(value.repeat_interleave(len(query[0]) // len(value[0]), 1))
            gradients.append([x.grad for x in leaves])
        error = max(_difference(*pair) for pair in zip(*gradients, strict=True))
        if not error <= tolerance:
            return f"gradients of attention differ from those of tiles by {error:.1e}"
    return None


@torch.no_grad()
def why_images_differ(model, probe: "Probe") -> str | None:
    """The reason why images cannot be placed in the rows of this model, if they cannot."""
    from ..images.vision import hidden_states  # imports Pillow, which text models do not need

    try:
        ids = torch.from_numpy(probe.ids.astype(np.int64)).to(model.device)
        piece = Piece(probe.ids, probe.pictures, 0, len(ids), 0)
        inputs = model.inputs(ids[None], torch.arange(len(ids), device=model.device)[None], [piece])
        is_packed = model.attention == "packed"
        context = causal_row(model, len(ids)) if is_packed else None
        if context is not None and model.vision.sees_ahead:
            context.see_ahead(model.vision.since([piece], torch.arange(len(ids), device=model.device)))
        with use(context) if context is not None else nullcontext():
            mask = {} if is_packed else {"attention_mask": torch.ones_like(ids)[None]}
            found = hidden_states(model.run_body, **inputs, **mask)
    except Exception as error:  # noqa: BLE001 - an unknown architecture can fail in any way
        return f"{type(error).__name__}: {first_line(error)}"
    errors = [_difference(*layer) for layer in zip(found, probe.expected, strict=True)]
    # Deep layers can amplify bfloat16's rounding without limit: in SmolLM2-135M with an image, transformers' own last hidden
    # states differ from those in float32 by 0.17. Wrong places or positions are wrong in every layer.
    error = max(errors) if model.dtype == torch.float32 else median(errors)
    if not error <= _TOLERANCE[model.dtype]:
        return f"rows with images differ from those of transformers by {error:.1e}"
    return None


def _difference(found: Tensor, expected: Tensor) -> float:
    """Relative to the norm."""
    return float((found.float() - expected.float()).norm() / expected.float().norm())


@torch.no_grad()
def head_is_plain(model) -> bool:
    """Whether logits are the output layer's product and nothing else. Raises UserMistake if they cannot be
    computed from hidden states."""
    ids = torch.arange(1, 5, device=model.head.weight.device)[None]
    with use(causal_row(model, 4)) if model.attention == "packed" else nullcontext():
        hidden = model.base(input_ids=ids, use_cache=False).last_hidden_state[0]
        expected = model.module(input_ids=ids, use_cache=False).logits[0].float()

    def agrees(logits: Tensor) -> bool:
        difference = (logits.float() - expected).norm() / expected.norm()
        return bool(difference < (1e-4 if model.dtype == torch.float32 else 2e-2))

    fits = hidden.shape[-1] == model.head.in_features
    if fits and agrees(F.linear(hidden, model.head.weight, model.head.bias)):
        return True
    if not agrees(model.full_head(hidden)):
        raise UserMistake(
            f"the output layer of {type(model.module).__name__} has an unknown form", "use another model"
        )
    return False


_Call = tuple[Tensor, Tensor, Tensor, AttentionSpec]


class _Watch:
    """Passes attention on and records each layer's window, and the inputs of one layer of each kind."""

    def __init__(self, context: AttentionContext):
        self._context = context
        self.windows: dict[int, int | None] = {}
        self._kinds: dict[tuple, _Call] = {}

    @property
    def calls(self) -> list[_Call]:
        return list(self._kinds.values())

    def mix(self, mixer, run, x: Tensor) -> Tensor:
        return self._context.mix(mixer, run, x)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        self.windows[layer] = spec.sliding_window
        kind = (query.shape, key.shape, value.shape, spec.scaling, spec.softcap, spec.sliding_window, spec.sinks is None)
        self._kinds.setdefault(kind, (query, key, value, spec))
        return self._context.attend(layer, query, key, value, spec)


def _unannounced_window(config, windows: dict[int, int | None]) -> int | None:
    """A layer that has a window, longer than this test's rows, according to the configuration, but calls
    attention without it."""
    kinds = getattr(config, "layer_types", None) or ()
    return next(
        (i for i, kind in enumerate(kinds) if kind == "sliding_attention" and windows.get(i, 1) is None), None
    )
