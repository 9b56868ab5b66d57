"""The process between TypeScript and the ranks. It sends each message to all ranks, and answers when all of them have
answered. It does not take part in collectives, so it can always report a rank that is dead, stuck or out of memory."""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from hone_worker.channel import BrokenStream, Channel, Message, encode, read_message

# If one rank fails, the others may still wait for it in a collective. They get this long to fail as well.
GRACE_SECONDS = 5.0
RANK_MODULE = "hone_sharded.rank"


@dataclass
class _Rank:
    number: int
    process: subprocess.Popen

    def send(self, frame: bytes) -> None:
        try:
            self.process.stdin.write(frame)
            self.process.stdin.flush()
        except OSError:
            pass  # the rank has ended, which its reader reports


class Supervisor:
    """Starts the ranks, which end when this process ends."""

    def __init__(self, channel: Channel, count: int):
        self._channel = channel
        self._received: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._ending = threading.Lock()
        listener = socket.create_server(("127.0.0.1", 0))  # the address of torch's rendezvous store
        self._ranks = [_Rank(number, _start(number, count, listener)) for number in range(count)]
        listener.close()
        for rank in self._ranks:
            threading.Thread(target=self._read, args=(rank,), name=f"rank {rank.number}", daemon=True).start()

    def serve(self) -> None:
        """Handles messages until the end of the input, which ends the process."""
        while True:
            message = self._channel.receive(wait=True)
            self._send_all(message.header, message.arrays)
            header, arrays = self._collect(message)
            self._channel.send({"id": message.id, **header}, arrays)

    def _collect(self, message: Message) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Returns the merged answer. Meanwhile, events of the ranks are merged and sent on."""
        answers: dict[int, Message] = {}
        events: dict[int, Message] = {}
        deadline: float | None = None
        while len(answers) < len(self._ranks):
            try:
                wait = None if deadline is None else max(0.0, deadline - time.monotonic())
                number, reply = self._received.get(timeout=wait)
            except queue.Empty:
                self._give_up(message, answers)
            event = reply.header.get("event")
            if event == "outputs":
                events[number] = reply
            elif event is None:
                answers[number] = reply
                if "error" in reply.header and deadline is None:
                    deadline = time.monotonic() + GRACE_SECONDS
            elif number == 0:
                self._channel.send(reply.header, reply.arrays)
            if len(events) == len(self._ranks):
                self._exchange(message, [events[number] for number in sorted(events)])
                events = {}
        ordered = [answers[number] for number in range(len(self._ranks))]
        fatal = next((answer for answer in ordered if answer.header.get("fatal")), None)
        if fatal is not None:
            self._give_up(message, answers)
        return merge_answers(message, ordered)

    def _exchange(self, message: Message, parts: list[Message]) -> None:
        """Asks TypeScript for the gradient of all ranks' outputs."""
        merged: Merged = merge_outputs(parts)
        reply = self._channel.ask(message.id, {"event": "outputs"}, merged.arrays)
        for rank, arrays in zip(self._ranks, split(merged, reply.arrays)):
            rank.send(_frame(reply.header, arrays))

    def _send_all(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        frame = _frame(header, arrays)
        for rank in self._ranks:
            rank.send(frame)

    def _read(self, rank: _Rank) -> None:
        """Runs in a separate thread until the rank ends. This process and all other ranks then end, too."""
        why = ""
        try:
            while (message := read_message(rank.process.stdout)) is not None:
                self._received.put((rank.number, message))
        except (BrokenStream, OSError) as error:
            why = f" ({error})"
        code = rank.process.wait()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}{why}"
        others = "the other ranks were" if len(self._ranks) > 2 else "the other rank was"
        text = f"rank {rank.number} of {len(self._ranks)} (process {rank.process.pid}) ended {how}; {others} ended too"
        # The exit code of a signal, as in shells; the parent process explains it.
        self._end(text, 128 - code if code < 0 else 1)

    def _give_up(self, message: Message, answers: dict[int, Message]) -> NoReturn:
        """Ends the process if ranks failed in the middle of an operation, because they cannot continue together."""
        failed = {number: answer.header for number, answer in sorted(answers.items()) if "error" in answer.header}
        first = min(failed, key=lambda number: (failed[number].get("waited", False), number))
        error = dict(failed[first]["error"])
        text = f"rank {first} of {len(self._ranks)} failed in {message.op}: {error['message']}"
        missing = [rank for rank in self._ranks if rank.number not in answers]
        if missing and failed[first].get("waited"):
            names = ", ".join(f"rank {rank.number} (process {rank.process.pid})" for rank in missing)
            text = f"{names} did not take part in {message.op} within the time limit: {error['message']}"
        error["message"] = text
        with self._ending:
            self._channel.send({"id": message.id, "error": error})
            self._die(f"{text}; all ranks were ended", 1)

    def _end(self, text: str, code: int) -> NoReturn:
        with self._ending:
            time.sleep(0.1)  # so that the rank's last lines are in the log before this one
            self._die(text, code)

    def _die(self, text: str, code: int) -> NoReturn:
        print(f"hone_sharded: {text}", file=sys.stderr, flush=True)
        for rank in self._ranks:
            rank.process.kill()
        os._exit(code)


def _frame(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    return b"".join(bytes(piece) for piece in encode(header, arrays))


def _start(number: int, count: int, listener: socket.socket) -> subprocess.Popen:
    """Rank 0 takes over the listener."""
    environment = {
        **os.environ,
        "HONE_PARENT_PID": str(os.getpid()),
        "HONE_RANK": str(number),
        "HONE_STORE_PORT": str(listener.getsockname()[1]),
    }
    if number == 0:
        environment["HONE_STORE_FD"] = str(listener.fileno())
    return subprocess.Popen(
        [sys.executable, "-m", RANK_MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        pass_fds=[listener.fileno()] if number == 0 else [],
    )


# The messages of the ranks are merged. Each rank computes some outputs of a request; `where` has their indices.

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
