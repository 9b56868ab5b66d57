"""The system call filter (seccomp) of sandboxed programs, for x86-64 and AArch64."""

import ctypes
import errno
import os
import sys

libc = ctypes.CDLL(None, use_errno=True)
PR_SET_SECCOMP = 22


def check(result, what):
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, "%s: %s" % (what, os.strerror(code)))
    return result


X86_64 = {
    "architecture": 0xC000003E, "pivot_root": 155, "socket": 41, "socketpair": 53, "clone": 56, "clone3": 435, "mmap": 9,
    "kill": (62, 200, 234, 129, 297), "newest": 462,
    # prlimit64, sched_set*, migrate_pages, move_pages; then setpriority and ioprio_set; fcntl; ioctl
    "of_process": (302, 142, 144, 203, 314, 256, 279), "priority": (141, 251), "fcntl": 72, "ioctl": 16,
    "prctl": 157, "fallocate": 285,
    "denied": (
        # other processes: ptrace, process_vm_*, kcmp, pidfd_*, process_madvise, process_mrelease
        101, 310, 311, 312, 434, 424, 438, 440, 448,
        # mounts and namespaces: mount, umount2, pivot_root, chroot, unshare, setns and the newer calls
        165, 166, 155, 161, 272, 308, 428, 429, 430, 431, 432, 433, 442, 457, 458,
        # memory outside of any process: memfd_*, shm*, msgget, semget, mq_open, vmsplice, io_setup
        319, 447, 29, 30, 31, 68, 64, 240, 278, 206,
        # ways around this filter, and the kernel's own parts: io_uring_*, bpf, perf, userfaultfd, keys, modules, kexec, ...
        425, 426, 427, 321, 298, 323, 250, 248, 249, 175, 313, 176, 246, 320, 303, 304, 300, 301, 179, 443, 163, 167, 168,
        169, 103, 212, 153, 172, 173, 154, 134, 180, 156,
    ),
}  # fmt: skip
AARCH64 = {
    "architecture": 0xC00000B7, "pivot_root": 41, "socket": 198, "socketpair": 199, "clone": 220, "clone3": 435, "mmap": 222,
    "kill": (129, 130, 131, 138, 240), "newest": 462,
    "of_process": (261, 118, 119, 122, 274, 238, 239), "priority": (140, 30), "fcntl": 25, "ioctl": 29,
    "prctl": 167, "fallocate": 47,
    "denied": (
        117, 270, 271, 272, 434, 424, 438, 440, 448,
        40, 39, 41, 51, 97, 268, 428, 429, 430, 431, 432, 433, 442, 457, 458,
        279, 447, 194, 195, 196, 186, 190, 180, 75, 0,
        425, 426, 427, 280, 241, 282, 219, 217, 218, 105, 273, 106, 104, 294, 264, 265, 262, 263, 60, 443, 89, 224, 225,
        142, 116, 18, 58, 42,
    ),
}  # fmt: skip

LOAD, EQUAL, ABOVE, ANY_BIT, MASK, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
ALLOW, KILL = 0x7FFF0000, 0x80000000
NAMESPACE_FLAGS = 0x7E020000
UNIX, STREAM, SEQUENCED = 1, 1, 5
OF_ONE_PROCESS = (0, 1)  # PRIO_PROCESS, IOPRIO_WHO_PROCESS
PR_SET_DUMPABLE = 4
SHARED_ANONYMOUS = 0x21
SET_OWNER = (8, 15)  # F_SETOWN, F_SETOWN_EX
SET_OWNER_OR_INPUT = (0x8901, 0x8902, 0x5412, 0x541C)  # FIOSETOWN, SIOCSPGRP, TIOCSTI, TIOCLINUX


def refuse(code):
    return 0x00050000 | code


