"""Runs test.py, in which every unknown name belongs to a program that runs in another sandbox.

The program's code does not run here. Its functions and objects are stand-ins: a call sends plain data to the other process
and returns the plain data of its answer. Exits with 0 if test.py runs to its end, else with 1 and the reason on stderr.
"""

import ast
import builtins
import importlib
import os
import sys
import traceback

CHANNEL = 4
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from plain_data import decode, encode, from_line, to_line  # noqa: E402

del sys.path[0]
replies = open(CHANNEL, "rb", closefd=False)


class ProgramEnded(BaseException):
    """A BaseException, so that a test does not catch it as an error of the program."""


class ProgramError(Exception):
    """The program raised an exception of its own class."""


class NotPlainData(TypeError):
    pass


def pack(value):
    if isinstance(value, StandIn):
        return {"object": [object.__getattribute__(value, "_number"), ""]}
    raise NotPlainData("a test can pass only plain data and the program's own objects, not %r" % type(value).__name__)


def ask(operation, *arguments, **keywords):
    line = to_line([encode(part, pack) for part in (operation, list(arguments), keywords)])
    try:
        while line:
            line = line[os.write(CHANNEL, line) :]
        reply = replies.readline()
    except OSError:
        reply = b""
    if not reply.endswith(b"\n"):
        raise ProgramEnded("the program ended")
    try:
        kind, content, more = from_line(reply)
        if kind == "value":
            result = decode(content, StandIn)
            changed = [decode(each, StandIn) for each in more]
        else:
            names, text = [str(name) for name in content], str(more)
    except Exception as error:
        raise ProgramEnded("the program's answer is not plain data") from error
    if kind == "value":
        for old, new in zip(arguments[1:], changed):
            update(old, new)
        return result
    raise error_of(names, text)


def update(old, new):
    """A function that modifies its arguments has modified copies; this repeats the changes in the test."""
    if type(old) is not type(new) or old == new:
        return
    if isinstance(old, list):
        old[:] = new
    elif isinstance(old, (dict, set)):
        old.clear()
        old.update(new)


def error_of(names, text):
    for name in names:
        known = getattr(builtins, name, None)
        if isinstance(known, type) and issubclass(known, Exception):
            try:
                return known(text)
            except TypeError:
                break  # its constructor needs more than a text
    return ProgramError("%s: %s" % (names[0] if names else "error", text))


class StandIn:
    """Represents a value of the program that is not plain data. Tests cannot compare it: its class could fake equality."""

    __slots__ = ("_number", "_kind")

    def __init__(self, content):
        number, kind = content
        object.__setattr__(self, "_number", int(number))
        object.__setattr__(self, "_kind", str(kind)[:80])

    def __getattr__(self, name):
        return ask("getattr", self, name)

    def __setattr__(self, name, value):
        ask("setattr", self, name, value)

    def __call__(self, *arguments, **keywords):
        return ask("call", self, *arguments, **keywords)


def forward(operation):
    return lambda self, *arguments: ask(operation, self, *arguments)


def refuse(self, *_arguments):
    kind = object.__getattribute__(self, "_kind")
    raise NotPlainData("%s of the program is not plain data, so it cannot be compared" % kind)


FORWARDED = "getitem setitem delitem contains len iter next reversed str repr abs neg int float round"
FORWARDED += " add sub mul matmul truediv floordiv mod pow and_ or_ xor"
for operation in FORWARDED.split():
    setattr(StandIn, "__%s__" % operation.rstrip("_"), forward(operation))
for operation in "eq ne lt le gt ge bool hash format reduce_ex".split():
    setattr(StandIn, "__%s__" % operation, refuse)


class Names(dict):
    """The test's names. Python's names come first, so that the program cannot replace those that the test checks with."""

    def __init__(self, modules):
        super().__init__(__name__="__main__", __builtins__=builtins)
        self.modules = modules

    def __missing__(self, name):
        if hasattr(builtins, name) or name.startswith("__"):
            raise KeyError(name)
        if name in self.modules:
            return importlib.import_module(name)
        return ask("name", name)


def modules_of(tree):
    """Modules of the standard library that the test uses without an import, as in `math.isclose`."""
    used = (node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    names = {value.id for value in used if isinstance(value, ast.Name)}
    return names & set(getattr(sys, "stdlib_module_names", sys.builtin_module_names))


def main():
    with open("test.py", encoding="utf-8") as file:
        source = file.read()
    try:
        tree = ast.parse(source, "test.py")
        exec(compile(tree, "test.py", "exec"), Names(modules_of(tree)))
    except BaseException as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "test.py"]
        place = "line %d of the test: " % lines[-1] if lines else ""
        text = str(error)
        sys.stderr.write("\n%s%s%s\n" % (place, type(error).__name__, ": " + text if text else ""))
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


main()
