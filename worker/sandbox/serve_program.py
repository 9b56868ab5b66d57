"""Runs main.py, and then its functions when the process at the other end of descriptor 4 requests it.

Nothing here is trusted: the program shares this process and can change it.
"""

import builtins
import collections
import enum
import operator
import os
import sys
import types

CHANNEL = 4
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from plain_data import BASES, BUILT_IN, NotPlain, decode, encode, from_line, to_line  # noqa: E402

del sys.path[0]

# A function that modifies its arguments has modified copies, which the test gets back.
MUTABLE = (list, dict, set, bytearray, collections.deque)
# Methods that an enum's class may define for its members, which the test's process then asks for.
OF_MEMBERS = "str repr format lt le gt ge".split()


def kind_of(value):
    if isinstance(value, types.CoroutineType):
        return "a coroutine"
    if isinstance(value, types.GeneratorType):
        return "a generator"
    if callable(value) and hasattr(value, "__name__"):
        return "a function"
    return "an iterator" if hasattr(type(value), "__next__") else "an object of class %s" % type(value).__name__


def fields_of(value):
    """The attributes that make an object what it is: those that its own comparison reads, or all."""
    kind = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        names = [name for name, field in kind.__dataclass_fields__.items() if field.compare is not False]
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    slots = [getattr(each, "__slots__", ()) for each in kind.__mro__]
    names = [name for each in slots for name in ([each] if isinstance(each, str) else each)]
    names = [*getattr(value, "__dict__", {}), *names]
    private = ["_%s%s" % (each.__name__.lstrip("_"), name) for each in kind.__mro__ for name in names if name.startswith("__")]
    fields = {name: getattr(value, name) for name in [*names, *private] if hasattr(value, name)}
    code = getattr(kind.__eq__, "__code__", None)
    compared = {name: item for name, item in fields.items() if code and name in code.co_names}
    return compared or fields


