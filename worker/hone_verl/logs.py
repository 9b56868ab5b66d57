"""The logs of Ray and of the workers, in sentences about their end."""

from pathlib import Path

_BYTES = 4096
_LINES = 3
_LONGEST = 300


def end_of(log: Path | str) -> str:
    """The last lines of a log, and its path."""
    try:
        lines = last_lines(log)
    except OSError:
        return f"{log} is missing"
    return f"{log} ends with: {lines}" if lines else f"{log} is empty"


def last_lines(log: Path | str) -> str:
    """In one line; empty if the log is. Raises OSError if it is missing."""
    text = Path(log).read_bytes()[-_BYTES:].decode(errors="replace")
    lines = [line.strip()[:_LONGEST] for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-_LINES:])
