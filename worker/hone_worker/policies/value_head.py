"""A critic's head: from hidden states to values."""

import torch
from torch import Tensor

from ..models.model import LanguageModel
from ..models.value_layer import read_value_layer


class ValueHead:
    """A linear layer from a hidden state to one value, in fp32. If the model's files have such a layer (those of a reward
    model do), it starts with their values. Otherwise it starts at zero: all first values are 0, and the first step
    trains only the head."""

    def __init__(self, model: LanguageModel):
        layer = read_value_layer(model.directory)
        if layer is None:
            self.weight = torch.zeros(1, model.head.in_features, device=model.device)
            self.bias = torch.zeros(1, device=model.device)
        else:
            self.weight, self.bias = layer.weight.to(model.device), layer.bias.to(model.device)
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    @property
    def parameters(self) -> list[Tensor]:
        """`[1, D]` and `[1]`."""
        return [self.weight, self.bias]

    @staticmethod
    def named(values: list[Tensor]) -> dict[str, Tensor]:
        """Tensors in the shapes of `parameters`, with their names in files."""
        return dict(zip(("value_head.weight", "value_head.bias"), values, strict=True))

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden `[N,D]` -> fp32 `[N]`: values of the states before the tokens that these hidden states
        predict."""
        return torch.nn.functional.linear(hidden.float(), self.weight, self.bias)[:, 0]
