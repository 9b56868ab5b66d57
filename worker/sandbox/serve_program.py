"""Runs main.py, and then its functions when the process at the other end of descriptor 4 requests it.

Nothing here is trusted: the program shares this process and can change it.
"""

import builtins
import operator
import os
import sys
import types

CHANNEL = 4
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from plain_data import NotPlain, decode, encode, from_line, to_line  # noqa: E402

del sys.path[0]


def perform(names, operation, arguments, keywords):
    if operation == "name":
        if arguments[0] not in names:
            raise NameError("name %r is not defined" % arguments[0])
        return names[arguments[0]]
    if operation == "call":
        return arguments[0](*arguments[1:], **keywords)
    function = getattr(operator, operation, None) or getattr(builtins, operation)
    return function(*arguments)


def refuse(_value):
    raise NotPlain()


def serve(names):
    objects = []

    def keep(value):
        objects.append(value)
        kind = "a function" if callable(value) and hasattr(value, "__name__") else "an object of class %s" % type(value).__name__
        return {"object": [len(objects) - 1, kind]}

    def answer_with(value):
        try:
            return encode(value, refuse)
        except (NotPlain, RecursionError, RuntimeError):
            return keep(value)

    def after_call(value):
        try:
            return encode(value, refuse) if isinstance(value, (list, dict, set)) else None
        except (NotPlain, RecursionError, RuntimeError):
            return None

    for line in open(CHANNEL, "rb", closefd=False):
        operation, arguments, keywords = (decode(part, lambda content: objects[content[0]]) for part in from_line(line))
        try:
            result = answer_with(perform(names, operation, arguments, keywords))
            message = ["value", result, [after_call(value) for value in arguments[1:]] if operation == "call" else []]
        except BaseException as error:
            classes = [each.__name__ for each in type(error).__mro__]
            message = ["raise", classes, str(error)[:2000]]
        rest = to_line(message)
        while rest:
            rest = rest[os.write(CHANNEL, rest) :]
    os._exit(0)


def main():
    with open("main.py", encoding="utf-8") as file:
        code = compile(file.read(), "main.py", "exec")
    module = types.ModuleType("__main__")
    module.__file__ = "main.py"
    sys.modules["__main__"] = module
    exec(code, module.__dict__)
    serve(module.__dict__)


main()
