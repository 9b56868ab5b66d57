"""Ends this process when the process that started it has ended, even if that was killed."""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

_POLL_SECONDS = 0.25


def die_with_parent() -> None:
    """`HONE_PARENT_PID` names the process to end with; the default is the direct parent.

    On Linux the kernel kills this process even while a library holds the interpreter's lock, but only if the
    direct parent ends after this call. So a thread watches as well."""
    parent = int(os.environ.get("HONE_PARENT_PID") or os.getppid())
    if sys.platform == "linux":
        end_with_parent()
    wait = _death_of(parent)

    def watch() -> None:
        wait()
        _end(parent)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def end_with_parent() -> None:
    """Asks the kernel of Linux to kill this process when the thread that started it ends."""
    import ctypes

    set_parent_death_signal = 1
    if ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL) != 0:
        print("prctl failed: only a thread watches the worker's parent", file=sys.stderr)


def _death_of(pid: int) -> Callable[[], object]:
    """A function that returns when the process has ended. Ends this process if it already has."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        _end(pid)
    except (AttributeError, OSError):  # not Linux, or a system that forbids the call
        return lambda: _poll(pid)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    if poll.poll(0):
        _end(pid)
    return poll.poll


def _poll(pid: int) -> None:
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        except PermissionError:
            pass
        time.sleep(_POLL_SECONDS)


def _end(pid: int) -> NoReturn:
    print(f"hone_worker: process {pid}, which started this worker, has ended", file=sys.stderr, flush=True)
    os._exit(1)