class Server:
    def __init__(self, names):
        self.names = names
        self.objects = []
        self.numbers = {}
        self.loop = None

    def perform(self, operation, arguments, keywords):
        own = getattr(self, "perform_" + operation, None)
        if own is not None:
            return own(*arguments)
        if operation == "call":
            return arguments[0](*arguments[1:], **keywords)
        if operation in ("enter", "exit"):
            return getattr(type(arguments[0]), "__%s__" % operation)(*arguments)
        if operation in ("aenter", "aexit", "aiter", "anext"):
            result = getattr(type(arguments[0]), "__%s__" % operation)(*arguments)
            return result if operation == "aiter" else self.perform_await(result)
        function = getattr(operator, operation, None) or getattr(builtins, operation)
        return function(*arguments)

    def perform_name(self, name):
        if name not in self.names:
            raise NameError("name %r is not defined" % name)
        return self.names[name]

    def perform_await(self, value):
        import asyncio

        self.loop = self.loop or asyncio.new_event_loop()

        async def whole():
            return await value

        return self.loop.run_until_complete(whole())

    def perform_construct(self, kind, *arguments):
        keywords = arguments[-1]
        made = kind(*arguments[:-1], **keywords)
        # An object whose class extends a plain type has methods of its own, which a copy would not have.
        known = type(made).__module__ != "__main__" or isinstance(made, (enum.Enum, BaseException)) or hasattr(made, "_fields")
        return made if known else Kept(made)

    def perform_classes(self, value):
        """The numbers of an object's classes, or of a class's own."""
        classes = (value if isinstance(value, type) else type(value)).__mro__
        return [self.number_of(each) for each in classes]

    def perform_parameters(self, kind):
        """The names of a class's parameters, in their order."""
        code = getattr(kind.__init__, "__code__", None)
        return list(code.co_varnames[1 : code.co_argcount]) if code else []

    def perform_class(self, value):
        return type(value)

    def perform_state(self, value):
        return Written(self.write_state(value, ()))

    def number_of(self, value):
        number = self.numbers.setdefault(id(value), len(self.objects))
        if number == len(self.objects):
            self.objects.append(value)
        return number

    def write_state(self, value, around):
        """What an object consists of, as plain data. An object around itself has none."""
        kind = type(value)
        if any(value is each for each in around):
            raise NotPlain(value)
        pack = lambda item: self.write_state(item, (*around, value))
        if callable(value) and hasattr(value, "__name__") or "__main__" not in [each.__module__ for each in kind.__mro__]:
            return self.keep(value)
        base = next((each for each in (str, *BASES) if issubclass(kind, each)), None)
        content = None if base is None else base.__str__(value) if base is str else base(value)
        fields = {} if isinstance(value, (enum.Enum, BaseException)) else fields_of(value)
        return {"state": [self.number_of(kind), encode(content, pack), encode(fields, pack)]}

    def keep(self, value):
        """What the test gets in place of a value that stays here: its number, and what it is."""
        if isinstance(value, Written):
            return value.text
        if isinstance(value, Kept):
            return {"object": [self.number_of(value.value), kind_of(value.value)]}
        if isinstance(value, type):
            return self.keep_class(value)
        if isinstance(value, BaseException):
            arguments = [self.encode(each) for each in value.args]
            return {"exception": [self.encode(type(value)), self.number_of(value), arguments, text_of(value)]}
        if isinstance(value, enum.Enum):
            name = value.name if type(value).__members__.get(value.name) is value else None
            return {"member": [self.keep_class(type(value)), name, self.encode(value.value)]}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            kind, items = self.keep_class(type(value)), [self.encode(each) for each in value]
            return {"record": [kind, items]} if "record class" in kind else {"tuple": items}
        return {"object": [self.number_of(value), kind_of(value)]}

    def keep_class(self, kind):
        """A class whose objects a test takes apart is described, so that the test's process has such a class of its own."""
        number, name = self.number_of(kind), kind.__name__
        if issubclass(kind, BaseException):
            return {"exception class": [number, name, [self.encode(each) for each in kind.__bases__ if each is not object]]}
        if issubclass(kind, enum.Enum) and len(kind) > 0:
            sort = next(each for each in (enum.IntFlag, enum.Flag, enum.IntEnum, enum.Enum) if issubclass(kind, each)).__name__
            sort = "str" if issubclass(kind, str) else "IntEnum" if sort == "Enum" and issubclass(kind, int) else sort
            members = [[each, member.name, self.encode(member.value)] for each, member in kind.__members__.items()]
            own = [each for each in OF_MEMBERS if getattr(kind, "__%s__" % each, None) is not getattr(enum.Enum, "__%s__" % each, None)]
            return {"enum": [number, name, sort, members, own]}
        if issubclass(kind, tuple) and hasattr(kind, "_fields") and kind.__new__.__module__ != "__main__":
            defaults = [self.encode(each) for each in getattr(kind, "_field_defaults", {}).values()]
            return {"record class": [number, name, list(kind._fields), defaults]}
        return {"object": [number, "a class"]}

    def encode(self, value):
        try:
            return encode(value, self.keep)
        except (NotPlain, RecursionError, RuntimeError, AttributeError, TypeError, ValueError):
            return {"object": [self.number_of(value), kind_of(value)]}

    def decoded(self, tag, content):
        if tag == "object":
            return self.objects[content[0]]
        if tag == "member":
            number, name, value = content
            kind = self.objects[number]
            return kind[name] if name is not None else kind(decode(value, self.decoded))
        if tag == "record":
            number, items = content
            return tuple.__new__(self.objects[number], [decode(each, self.decoded) for each in items])
        if tag == "error":
            name, arguments = content
            return BUILT_IN[name](*[decode(each, self.decoded) for each in arguments])
        raise NotPlain(tag)

    def answer(self, line):
        operation, arguments, keywords = (decode(part, self.decoded) for part in from_line(line))
        try:
            result = self.encode(self.perform(operation, arguments, keywords))
            given = [*arguments[1:], *keywords.values()] if operation == "call" else arguments[1:-1] if operation == "construct" else []
            message = ["value", result, [self.encode(each) if isinstance(each, MUTABLE) else None for each in given]]
        except BaseException as error:
            message = ["raise", self.keep(error), []]
        return to_line(message)


class Kept:
    """An object that stays in the program although its base is plain data."""

    def __init__(self, value):
        self.value = value


class Written:
    """Plain data that is encoded already."""

    def __init__(self, text):
        self.text = text


def text_of(error):
    try:
        return str(error)[:2000]
    except Exception:
        return ""


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
