"""A frozen model that gives each sequence one number, such as a reward model: token ids -> scores."""

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel

from ..errors import UserMistake
from ..folders import HEADS, read_moments, read_value_layer
from ..memory import is_out_of_memory, release_cached
from .loading import end_tokens, load_pretrained, longest_sequence
from .plain_model import ModelSource

_CPU_TOKENS, _ACCELERATOR_TOKENS = 2048, 16384


class ScoreModel:
    """The body of a language model, and a linear layer in fp32 from the hidden state of a sequence's last token
    to its score. A token is never taken for padding because of its id."""

    def __init__(self, source: ModelSource, micro_batch_tokens: int = 0):
        """`micro_batch_tokens`: including padding; 0 chooses by device."""
        self.source, self.device = source, source.device
        layer = read_value_layer(source.directory)
        if layer is None:
            raise UserMistake(
                f"{source.directory} is not a reward model: its weights have none of {', '.join(HEADS)}",
                "use a sequence-classification model with one label, or a model with a value head",
            )
        self.weight, self.bias = (part.to(source.device) for part in (layer.weight, layer.bias))
        self.moments = read_moments(source.directory)
        self.body = load_pretrained(source.directory, source.device, source.dtype, AutoModel)
        self.config = self.body.config.get_text_config()
        if self.config.hidden_size != self.weight.shape[1]:
            raise UserMistake(
                f"{source.directory}: the head reads {self.weight.shape[1]} values, but hidden states have "
                f"{self.config.hidden_size}",
                "use a complete copy of the reward model",
            )
        self._budget = micro_batch_tokens or default_tokens(source.device.type)

    @torch.no_grad()
    def score(self, tokens: np.ndarray, offsets: np.ndarray) -> Tensor:
        """fp32 `[S]` on the CPU: the scores of the sequences `tokens[offsets[s]:offsets[s + 1]]`."""
        sequences = np.split(tokens, offsets[1:-1])
        self._check(sequences)
        found = torch.empty(len(sequences))
        for batch in _plan([len(sequence) for sequence in sequences], self._budget):
            self._score_batch(sequences, batch, found)
        return found

    def info(self) -> dict:
        """ModelInfo of the engine interface, in snake_case."""
        return {
            "name": self.source.name,
            "directory": str(self.source.directory),
            "architecture": type(self.body).__name__,
            "parameters": sum(p.numel() for p in (*self.body.parameters(), self.weight, self.bias)),
            "vocabulary_size": self.body.get_input_embeddings().weight.shape[0],
            "max_length": longest_sequence(self.config),
            "eos_token_ids": end_tokens(self.source.directory, self.body),
            "dtype": str(self.source.dtype).removeprefix("torch."),
            "device": str(self.device),
            "attention": "padded",
            "attention_reason": "a reward model reads padded rows",
            "score_moments": self.moments,
        }

    def _check(self, sequences: list[np.ndarray]) -> None:
        size, longest = self.body.get_input_embeddings().weight.shape[0], longest_sequence(self.config)
        for sequence in sequences:
            if not 0 < len(sequence) <= longest:
                raise UserMistake(
                    f"a sequence has {len(sequence)} tokens; {self.source.name} reads 1 to {longest}",
                    "shorten the conversation",
                )
            if sequence.min() < 0 or sequence.max() >= size:
                raise UserMistake(
                    f"a sequence has a token outside the vocabulary of {self.source.name}, 0 to {size - 1}",
                    "render with this model's own tokenizer",
                )

    def _score_batch(self, sequences: list[np.ndarray], batch: list[int], found: Tensor) -> None:
        """Writes the scores of a batch. Without enough memory, it is split."""
        try:
            found[batch] = self._forward([sequences[s] for s in batch]).cpu()
            return
        except Exception as error:
            if not is_out_of_memory(error) or len(batch) == 1:
                raise
        release_cached(self.device)
        middle = len(batch) // 2
        self._score_batch(sequences, batch[:middle], found)
        self._score_batch(sequences, batch[middle:], found)

    def _forward(self, rows: list[np.ndarray]) -> Tensor:
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
        for padded, row in zip(ids, rows):
            padded[: len(row)] = torch.from_numpy(row.astype(np.int64))
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        inputs = {"input_ids": ids.to(self.device), "attention_mask": mask.long().to(self.device)}
        hidden = self.body(**inputs, use_cache=False).last_hidden_state
        last = hidden[torch.arange(len(rows)), lengths - 1].float()
        return torch.nn.functional.linear(last, self.weight, self.bias)[:, 0]


def default_tokens(device: str) -> int:
    """The tokens of a batch of rows on a type of device, including padding."""
    return _CPU_TOKENS if device == "cpu" else _ACCELERATOR_TOKENS


def _plan(lengths: list[int], budget: int) -> list[list[int]]:
    """Sequences of similar lengths, at most `budget` tokens with padding, or one sequence."""
    batches: list[list[int]] = []
    longest = 0
    for s in sorted(range(len(lengths)), key=lambda s: -lengths[s]):
        if not batches or longest * (len(batches[-1]) + 1) > budget:
            batches.append([])
            longest = lengths[s]
        batches[-1].append(s)
    return batches
