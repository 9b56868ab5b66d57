"""Requests to the sampler, and their tokens so far, with the end of a sequence: by a token, a stop string or a length."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ..errors import UserMistake
from ..images.pictures import Pictures
from .draw import Draw

# What a decoder writes for invalid bytes, so also for the first bytes of an incomplete character.
_INCOMPLETE = "\ufffd"
# A character has at most four bytes: what is incomplete after this many tokens is invalid.
_MOST_PENDING = 8


class StopStrings:
    """Watches one sample. Tokens decode differently at the start of a text (a leading space may be dropped),
    and a character may span tokens. So the new text is the decoded last settled tokens plus the new ones,
    minus the decoded settled tokens."""

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str]):
        self._tokenizer = tokenizer
        self._strings = [text for text in strings if text]
        self._reach = max(map(len, self._strings), default=0) - 1
        self._settled: list[int] = []
        self._settled_text = ""
        self._pending: list[int] = []
        self._tail = ""

    def push(self, token: int) -> bool:
        """Whether the text, with this token, contains one of the strings."""
        self._pending.append(token)
        text = self._tokenizer.decode(self._settled + self._pending, skip_special_tokens=False)
        new = text[len(self._settled_text) :]
        complete = new.rstrip(_INCOMPLETE)
        searched = self._tail + complete
        if any(string in searched for string in self._strings):
            return True
        if len(complete) == len(new) or len(self._pending) >= _MOST_PENDING:
            self._tail = searched[-self._reach :] if self._reach > 0 else ""
            self._settled, self._pending = self._pending, []
            self._settled_text = self._tokenizer.decode(self._settled, skip_special_tokens=False)
        return False


LEAST_TEMPERATURE = 0.01


@dataclass(frozen=True)
class Request:
    """One sequence to sample."""

    prompt: list[int]
    draw: Draw
    max_tokens: int
    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...]
    seed: int
    prompt_logprobs: bool = False
    top_logprobs: int = 0
    pictures: Pictures = ()


@dataclass(eq=False)
class Row:
    """One running sequence: request `index` of the sample message `job`."""

    job: int
    index: int
    request: Request
    stops: StopStrings | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[tuple[list[int], list[float]]] = field(default_factory=list)
    prompt_logprobs: np.ndarray | None = None
    # (index of the first token, version of the weights that sampled it), in order.
    versions: list[tuple[int, int]] = field(default_factory=list)
    shift: int = 0
    """Added to the positions of sampled tokens, which follow images."""

    @property
    def context(self) -> list[int]:
        """The tokens that the next one depends on."""
        return self.request.prompt + self.tokens if self.tokens else self.request.prompt

    @property
    def lacks_prompt_logprobs(self) -> bool:
        return self.request.prompt_logprobs and self.prompt_logprobs is None

    def add(self, token: int, logprob: float, version: int) -> str | None:
        """Appends a token. Returns the stop reason if the sequence ends with it."""
        if not self.versions or self.versions[-1][1] != version:
            self.versions.append((len(self.tokens), version))
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in self.request.stop_ids or (self.stops is not None and self.stops.push(token)):
            return "stop"
        return "length" if len(self.tokens) >= self.request.max_tokens else None

    def add_top(self, tokens: list[int], logprobs: list[float]) -> None:
        """The most likely tokens at the place of the next one; others of the batch may have asked for more."""
        count = self.request.top_logprobs
        self.top.append((tokens[:count], logprobs[:count]))

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of a `sample` event."""
        arrays = {"tokens": np.array(self.tokens, np.int32), "logprobs": np.array(self.logprobs, np.float32)}
        if self.prompt_logprobs is not None:
            arrays["prompt_logprobs"] = self.prompt_logprobs
        if self.request.top_logprobs > 0:
            shape = (-1, self.request.top_logprobs)
            arrays["top_tokens"] = np.array([ids for ids, _ in self.top], np.int32).reshape(shape)
            arrays["top_logprobs"] = np.array([values for _, values in self.top], np.float32).reshape(shape)
        if len(self.versions) > 1:
            starts, versions = zip(*self.versions)
            lengths = np.diff([*starts, len(self.tokens)])
            arrays["token_versions"] = np.repeat(np.array(versions, np.int32), lengths)
        return arrays


