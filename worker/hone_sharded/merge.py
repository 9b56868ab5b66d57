"""Merges the messages of the ranks. Each rank computes some outputs of a request; `where` has their indices."""

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
    """As in the protocol: the indices of the sequences, ascending, and their outputs."""
    places: list[np.ndarray]
    """For each rank, the indices of its outputs in `message`."""


def merge_outputs(parts: list[Message]) -> Merged:
    """Merges the events of one micro-batch. Ranks that share a sequence have different outputs of it."""
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
    """Splits a gradient by rank, in the order of each rank's outputs."""
    for places in merged.places:
        yield {name: values[places] for name, values in gradient.items()}


def merge_answers(message: Message, answers: list[Message]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Merges the answers of all ranks. If all have the same error, it is reported once."""
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
