"""The measured rows, in record.json."""

import json
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("record.json")


def read() -> dict[str, list[dict[str, Any]]]:
    return json.loads(RECORD.read_text())


def write(rows: dict[str, list[dict[str, Any]]]) -> None:
    RECORD.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
