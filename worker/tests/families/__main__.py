"""`python -m families [kind...]` in worker/tests: measures families and writes their rows into record.json."""

import json
import sys
import warnings
from pathlib import Path

import torch
from transformers.utils import logging

from .measure import record
from .text import TEXT

RECORD = Path(__file__).with_name("record.json")


def main(kinds: list[str]) -> None:
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    known = {row["kind"]: row for row in json.loads(RECORD.read_text())["text"]} if RECORD.exists() else {}
    for family in TEXT:
        if not kinds or family.kind in kinds:
            try:
                known[family.kind] = row = record(family)
            except Exception as e: print(family.kind, "FAILED", type(e).__name__, e, flush=True); continue
            print({name: value for name, value in row.items() if name not in ("title", "architecture")}, flush=True)
    rows = [known[family.kind] for family in TEXT if family.kind in known]
    RECORD.write_text(json.dumps({"text": rows}, indent=1, sort_keys=True) + "\n")


main(sys.argv[1:])
