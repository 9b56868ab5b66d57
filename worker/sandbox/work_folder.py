"""Measures and removes the folder of a program at level `process`. As a script, removes the folders that are its arguments.

A program can nest folders until their paths are too long, take away their access rights and move them. Therefore this opens
each folder relative to the one around it, never follows links, and needs two descriptors at any depth.
"""

import os
import sys

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
MOST_ENTRIES = 16384
MOST_TRIES = 5


def identity(folder):
    found = os.fstat(folder)
    return found.st_dev, found.st_ino


def walk(top, enter, visit, leave):
    """Calls `visit(folder, entries)`, which returns the names to enter, and `leave(parent, name)` after everything inside.

    `enter(parent, name)` opens a folder, or raises OSError to skip it. Raises OSError if a folder moves meanwhile.
    """
    above, folder, waiting = [], os.dup(top), None
    try:
        while True:
            if waiting is None:
                with os.scandir(folder) as entries:
                    waiting = visit(folder, entries)
            if waiting:
                name = waiting.pop()
                try:
                    inner = enter(folder, name)
                except OSError:
                    continue
                above.append((identity(folder), name, waiting))
                os.close(folder)
                folder, waiting = inner, None
            elif above:
                inner, folder = folder, os.open("..", FOLDER, dir_fd=folder)
                os.close(inner)
                known, name, waiting = above.pop()
                if identity(folder) != known:
                    raise OSError("a folder moved")
                leave(folder, name)
            else:
                return
    finally:
        os.close(folder)


class Over(Exception):
    pass


def is_over(top, most_bytes):
    """Whether a folder that a program is changing has more than `most_bytes`, or more entries than a program may have."""
    size = entries = 0

    def count(_folder, found):
        nonlocal size, entries
        folders = []
        for entry in found:
            entries += 1
            try:
                size += entry.stat(follow_symlinks=False).st_blocks * 512
            except OSError:
                pass  # the program has just removed it, or its own access
            if size > most_bytes or entries > MOST_ENTRIES:
                raise Over
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
        return folders

    # A program that always moves folders does so to hide them.
    for _ in range(MOST_TRIES):
        size = entries = 0
        try:
            walk(top, lambda parent, name: os.open(name, FOLDER, dir_fd=parent), count, lambda _parent, _name: None)
            return False
        except Over:
            return True
        except OSError:
            pass
    return True


def written_bytes(processes):
    """What processes, and children that they waited for, wrote to disks and did not discard: also unlinked and hidden files."""
    total = 0
    for pid in processes:
        try:
            with open("/proc/%d/io" % pid) as file:
                counts = dict(line.split(": ") for line in file)
            total += int(counts["write_bytes"]) - int(counts["cancelled_write_bytes"])
        except (OSError, KeyError):
            pass  # it has ended, or this kernel does not count
    return total


def open_forced(parent, name):
    """Opens a folder, giving its owner all rights."""
    try:
        folder = os.open(name, FOLDER, dir_fd=parent)
    except PermissionError:
        if hasattr(os, "O_PATH"):
            handle = os.open(name, FOLDER | os.O_PATH, dir_fd=parent)
            os.chmod("/proc/self/fd/%d" % handle, 0o700)
            os.close(handle)
        else:
            os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
        folder = os.open(name, FOLDER, dir_fd=parent)
    os.fchmod(folder, 0o700)
    return folder


def remove(path):
    def unlink(folder, found):
        folders = []
        for entry in list(found):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
        return folders

    walk(open_forced(None, path), open_forced, unlink, lambda folder, name: os.rmdir(name, dir_fd=folder))
    os.rmdir(path)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        remove(each)
