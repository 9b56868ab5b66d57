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


class Server:
    def __init__(self, names):
        self.names = names
        self.objects = []
        self.numbers = {}
        self.loop = None

    def perform(self, operation, arguments, keywords):
        if operation == "name":
            if arguments[0] not in self.names:
                raise NameError("name %r is not defined" % arguments[0])
            return self.names[arguments[0]]
        if operation == "call":
            return arguments[0](*arguments[1:], **keywords)
        if operation == "await":
            import asyncio

            self.loop = self.loop or asyncio.new_event_loop()
            return self.loop.run_until_complete(arguments[0])
        function = getattr(operator, operation, None) or getattr(builtins, operation)
        return function(*arguments)

    def keep(self, value):
        """The number of an object that stays here, and what it is."""
        number = self.numbers.setdefault(id(value), len(self.objects))
        if number == len(self.objects):
            self.objects.append(value)
        if isinstance(value, types.CoroutineType):
            kind = "a coroutine"
        elif callable(value) and hasattr(value, "__name__"):
            kind = "a function"
        else:
            kind = "an object of class %s" % type(value).__name__
        return {"object": [number, kind]}

    def encode(self, value):
        try:
            return encode(value, self.keep)
        except (NotPlain, RecursionError, RuntimeError):
            return self.keep(value)

    def answer(self, line):
        operation, arguments, keywords = (decode(part, lambda content: self.objects[content[0]]) for part in from_line(line))
        try:
            result = self.encode(self.perform(operation, arguments, keywords))
            given = arguments[1:] if operation == "call" else []
            message = ["value", result, [self.encode(each) if isinstance(each, (list, dict, set)) else None for each in given]]
        except BaseException as error:
            classes = [each.__name__ for each in type(error).__mro__]
            message = ["raise", classes, str(error)[:2000]]
        return to_line(message)


def main():
    with open("main.py", encoding="utf-8") as file:
        code = compile(file.read(), "main.py", "exec")
    module = types.ModuleType("__main__")
    module.__file__ = "main.py"
    sys.modules["__main__"] = module
    exec(code, module.__dict__)
    server = Server(module.__dict__)
    for line in open(CHANNEL, "rb", closefd=False):
        rest = server.answer(line)
        while rest:
            rest = rest[os.write(CHANNEL, rest) :]
    os._exit(0)


if __name__ == "__main__":
    main()
