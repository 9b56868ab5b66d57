"""Writes tiny random models of families (families/text.py) as Hugging Face folders, with a tokenizer of their 96 tokens.

    python make_family_models.py DIRECTORY MODEL_TYPE...
"""

from __future__ import annotations

import sys
from pathlib import Path

from families.text import TEXT, VOCABULARY, build, quiet
from make_tiny_model import SPECIAL, make_tokenizer


def main(directory: Path, kinds: list[str]) -> None:
    quiet()
    bytes_of_text = "\u0120\u010a" + "".join(map(chr, range(ord("~") - (VOCABULARY - len(SPECIAL) - 3), ord("~") + 1)))
    tokenizer = make_tokenizer(alphabet=bytes_of_text)
    assert len(tokenizer) == VOCABULARY
    for family in TEXT:
        if family.kind in kinds:
            tokenizer.save_pretrained(build(family, directory, embedding=0.1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
