"""`python -m families [kind...]` in worker/tests: measures families and writes their rows into record.json."""

import sys

from .record import read, write
from .text import TEXT, quiet


def main(kinds: list[str]) -> None:
    from . import images
    from .images import IMAGES
    from .measure import record

    quiet()
    rows = {row["kind"]: row for row in read()["text"]}
    for family in TEXT:
        if not kinds or family.kind in kinds:
            rows[family.kind] = row = record(family)
            print({name: value for name, value in row.items() if value is not True}, flush=True)
    shown = {row["title"]: row for row in read()["images"]}
    for family in IMAGES:
        if not kinds or family.kind in kinds:
            shown[family.title] = row = images.record(family)
            print(row, flush=True)
    write(
        text=[rows[family.kind] for family in TEXT if family.kind in rows],
        images=[shown[family.title] for family in IMAGES if family.title in shown],
    )


main(sys.argv[1:])
