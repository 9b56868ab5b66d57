"""Log-probabilities of a prompt's own tokens, computed without the logits of all of them at once."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..models.model import LanguageModel

_LOGIT_ELEMENTS = 1 << 24


def score(model: LanguageModel, hidden: Tensor, following: Sequence[int]) -> Tensor:
    """fp32 `[N]`: the log-probability of `following[i]` after the position of `hidden[i]` `[N, D]`."""
    targets = torch.tensor(following, dtype=torch.long, device=hidden.device)
    scores = torch.empty(len(following), dtype=torch.float32, device=hidden.device)
    step = max(1, _LOGIT_ELEMENTS // model.vocabulary_size)
    for begin in range(0, len(following), step):
        part = slice(begin, begin + step)
        logits = model.logits(hidden[part]).float()
        scores[part] = logits.gather(1, targets[part, None])[:, 0] - logits.logsumexp(-1)
    return scores


def with_nan_first(scores: Sequence[Tensor]) -> np.ndarray:
    """The scores end to end, `[P]`. The first token of a prompt has no log-probability."""
    return np.concatenate([np.full(1, np.nan, np.float32), *(part.cpu().numpy() for part in scores)])
