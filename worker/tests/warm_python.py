"""For end-to-end tests: a Python that has imported torch and transformers, which takes four seconds of one core each time.

`python warm_python.py FOLDER` has the imports behind it and writes FOLDER/python, a copy of this file, which stands for Python: it
asks that process for a fork with its arguments, environment, working folder and open files. What a fork could not change (a number of
threads, a limit of the shell, a control group) makes FOLDER/python run the real one. Signals reach the fork's group; when
FOLDER/python is killed, so is the fork's group, and both end alike. Only its memory is not that of FOLDER/python."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from typing import NoReturn

# Libraries read them while they are imported.
_READ_ONCE = ("CUDA", "GOMP_", "HF_", "HONE_TEST_DEVICE", "KMP_", "LD_", "LRU_", "MKL_", "OMP_", "ONEDNN_", "PYTHON", "TORCH", "TRANSFORMERS")
_ANY = {"PYTHONPATH", "PYTHONUNBUFFERED"}
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_LIMITS = ("CORE", "CPU", "FSIZE", "DATA", "STACK", "NOFILE", "AS", "NPROC", "MEMLOCK")
_SIZE = struct.Struct("<I")
_STATUS = struct.Struct("<h")


def _circumstances() -> dict[str, object]:
    """What a fork has from the process that it is a copy of."""
    with open("/proc/self/cgroup") as groups:
        cgroup = groups.read()
    return {
        "cgroup": cgroup,
        "limits": [list(resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))) for name in _LIMITS],
        "nice": os.nice(0),
        "user": [os.getuid(), os.getgid()],
        "variables": {name: value for name, value in os.environ.items() if name.startswith(_READ_ONCE) and name not in _ANY},
    }


def _fits(asked: dict[str, object], own: dict[str, object]) -> bool:
    """Variables that only this process has change speed alone."""
    variables = own["variables"]
    return all(variables.get(name) == value for name, value in asked.pop("variables").items()) and asked.items() <= own.items()


def _address(folder: str) -> str:
    return os.path.join(folder, "socket")


def run(args: list[str]) -> NoReturn:
    warm = args and (args[0] in ("-m", "-c") or not args[0].startswith("-"))
    connection = _ask(args) if warm else None
    if connection is None:
        os.execv(sys.executable, [sys.executable, *args])
    # Only the fork holds them, so that its end closes them.
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    for number in _FORWARDED:
        signal.signal(number, lambda number, _: connection.send(bytes([number])))
    (code,) = _STATUS.unpack(connection.recv(_STATUS.size))
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _ask(args: list[str]) -> socket.socket | None:
    """@returns the connection to the process that watches the fork, or None if there is none"""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(_address(os.path.dirname(__file__)))
    except OSError:
        return None
    files = [int(name) for name in os.listdir("/proc/self/fd")]
    files = [number for number in files if number != connection.fileno() and _is_inherited(number)]
    request = {"program": __file__, "args": args, "folder": os.getcwd(), "variables": dict(os.environ), "files": files, "circumstances": _circumstances()}
    text = json.dumps(request).encode()
    socket.send_fds(connection, [_SIZE.pack(len(text))], files)
    connection.sendall(text)
    return connection if connection.recv(1) == b"y" else None


def _is_inherited(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:
        return False  # The one that listed the folder.


def serve(folder: str) -> NoReturn:
    import gc

    import torch  # noqa: F401
    import transformers.models.auto.modeling_auto  # noqa: F401
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: F401

    os.close(os.pidfd_open(os.getpid()))  # some systems forbid it
    gc.freeze()  # Otherwise each fork's first collection copies all of it.
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lack a thread"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    own = _circumstances()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(_address(folder))
    listener.listen(64)
    with open(__file__) as source, open(os.path.join(folder, "python"), "x") as program:
        program.write(f"#!{sys.executable} -SE\n{source.read()}")
        os.fchmod(program.fileno(), 0o755)
    print("ready", flush=True)
    while True:
        readable, _, _ = select.select([listener, 0], [], [])
        if 0 in readable:  # Its input ends with the process that started it.
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _watch(connection, own)
        connection.close()


def _watch(connection: socket.socket, own: dict[str, object]) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, files, _, _ = socket.recv_fds(connection, _SIZE.size, 64)
    (size,) = _SIZE.unpack(head)
    text = b""
    while len(text) < size:
        text += connection.recv(size - len(text)) or os._exit(1)
    request = json.loads(text)
    if not _fits(request["circumstances"], own):
        connection.send(b"n")
        os._exit(0)
    child = os.fork()
    if child == 0:
        connection.close()
        _become(request, files)
    os.setpgid(child, child)
    connection.send(b"y")
    for number in files:
        os.close(number)
    handle = os.pidfd_open(child)
    while True:
        readable, _, _ = select.select([connection, handle], [], [])
        if handle in readable:
            break
        number = connection.recv(1)
        os.killpg(child, number[0] if number else signal.SIGKILL)
        if not number:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    try:
        os.killpg(child, signal.SIGKILL)  # As Hone does with what a program leaves in its group.
    except ProcessLookupError:
        pass
    connection.send(_STATUS.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _place(files: list[int], numbers: list[int]) -> None:
    """Gives the files their numbers, and closes all others but the standard ones."""
    aside = [fcntl.fcntl(number, fcntl.F_DUPFD, 1 + max(*numbers, *files)) for number in files]
    for number, wanted in zip(aside, numbers, strict=True):
        os.dup2(number, wanted)
        os.close(number)
    for number in files:
        if number not in numbers:
            os.close(number)


def _become(request: dict, files: list[int]) -> NoReturn:
    import atexit
    import runpy
    import threading
    import traceback

    os.setpgid(0, 0)
    _place(files, request["files"])
    os.chdir(request["folder"])
    packages = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    installed = [folder for folder in sys.path[1:] if folder not in packages]
    os.environ.clear()
    os.environ.update(request["variables"])
    sys.executable = request["program"]
    kind, *rest = request["args"]
    first = {"-m": os.getcwd(), "-c": ""}.get(kind, os.path.dirname(os.path.abspath(kind)))
    sys.path[:] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *installed]
    sys.argv = {"-m": rest, "-c": ["-c", *rest[1:]]}.get(kind, [kind, *rest])
    code: object = None
    try:
        if kind == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    # As Python ends, but without the collection of all that is frozen, which takes half a second and reports leaks.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    run(sys.argv[1:]) if os.path.basename(__file__) == "python" else serve(sys.argv[1])
