"""Finds stop strings in a growing list of tokens, decoding only what is new."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

# What a decoder writes for bytes that are no character, so also for the first bytes of one that is not
# complete.
_INCOMPLETE = "\ufffd"
# A character has at most four bytes: what is still incomplete after this many tokens never will be complete.
_MOST_PENDING = 8


class StopStrings:
    """Watches one sample. Tokens decode differently at the start of a text (a leading space may be dropped)
    and characters may be split over tokens, so new text is what the last settled tokens and the new ones
    decode to together, beyond what the settled ones decode to alone."""

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
