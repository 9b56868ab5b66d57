"""Runs one program in a container, for an image with Python (container-runner.mjs for one with Node).

Standard input: a line of JSON (`Launch` in src/integrations/containers/sandbox.ts), then what the program gets on descriptor 4.
Standard output: frames of a letter, a length (4 bytes, big endian) and data: r(eady), o(utput), e(rrors), c(hannel), x (its end).
Nothing here is trusted: the program has the same user. It can only forge its own results.
"""

import fcntl
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading

CHANNEL = 4
lock = threading.Lock()


def send(kind, data=b""):
    message = memoryview(kind + struct.pack(">I", len(data)) + data)
    with lock:
        while message:
            message = message[os.write(1, message) :]


def pump(read, kind):
    while data := read(65536):
        send(kind, data)


def feed(source, target):
    try:
        while data := source.read1(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the program closed it


def limit(launch):
    def apply():
        cpu, files, space = launch["cpuSeconds"], launch["fileBytes"], launch["addressSpace"]
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (files, files))
        if space is not None:
            resource.setrlimit(resource.RLIMIT_AS, (space, space))
        try:
            # Without memory the kernel ends the program, not this process.
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")
        except OSError:
            pass

    return apply


def first(*paths):
    for path in paths:
        try:
            with open(path) as file:
                return file.read()
        except OSError:
            pass
    return ""


def memory():
    events = first("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control").split()
    killed = events[events.index("oom_kill") + 1] if "oom_kill" in events else "0"
    peak = first("/sys/fs/cgroup/memory.peak", "/sys/fs/cgroup/memory/memory.max_usage_in_bytes").strip()
    return {"ranOut": killed != "0", "peak": int(peak or 0)}


def main():
    source = os.fdopen(0, "rb")
    launch = json.loads(source.readline())
    for name, text in launch["files"].items():
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    keep, mine = (), None
    if launch["channel"]:
        pair = socket.socketpair()
        mine, theirs = (socket.socket(fileno=fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10)) for end in pair)
        for end in pair:
            end.close()
        os.dup2(theirs.fileno(), CHANNEL)
        theirs.close()
        keep = (CHANNEL,)
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    try:
        child = subprocess.Popen(launch["command"], pass_fds=keep, preexec_fn=limit(launch), start_new_session=True, **pipes)
    except OSError as error:
        send(b"r")
        send(b"e", ("%s: %s\n" % (launch["command"][0], error.strerror)).encode())
        return send(b"x", json.dumps({"code": 127, **memory()}).encode())
    send(b"r")
    threads = [
        threading.Thread(target=pump, args=(stream.read1, kind), daemon=True)
        for stream, kind in ((child.stdout, b"o"), (child.stderr, b"e"))
    ]
    for thread in threads:
        thread.start()
    if mine is not None:
        os.close(CHANNEL)
        threading.Thread(target=feed, args=(source, mine), daemon=True).start()
        threads.append(threading.Thread(target=pump, args=(mine.recv, b"c"), daemon=True))
        threads[-1].start()
    try:
        child.stdin.write(launch["stdin"].encode())
        child.stdin.close()
    except OSError:
        pass  # it does not read its input
    code = child.wait()
    for thread in threads:
        thread.join(1)  # another process may have its output open
    send(b"x", json.dumps({"code": code, **memory()}).encode())


main()
os._exit(0)
