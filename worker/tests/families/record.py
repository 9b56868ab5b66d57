"""The measurements, in record.json. Each program that measures writes its own part."""

import json
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("record.json")


def read() -> dict[str, Any]:
    return json.loads(RECORD.read_text())


def write(**parts: Any) -> None:
    """Replaces these parts."""
    RECORD.write_text(json.dumps(read() | parts, indent=1, sort_keys=True) + "\n")
