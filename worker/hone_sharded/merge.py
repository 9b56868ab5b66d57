"""Merges what the ranks send: each has some of the outputs, at the indices `where` among all of a request."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from hone_worker.channel import Message

_SUMMED = "train/tokens_computed"


@dataclass(frozen=True)
class Merged:
    """One micro-batch of all ranks."""

    arrays: dict[str, np.ndarray]
    """As in the protocol: `sequences`, ascending, and their outputs."""
    places: list[np.ndarray]
    """For each rank the indices of its outputs among these."""


def merge_outputs(parts: list[Message]) -> Merged:
    """One micro-batch of the ranks' events. Ranks that share a sequence have different outputs of it."""
    where = np.concatenate([part.arrays["where"] for part in parts])
    order = np.argsort(where, kind="stable")
    rank_of = np.empty(len(where), np.int64)
    rank_of[order] = np.arange(len(where))
    bounds = np.cumsum([0, *(len(part.arrays["where"]) for part in parts)])
    sequences = np.unique(np.concatenate([part.arrays["sequences"] for part in parts]))
    names = [name for name in parts[0].arrays if name not in ("where", "sequences")]
    outputs = {name: np.concatenate([part.arrays[name] for part in parts])[order] for name in names}
    places = [rank_of[start:stop] for start, stop in zip(bounds, bounds[1:])]
    return Merged({"sequences": sequences, **outputs}, places)


def split(merged: Merged, gradient: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """The gradient of each rank's outputs."""
    for places in merged.places:
        yield {name: values[places] for name, values in gradient.items()}


def merge_answers(message: Message, answers: list[Message]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """One answer. An error that all ranks have is reported once."""
    first = next((answer for answer in answers if "error" in answer.header), answers[0])
    header = {name: value for name, value in first.header.items() if name != "id"}
    if "error" in header:
        return header, {}
    if message.op == "stats":
        every = [answer.header["stats"] for answer in answers]
        header["stats"] = {
            name: sum(stats[name] for stats in every) if name == _SUMMED else max(stats[name] for stats in every)
            for name in every[0]
        }
        return header, {}
    if "where" not in first.arrays:
        return header, first.arrays
    return header, {name: values for name, values in merge_outputs(answers).arrays.items() if name != "sequences"}
