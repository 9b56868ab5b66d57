"""Stop strings over awkward token boundaries."""

from __future__ import annotations

import pytest
from hone_worker.sampling.rows import StopStrings
from make_tiny_model import SPECIAL, make_tokenizer
from sampling_helpers import request, sample
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

BYTES = Tokenizer.from_str(make_tokenizer().backend_tokenizer.to_str())


def words() -> Tokenizer:
    """Tokens that carry their leading space, which the decoder drops at the start of a text."""
    tokenizer = Tokenizer(
        models.WordLevel({"▁the": 0, "▁end": 1, "▁of": 2, "en": 3, "d": 4, "▁": 5}, unk_token="▁")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def stop_at(tokenizer: Tokenizer, tokens: list[int], *strings: str) -> int | None:
    """Number of tokens after which the text is found to contain one of the strings."""
    stops = StopStrings(tokenizer, strings)
    return next((count for count, token in enumerate(tokens, 1) if stops.push(token)), None)


@pytest.mark.parametrize(
    "text, strings, stopped",
    [
        ("one two three", ["two"], "one two"),
        ("one two three", ["three", "ne t"], "one t"),
        ("aaaab", ["aab"], "aaaab"),
        ("nothing here", ["there"], None),
        ("x", ["x"], "x"),
        ("naïve café", ["é"], "naïve café"),
        ("日本語です", ["語"], "日本語"),
        ("a 👩‍🔬 b", ["👩‍🔬"], "a 👩‍🔬"),
        ("line\n\nnext", ["\n\n"], "line\n\n"),
        ("same", ["", "m"], "sam"),
    ],
)
def test_bytes_as_tokens(text: str, strings: list[str], stopped: str | None) -> None:
    """One token a byte: every string is split over tokens, every wide character too."""
    tokens = BYTES.encode(text, add_special_tokens=False).ids
    assert stop_at(BYTES, tokens, *strings) == (None if stopped is None else len(stopped.encode()))


def test_special_tokens_count_as_text() -> None:
    tokens = BYTES.encode("hi<|im_start|>x", add_special_tokens=False).ids
    assert SPECIAL.index("<|im_start|>") in tokens
    assert stop_at(BYTES, tokens, "<|im_start|>") == 3


def test_bytes_that_never_make_a_character_do_not_hide_what_follows() -> None:
    lone = BYTES.encode("é", add_special_tokens=False).ids[1]
    tokens = [lone] * 50 + BYTES.encode("stop", add_special_tokens=False).ids
    assert stop_at(BYTES, tokens, "stop") == 54
    incomplete = BYTES.encode("é", add_special_tokens=False).ids[:1]
    assert stop_at(BYTES, [*BYTES.encode("ab", add_special_tokens=False).ids, *incomplete], "ab") == 2


def test_leading_spaces_survive() -> None:
    assert stop_at(words(), [0, 1, 2], "the end of") == 3
    assert stop_at(words(), [0, 3, 4], "theend") == 3
    assert stop_at(words(), [0, 5, 3, 4], " end") == 4


def test_a_sequence_keeps_the_tokens_that_complete_its_stop_string() -> None:
    prompt, seed = [10, 20, 30], 5
    ((_, free),) = sample("llama", [request(prompt, seed=seed, max_tokens=30)])
    text = BYTES.decode(free["tokens"].tolist(), skip_special_tokens=False)
    start = next(
        i for i in range(5, len(text)) if "\ufffd" not in text[i : i + 2] and text.index(text[i : i + 2]) == i
    )
    string = text[start : start + 2]
    ((header, stopped),) = sample("llama", [request(prompt, seed=seed, max_tokens=30, stop_strings=[string])])
    count = len(stopped["tokens"])
    assert header["stop_reason"] == "stop"
    assert stopped["tokens"].tolist() == free["tokens"][:count].tolist()
    found = BYTES.decode(stopped["tokens"].tolist(), skip_special_tokens=False)
    assert string in found and string not in BYTES.decode(
        stopped["tokens"].tolist()[:-1], skip_special_tokens=False
    )
