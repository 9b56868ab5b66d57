"""Reads the reward file of a verifier, which may have run code of the agent: strictly, and only as much as rewards can take."""

import json
import math
import os
import stat
import struct

from harbor.verifier.verifier import RewardFileEmptyError, Verifier, VerifierOutputParseError

LONGEST = 64 * 1024


def read(path):
    """Refuses a link, which may lead to another file of this machine, and a file that would fill the memory of all trials."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise VerifierOutputParseError(f"{path.name} cannot be read: {error.strerror}") from error
    try:
        data = os.read(file, LONGEST + 1) if stat.S_ISREG(os.fstat(file).st_mode) else None
    finally:
        os.close(file)
    if data is None:
        raise VerifierOutputParseError(f"{path.name} is not a file")
    if len(data) > LONGEST:
        raise VerifierOutputParseError(f"{path.name} is longer than {LONGEST} bytes")
    if not data.strip():
        raise RewardFileEmptyError(f"{path.name} is empty")
    return data.decode(errors="replace")


def finite(value):
    """Training computes in 32 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{str(value)[:100]!r} is not a number")
    try:
        if math.isfinite(value):
            struct.pack("<f", value)
            return value
    except OverflowError:
        pass
    raise ValueError("a reward is not a finite number in 32 bits")


def distinct(pairs):
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def parse(path, decode):
    text = read(path)
    try:
        return {name: finite(value) for name, value in decode(text).items()}
    except (ValueError, RecursionError, AttributeError) as error:
        why = "it is not an object of numbers" if isinstance(error, AttributeError) else error
        raise VerifierOutputParseError(f"{path.name} has no valid reward: {why}") from error


def from_json(verifier):
    return parse(verifier.trial_paths.reward_json_path, lambda text: json.loads(text, object_pairs_hook=distinct))


def from_text(verifier):
    return parse(verifier.trial_paths.reward_text_path, lambda text: {"reward": float(text)})


def install():
    Verifier._parse_reward_json = from_json
    Verifier._parse_reward_text = from_text