def tables():
    machine = os.uname().machine
    found = {"x86_64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}.get(machine)
    if found is None or sys.maxsize < 2**32:
        raise OSError(errno.ENOSYS, "the system call filter does not support %s" % machine)
    return found


def filter_program(guarded):
    """Instructions (code, jump if true, jump if false, value) over struct seccomp_data: nr 0, arch 4, arguments from 16.

    `guarded`: at level `process`, the processes that the program must not signal. At that level it also cannot signal
    process groups, can set limits and priorities only for itself, cannot reach the machine's Unix sockets, and cannot hide
    what it writes: it stays readable for the launcher, and the kernel counts writing, but not fallocate.
    """
    calls = tables()
    argument = lambda index: (LOAD, 0, 0, 16 + 8 * index)  # The low half is all that the kernel reads of these arguments.
    give = lambda answer: (RETURN, 0, 0, answer)
    program = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, calls["architecture"]), give(KILL), (LOAD, 0, 0, 0)]
    # Calls newer than this table, and on x86 those of the x32 ABI.
    program += [(ABOVE, 0, 1, calls["newest"] + 1), give(refuse(errno.ENOSYS))]
    # The C library falls back to clone, whose flags can be read here.
    program += [(EQUAL, 0, 1, calls["clone3"]), give(refuse(errno.ENOSYS))]
    for number in calls["denied"]:
        program += [(EQUAL, 0, 1, number), give(refuse(errno.EPERM))]

    def when(number, tests):
        program.extend([(EQUAL, 0, len(tests), number), *tests])

    unix = [argument(0), (EQUAL, 1, 0, UNIX), give(refuse(errno.EAFNOSUPPORT))]
    # A datagram socket of a pair can send to others.
    connected = [argument(1), (MASK, 0, 0, 15), (EQUAL, 2, 0, STREAM), (EQUAL, 1, 0, SEQUENCED), give(refuse(errno.EPERM))]
    when(calls["socket"], [give(refuse(errno.EAFNOSUPPORT))] if guarded else [*unix, give(ALLOW)])
    when(calls["socketpair"], [*unix, *(connected if guarded else []), give(ALLOW)])
    when(calls["clone"], [argument(0), (ANY_BIT, 0, 1, NAMESPACE_FLAGS), give(refuse(errno.EPERM)), give(ALLOW)])
    shared = [(MASK, 0, 0, SHARED_ANONYMOUS), (EQUAL, 0, 1, SHARED_ANONYMOUS)]
    when(calls["mmap"], [argument(3), *shared, give(refuse(errno.EPERM)), give(ALLOW)])
    if guarded:
        tests = [argument(0), (ANY_BIT, 0, 1, 0x80000000), give(refuse(errno.EPERM))]
        for pid in guarded:
            tests += [(EQUAL, 0, 1, pid), give(refuse(errno.EPERM))]
        for number in calls["kill"]:
            when(number, [*tests, give(ALLOW)])
        # A CPU limit of 0 seconds, or a file that signals its owner, would also end another process.
        own = [(EQUAL, 1, 0, 0), give(refuse(errno.EPERM)), give(ALLOW)]
        for number in calls["of_process"]:
            when(number, [argument(0), *own])
        for number, kind in zip(calls["priority"], OF_ONE_PROCESS):
            when(number, [argument(0), (EQUAL, 1, 0, kind), give(refuse(errno.EPERM)), argument(1), *own])
        when(calls["prctl"], [argument(0), (EQUAL, 0, 1, PR_SET_DUMPABLE), give(refuse(errno.EPERM)), give(ALLOW)])
        when(calls["fallocate"], [give(refuse(errno.EOPNOTSUPP))])
        for name, commands in (("fcntl", SET_OWNER), ("ioctl", SET_OWNER_OR_INPUT)):
            found = [test for each in commands for test in ((EQUAL, 0, 1, each), give(refuse(errno.EPERM)))]
            when(calls[name], [argument(1), *found, give(ALLOW)])
    return [*program, give(ALLOW)]


def filter_calls(guarded):
    class Instruction(ctypes.Structure):
        _fields_ = [("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint32)]

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("first", ctypes.POINTER(Instruction))]

    instructions = filter_program(guarded)
    array = (Instruction * len(instructions))(*instructions)
    program = Program(len(instructions), array)
    check(libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0), "seccomp")