def parse_requests(
    described: Sequence[dict[str, Any]],
    tokens: np.ndarray,
    offsets: np.ndarray,
    vocabulary: int,
    max_length: int,
    eos_ids: Sequence[int],
    pictures: Sequence[Pictures] | None = None,
) -> list[Request]:
    """The requests of a `sample` message. `tokens` are the prompts end to end, `offsets` `[R+1]` their
    bounds, `pictures` their images. Raises UserMistake."""
    if (
        len(offsets) != len(described) + 1
        or offsets[0] != 0
        or offsets[-1] != len(tokens)
        or (np.diff(offsets) < 0).any()
    ):
        raise UserMistake(f"the offsets of {len(described)} prompts do not fit {len(tokens)} tokens")
    if len(tokens) and not (0 <= tokens.min() and tokens.max() < vocabulary):
        wrong = int(tokens.max() if tokens.max() >= vocabulary else tokens.min())
        raise UserMistake(f"a prompt contains token {wrong}; this model's vocabulary has {vocabulary} tokens")
    requests = []
    for index, fields in enumerate(described):
        prompt = tokens[offsets[index] : offsets[index + 1]].tolist()
        try:
            seen = pictures[index] if pictures else ()
            requests.append(_parse(fields, prompt, seen, vocabulary, max_length, eos_ids))
        except UserMistake as mistake:
            raise UserMistake(f"sample request {index}: {mistake.message}", mistake.hint) from None
    return requests


def _parse(
    fields: dict[str, Any],
    prompt: list[int],
    pictures: Pictures,
    vocabulary: int,
    max_length: int,
    eos_ids: Sequence[int],
) -> Request:
    if not prompt:
        raise UserMistake("the prompt has no tokens")
    max_tokens = int(_number(fields, "max_tokens", 1, 1, inf, "at least 1"))
    if len(prompt) + max_tokens > max_length:
        raise UserMistake(
            f"a prompt of {len(prompt)} tokens and max_tokens {max_tokens} make {len(prompt) + max_tokens}; "
            f"the model's limit is {max_length}",
            "Shorten the prompt, or lower max_tokens.",
        )
    stop_ids = frozenset(fields.get("stop_ids") or ())
    return Request(
        prompt=prompt,
        draw=Draw(
            temperature=_temperature(fields),
            top_p=float(_number(fields, "top_p", 1.0, 0, 1, "between 0 and 1")),
            top_k=int(_number(fields, "top_k", -1, -1, inf, "-1 (off) or more")),
            min_p=float(_number(fields, "min_p", 0.0, 0, 1, "between 0 and 1")),
            tempered_logprobs=bool(fields.get("tempered_logprobs", False)),
        ),
        max_tokens=max_tokens,
        stop_ids=stop_ids if fields.get("ignore_eos") else stop_ids | frozenset(eos_ids),
        stop_strings=tuple(fields.get("stop_strings") or ()),
        seed=int(fields.get("seed", 0)) & (2**64 - 1),
        prompt_logprobs=bool(fields.get("prompt_logprobs", False)),
        top_logprobs=int(_number(fields, "top_logprobs", 0, 0, vocabulary, f"between 0 and {vocabulary}")),
        pictures=pictures,
    )


def _temperature(fields: dict[str, Any]) -> float:
    """Logits that are divided by less than LEAST_TEMPERATURE lose their precision and overflow."""
    what = f"0 (greedy) or at least {LEAST_TEMPERATURE}"
    value = float(_number(fields, "temperature", 1.0, 0, inf, what))
    if 0 < value < LEAST_TEMPERATURE:
        raise UserMistake(f"temperature is {value!r}; it must be {what}")
    return value


def _number(fields: dict[str, Any], name: str, default: float, least: float, most: float, what: str) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise UserMistake(f"{name} is {value!r}; it must be {what}")
    return value
