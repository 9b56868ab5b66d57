"""Finds stop strings in a growing list of tokens. Decodes only the new ones."""

from collections.abc import Sequence

from tokenizers import Tokenizer

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
