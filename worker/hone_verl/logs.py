"""The logs of Ray and of the workers, in sentences about their end."""

from pathlib import Path

_BYTES = 4096
_LINES = 3
_LONGEST = 300


def end_of(log: Path | str) -> str:
    """The last lines of a log, and its path."""
    try:
        text = Path(log).read_bytes()[-_BYTES:].decode(errors="replace")
    except OSError:
        return f"{log} is missing"
    lines = [line.strip()[:_LONGEST] for line in text.splitlines() if line.strip()]
    return f"{log} ends with: {' / '.join(lines[-_LINES:])}" if lines else f"{log} is empty"
