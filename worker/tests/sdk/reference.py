"""The same arithmetic in plain transformers, PEFT and torch, for comparison with the server's values."""

from __future__ import annotations

import math
import os
import tempfile
import urllib.request
from pathlib import Path

import numpy as np
import peft
import tinker
import torch
import transformers
from tinker import types
from torch import Tensor


class Reference:
    """The base model with an adapter that was exported by the server."""

    def __init__(self, folder: Path):
        base = transformers.AutoModelForCausalLM.from_pretrained(os.environ["HONE_MODEL"], dtype=torch.float32)
        self.model = peft.PeftModel.from_pretrained(base, folder, is_trainable=True).eval()
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer: torch.optim.AdamW | None = None

    @classmethod
    def of(cls, trainer: tinker.TrainingClient, rest: tinker.RestClient, name: str) -> Reference:
        path = trainer.save_weights_external(name).result().path
        folder = Path(tempfile.mkdtemp())
        for file, url in rest.get_external_weights_urls(path).result().urls.items():
            urllib.request.urlretrieve(url, folder / file)
        return cls(folder)

    def all_logprobs(self, tokens: list[int]) -> Tensor:
        """`[N, V]` of what follows each token."""
        return torch.log_softmax(self.model(torch.tensor([tokens])).logits[0].float(), -1)

    def logprobs(self, datum: types.Datum) -> Tensor:
        """`[N]` or `[N, K]`, of the target tokens."""
        tokens = datum.model_input.to_ints()
        targets = torch.tensor(dense(datum.loss_fn_inputs["target_tokens"])).long()
        everything = self.all_logprobs(tokens)
        return everything.gather(1, targets.reshape(len(tokens), -1)).reshape(targets.shape)

    def loss(self, data: list[types.Datum], name: str, config: dict[str, float]) -> Tensor:
        return sum(LOSSES[name](self.logprobs(datum), inputs_of(datum), config) for datum in data)

    def gradient_norm(self) -> float:
        return math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in self.parameters))

    def zero(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, adam: types.AdamParams) -> float:
        """The norm of the gradient before it was clipped."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        norm = self.gradient_norm()
        if adam.grad_clip_norm > 0:
            torch.nn.utils.clip_grad_norm_(self.parameters, adam.grad_clip_norm)
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(self.parameters)
        for group in self.optimizer.param_groups:
            group["lr"], group["betas"] = adam.learning_rate, (adam.beta1, adam.beta2)
            group["eps"], group["weight_decay"] = adam.eps, adam.weight_decay
        self.optimizer.step()
        self.zero()
        return norm


def dense(tensor: types.TensorData) -> np.ndarray:
    if tensor.sparse_crow_indices is None:
        return np.asarray(tensor.data).reshape(tensor.shape or [-1])
    return tensor.to_torch().to_dense().numpy() if tensor.to_torch().is_sparse_csr else tensor.to_torch().numpy()


def inputs_of(datum: types.Datum) -> dict[str, Tensor]:
    items = datum.loss_fn_inputs.items()
    return {name: torch.tensor(dense(value)) for name, value in items if name != "target_tokens"}


def _clip(ratio: Tensor, config: dict[str, float], low: float, high: float) -> Tensor:
    return ratio.clamp(config.get("clip_low_threshold", low), config.get("clip_high_threshold", high))


def _cross_entropy(p: Tensor, inputs: dict[str, Tensor], _: dict[str, float]) -> Tensor:
    return -(p * inputs["weights"]).sum()


def _importance_sampling(p: Tensor, inputs: dict[str, Tensor], _: dict[str, float]) -> Tensor:
    return -(torch.exp(p - inputs["logprobs"]) * inputs["advantages"]).sum()


def _ppo(p: Tensor, inputs: dict[str, Tensor], config: dict[str, float]) -> Tensor:
    ratio, advantages = torch.exp(p - inputs["logprobs"]), inputs["advantages"]
    return -torch.minimum(ratio * advantages, _clip(ratio, config, 0.8, 1.2) * advantages).sum()


def _cispo(p: Tensor, inputs: dict[str, Tensor], config: dict[str, float]) -> Tensor:
    ratio = torch.exp(p - inputs["logprobs"]).detach()
    return -(_clip(ratio, config, 0.0, 4.0) * p * inputs["advantages"]).sum()


def _dro(p: Tensor, inputs: dict[str, Tensor], config: dict[str, float]) -> Tensor:
    return -(p * inputs["advantages"] - 0.5 * config["beta"] * (p - inputs["logprobs"]) ** 2).sum()


def _gspo(p: Tensor, inputs: dict[str, Tensor], config: dict[str, float]) -> Tensor:
    counted = inputs["sequence_ratio_mask"] != 0
    sequence = torch.exp((p.detach() - inputs["logprobs"])[counted].mean())
    ratio, advantages = sequence * torch.exp(p - p.detach()), inputs["advantages"]
    return -torch.minimum(ratio * advantages, _clip(ratio, config, 0.8, 1.2) * advantages).sum()


LOSSES = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "dro": _dro,
    "gspo": _gspo,
}
