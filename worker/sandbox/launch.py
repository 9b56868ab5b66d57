"""Starts one program inside a sandbox, reports how it ended, and leaves no process behind.

The only argument is a plan in JSON (`LaunchPlan` in src/rewards/sandbox/run-program.ts). Reports are JSON lines on
descriptor 3: {"ready": true} or {"failed": why}, then {"exit": code}, {"signal": number} or {"over": "files"}. SIGTERM ends
everything.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import time
import warnings  # noqa: F401  Python needs it later, when the machine's files are hidden.

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from call_filter import check, filter_calls, libc, tables  # noqa: E402
from work_folder import is_over, written_bytes  # noqa: E402

LINUX = sys.platform == "linux"

REPORT, CHANNEL = 3, 4
LOOK_SECONDS, MOST_WRITTEN = 0.5, 4
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
PR_CAPBSET_DROP, PR_CAP_AMBIENT = 24, 47
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
NAMESPACES = CLONE_NEWNS | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000  # and UTS, IPC, PID, network
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_PATHS = SYSTEM_FOLDERS + ("/etc/alternatives", "/etc/ld.so.cache")
# Libraries do without these files if they do not exist, but fail if they cannot read them.
SETTINGS = ("/etc/passwd", "/etc/nsswitch.conf", "/etc/localtime", "/etc/ssl/openssl.cnf", "/etc/pki/tls/openssl.cnf")
DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")  # not /dev/zero: a shared mapping of it is memory outside of all limits


def prctl(option, *arguments):
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    return libc.prctl(option, *padded)


def close_inherited(plan):
    """Closes everything but standard streams, reports and the channel: Node passes on what its own parent left open."""
    first = CHANNEL + (1 if plan["channel"] else 0)
    if LINUX and libc.syscall(436, ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), 0) == 0:  # close_range
        return
    for name in os.listdir("/dev/fd"):
        if int(name) >= first:
            try:
                os.close(int(name))
            except OSError:
                pass  # it was the one that listed them


def report(**message):
    os.write(REPORT, (json.dumps(message) + "\n").encode())


# --- the file system of level `namespaces` -------------------------------------------------------------------------


def mount(source, target, kind=None, flags=0, data=None):
    text = [value if value is None else os.fsencode(value) for value in (source, target, kind, data)]
    check(libc.mount(text[0], text[1], text[2], ctypes.c_ulong(flags), text[3]), "mount %s on %s" % (source, target))


def show(path, root):
    """Makes a path of the machine visible in the new root, read-only."""
    target = root + path
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()
    mount(path, target, None, MS_BIND)
    # A user namespace may not lift the flags that the mount already has.
    held = os.statvfs(target).f_flag
    kept = held & (MS_NOSUID | MS_NODEV | MS_NOEXEC | 1024 | 2048) | (1 << 21 if held & 4096 else 0)
    mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | kept)


def copy_files(source, target):
    for folder, _folders, files in os.walk(source):
        inside = target + folder[len(source) :]
        os.makedirs(inside, mode=0o777, exist_ok=True)
        for name in files:
            with open(os.path.join(folder, name), "rb") as old, open(os.path.join(inside, name), "wb") as new:
                new.write(old.read())


def build_root(plan):
    root, user = plan["root"], plan["user"]
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=%d,nr_inodes=16384,mode=755" % plan["limits"]["fileBytes"])
    for path in SYSTEM_FOLDERS:
        if os.path.islink(path):
            os.symlink(os.readlink(path), root + path)
    shown = SYSTEM_PATHS + tuple(path for path in plan["paths"] if not path.startswith("/usr/"))
    for path in shown:
        if os.path.exists(path) and not os.path.islink(root + path):
            show(path, root)
    for name in ("dev", "proc", "etc", "tmp", "work", "old"):
        os.makedirs(os.path.join(root, name), exist_ok=True)
    for path in DEVICES:
        open(root + path, "w").close()
        mount(path, root + path, None, MS_BIND)
    with open(root + "/etc/passwd", "w") as file:
        file.write("sandbox:x:%d:%d::/work:/bin/sh\n" % (user, user))
    mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    copy_files(plan["files"], root + "/work")
    os.chmod(root + "/tmp", 0o777)
    if os.getuid() == 0:
        for folder, _folders, files in os.walk(root + "/work"):
            for path in (folder, *(os.path.join(folder, name) for name in files)):
                os.chown(path, user, user)
    os.chdir(root)
    check(libc.syscall(tables()["pivot_root"], b".", b"old"), "pivot_root")
    os.chdir("/")
    check(libc.umount2(b"old", 2), "umount of the old root")
    os.rmdir("old")
    os.chdir("work")


def enter_namespaces(plan):
    inner, uid, gid = plan["user"], os.geteuid(), os.getegid()
    check(libc.unshare(NAMESPACES | (0 if uid == 0 else CLONE_NEWUSER)), "unshare")
    if uid == 0:
        return
    for name, text in (("setgroups", "deny"), ("uid_map", "%d %d 1"), ("gid_map", "%d %d 1")):
        with open("/proc/self/" + name, "w") as file:
            file.write(text if "%" not in text else text % (inner, uid if name == "uid_map" else gid))


# --- rights and limits of the program ------------------------------------------------------------------------------


def drop_rights(plan):
    """Drops all capabilities, and with them root's right to read other processes."""
    if os.geteuid() == 0 or plan["level"] == "namespaces":
        for capability in range(64):
            if prctl(PR_CAPBSET_DROP, capability) == -1:
                break
        prctl(PR_CAP_AMBIENT, 4)
        if plan["level"] == "namespaces" and os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(plan["user"], plan["user"], plan["user"])
            os.setresuid(plan["user"], plan["user"], plan["user"])
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        check(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    check(prctl(PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")


def set_limits(plan):
    limits = plan["limits"]
    cpu = limits["cpuSeconds"]
    asked = [("RLIMIT_CPU", cpu, cpu + 1), ("RLIMIT_CORE", 0, 0), ("RLIMIT_NOFILE", 256, 256)]
    asked.append(("RLIMIT_FSIZE", limits["fileBytes"], limits["fileBytes"]))
    if LINUX:
        asked += [("RLIMIT_MSGQUEUE", 0, 0), ("RLIMIT_MEMLOCK", 0, 0)]
        if limits["addressSpace"] is not None:
            asked.append(("RLIMIT_AS", limits["addressSpace"], limits["addressSpace"]))
        if plan["level"] == "namespaces":
            asked.append(("RLIMIT_NPROC", limits["processes"], limits["processes"]))
    for name, soft, hard in asked:
        kind = getattr(resource, name)
        _, most = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(kind, (soft, hard))


def restrict_files(plan):
    """Landlock: the program can read the system and the work folder, write the work folder, and not read other processes."""
    version = libc.syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return
    everything = (1 << (13, 14, 15, 15, 16)[min(version, 5) - 1]) - 1
    of_files = everything & 0b1100000000000111
    read = 0b1101  # execute, read a file, list a folder
    # TCP from version 4, abstract sockets and signals from version 6; kernels refuse unknown fields.
    fields = (everything, 3, 3)[: 1 if version < 4 else 2 if version < 6 else 3]
    attributes = (ctypes.c_uint64 * len(fields))(*fields)
    ruleset = check(libc.syscall(444, attributes, ctypes.c_size_t(8 * len(fields)), 0), "landlock")
    rules = [(path, read) for path in (*SYSTEM_PATHS, *SETTINGS, *plan["paths"])]
    rules += [(path, of_files) for path in DEVICES] + [(plan["files"], everything)]
    for path, access in rules:
        if not os.path.exists(path):
            continue
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        allowed = access if os.path.isdir(path) else access & of_files
        rule = allowed.to_bytes(8, sys.byteorder) + opened.to_bytes(4, sys.byteorder)
        check(libc.syscall(445, ruleset, 1, rule, 0), "landlock rule for %s" % path)
        os.close(opened)
    check(libc.syscall(446, ruleset, 0), "landlock")
    os.close(ruleset)


# --- processes -----------------------------------------------------------------------------------------------------


def start_program(plan, guarded, entrances):
    """Returns the process id once the program runs. Raises OSError if it cannot be isolated."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become_program(plan, guarded, entrances)
        except BaseException as error:
            os.write(writer, str(error).encode())
        os._exit(127)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        why = stream.read().decode(errors="replace")
    if why:
        os.waitpid(child, 0)
        raise OSError(why)
    return child


def become_program(plan, guarded, entrances):
    os.setsid()
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for entrance in entrances:
        os.write(entrance, b"0")
    set_limits(plan)
    if LINUX:
        drop_rights(plan)
        if plan["level"] == "process":
            restrict_files(plan)
        try:
            filter_calls(guarded)
        except OSError:
            if plan["level"] == "namespaces":
                raise
    os.set_inheritable(REPORT, False)
    command = plan["command"]
    try:
        os.execvpe(command[0], command, plan["environment"])
    except OSError as error:
        os.write(2, ("%s: %s\n" % (command[0], error.strerror)).encode())
        os._exit(127)


def descendants():
    """Returns the process group of each."""
    known = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    parent, group = file.read().rpartition(b")")[2].split()[1:3]
                known[int(name)] = int(parent), int(group)
            except (OSError, ValueError):
                pass  # it has just ended
    found, added = {os.getpid()}, True
    while added:
        added = {pid for pid, (parent, _) in known.items() if parent in found and pid not in found}
        found |= added
    return {pid: known[pid][1] for pid in found - {os.getpid()}}


def kill_all(child, level, process_limit):
    """A subreaper becomes the parent of orphaned descendants, so none can escape.

    A program that forks faster than /proc can be read would outrun this. Therefore the kernel first refuses new processes, and
    ends the program's own group at once.
    """
    if process_limit is not None:
        os.write(process_limit, b"0")
    while True:
        alive = descendants() if LINUX and level == "process" else {child: child}
        for pid in ([-child] if child in alive.values() else []) + list(alive):
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def supervise(child, tell, over=None):
    """Returns when the child has ended, or too much is written, or on SIGTERM, which also follows the end of the owner."""
    while True:
        number = signal.sigwait([signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM])
        if number == signal.SIGTERM:
            return
        if number == signal.SIGALRM and over():
            report(over="files")
            return
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == child:
                    if tell and os.WIFSIGNALED(status):
                        report(signal=os.WTERMSIG(status))
                    elif tell:
                        report(exit=os.WEXITSTATUS(status))
                    return
        except ChildProcessError:
            return


def close_streams(plan):
    for descriptor in (0, 1, 2, CHANNEL) if plan["channel"] else (0, 1, 2):
        os.close(descriptor)


def wrote_too_much(plan, folder):
    """What a program can hide in its folder, it has written: the sum, which also counts what it replaced, has a wider limit."""
    most = plan["limits"]["fileBytes"]
    return is_over(folder, most) or (LINUX and written_bytes((os.getpid(), *descendants())) > MOST_WRITTEN * most)


def run_as_first(plan, entrances, parent_gone):
    """Process 1 of the namespaces: when it ends, the kernel ends all others."""
    check(prctl(PR_SET_PDEATHSIG, signal.SIGKILL), "parent death signal")
    os.set_blocking(parent_gone, False)
    try:
        if os.read(parent_gone, 1) == b"":
            return
    except BlockingIOError:
        pass
    build_root(plan)
    child = start_program(plan, (), entrances)
    report(ready=True)
    close_streams(plan)
    supervise(child, True)


def main():
    plan = json.loads(sys.argv[1])
    close_inherited(plan)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    owner = plan["owner"]
    over = None
    try:
        # Opened before the new root hides it.
        cgroup = plan["cgroup"] or {"entrances": [], "processLimit": None}
        entrances = [os.open(path, os.O_WRONLY) for path in cgroup["entrances"]]
        process_limit = os.open(cgroup["processLimit"], os.O_WRONLY) if cgroup["processLimit"] else None
        if plan["level"] == "namespaces":
            enter_namespaces(plan)
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(writer)
                try:
                    run_as_first(plan, entrances, reader)
                except BaseException as error:
                    report(failed=str(error))
                os._exit(0)
        else:
            if LINUX:
                check(prctl(PR_SET_CHILD_SUBREAPER, 1), "subreaper")
            folder = os.open(plan["files"], os.O_RDONLY)
            over = lambda: wrote_too_much(plan, folder)
            child = start_program(plan, (os.getpid(), owner), entrances)
            report(ready=True)
        if LINUX:
            check(prctl(PR_SET_PDEATHSIG, signal.SIGTERM), "parent death signal")
    except BaseException as error:
        report(failed=str(error))
        return
    close_streams(plan)
    try:
        if over:
            signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)
        if os.getppid() == owner:
            supervise(child, plan["level"] == "process", over)
    finally:
        kill_all(child, plan["level"], process_limit)


main()
os._exit(0)
