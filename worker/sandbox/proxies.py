"""What a test can do with those values of a program that are not plain data: they stay in the program's process.

A program may return any object where the test expects plain data. So that its class cannot decide the verdict, an object
never receives the test's data in an operator or a method of a plain type. docs/decisions/code-tests.md explains the rule.
"""

import builtins
import re
import threading

from plain_data import NotPlain, decode, encode, from_line, to_line

PLAIN_TYPES = (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, re.Pattern)
# Of the library's types, and what programs call such methods.
COMPARISONS = "equals equal eq is_equal same same_as is_same isclose is_close compare contains matches overlaps is_relative_to samefile subnet_of"
PLAIN_NAMES = {name for kind in PLAIN_TYPES for name in dir(kind)} | set(COMPARISONS.split())
PLAIN_ATTRIBUTES = {"real", "imag", "numerator", "denominator"}
# They pass no data that the test expects: it adds the arguments, or passes none.
ADDING = {"append", "extend", "insert", "add", "update", "discard"}
REMOVING = {"pop", "clear"}
# A program may define classes with these names. Those of the library give plain data, with which a test compares.
COLLECTIONS = {"Counter", "OrderedDict", "defaultdict"}
CLASSES = ("class", "collection")
CLASS_NAME = re.compile(r"_*[A-Z][A-Za-z0-9]*")


class ProgramEnded(BaseException):
    """A BaseException, so that a test does not catch it as an error of the program."""


class BrokenTest(BaseException):
    """The test cannot grade any program. The session keeps the reason, since unittest catches everything."""

    def __init__(self, why):
        super().__init__(why)
        session.broken = session.broken or why


class ProgramError(Exception):
    """The program raised an exception of its own class."""


class NotPlainData(TypeError):
    pass


class Session:
    """One test of one program."""

    def __init__(self, exchange):
        self.exchange = exchange
        """Sends a line to the program and returns its answer, empty if the program ended."""
        self.used = False
        self.wrong = None
        """Why the program is wrong even if the test catches the exception."""
        self.broken = None
        self.lock = threading.RLock()


session = Session(None)


def begin(exchange):
    global session
    session = Session(exchange)
    return session


def wrong(error):
    session.wrong = session.wrong or str(error)
    return error


def pack(value):
    if isinstance(value, Proxy):
        return {"object": [object.__getattribute__(value, "_proxy_number"), ""]}
    kind = "functions" if callable(value) and hasattr(value, "__name__") else "%r objects" % type(value).__name__
    raise BrokenTest("the test passes %s of its own to the program, but only plain data can be passed" % kind)


def ask(operation, *arguments, **keywords):
    with session.lock:
        session.used = True
        try:
            line = to_line([encode(part, pack) for part in (operation, list(arguments), keywords)])
        except NotPlain as error:
            if isinstance(error.args[0], Proxy):
                refuse(error.args[0])  # a coroutine, since other objects have no hash
            raise BrokenTest("the test passes a set or a dict with keys that are not plain data") from None
        reply = session.exchange(line)
        if not reply.endswith(b"\n"):
            raise wrong(ProgramEnded("the program ended"))
        try:
            kind, content, more = from_line(reply)
            if kind == "value":
                result = decode(content, proxy)
                changed = [decode(each, proxy) for each in more]
            else:
                names, text = [str(name) for name in content], str(more)
        except Exception as error:
            raise wrong(ProgramEnded("the program's answer is not plain data")) from error
        if kind == "value":
            for old, new in zip(arguments[1:], changed):
                update(old, new)
            return result
        raise error_of(names, text, operation)


def update(old, new):
    """A function that modifies its arguments has modified copies; this repeats the changes in the test."""
    if type(old) is not type(new) or not isinstance(old, (list, dict, set)) or encode(old, pack) == encode(new, pack):
        return
    if isinstance(old, list):
        old[:] = new
    else:
        old.clear()
        old.update(new)


def error_of(names, text, operation):
    """StopIteration would end a loop of the test, e.g. in `all(map(check, cases))`."""
    for name in names:
        known = getattr(builtins, name, None)
        if name in ("StopIteration", "StopAsyncIteration") and operation != "next":
            break
        if isinstance(known, type) and issubclass(known, Exception):
            try:
                return known(text)
            except TypeError:
                break  # its constructor needs more than a text
    return ProgramError("%s: %s" % (names[0] if names else "error", text))


def role_of(value):
    return object.__getattribute__(value, "_proxy_role")


def with_role(value, role):
    if isinstance(value, Proxy):
        object.__setattr__(value, "_proxy_role", role)
    return value


def named(name):
    """A name of the program that the test uses. Its spelling in the test, not the program, says that it is a class."""
    role = "collection" if name in COLLECTIONS else "class" if CLASS_NAME.fullmatch(name) else ""
    return with_role(ask("name", name), role)


class Proxy:
    """
    A value of the program that is not plain data. Its role: `class`, `collection` for one of a library's name, `constructed` by calling a class, `plain` for a method
    with the name of a plain type's, `add` for one that has no result, `remove` for one without arguments, or empty.
    """

    __slots__ = ("_proxy_number", "_proxy_kind", "_proxy_role", "_proxy_iterated", "_proxy_owner", "_proxy_texts")

    def __init__(self, content):
        number, kind = content
        object.__setattr__(self, "_proxy_number", int(number))
        object.__setattr__(self, "_proxy_kind", str(kind)[:80])
        object.__setattr__(self, "_proxy_role", "")
        object.__setattr__(self, "_proxy_iterated", False)
        object.__setattr__(self, "_proxy_owner", None)
        object.__setattr__(self, "_proxy_texts", {})

    def __getattr__(self, name):
        result = ask("getattr", self, name)
        role = role_of(self)
        if role in CLASSES and CLASS_NAME.fullmatch(name):
            return with_role(result, "class")
        if role == "constructed" and name in ADDING and isinstance(result, Proxy):
            object.__setattr__(result, "_proxy_owner", self)
        if role in (*CLASSES, "constructed") or name not in PLAIN_NAMES:
            return result
        if name in ADDING:
            return with_role(result, "add")
        if name in PLAIN_ATTRIBUTES and not isinstance(result, Proxy):
            refuse(self)
        return with_role(result, "remove" if name in REMOVING else "plain")

    def __iter__(self):
        """Once, so that an object cannot show a different content to each check of a result."""
        if role_of(self) != "constructed":
            if object.__getattribute__(self, "_proxy_iterated"):
                refuse(self)
            object.__setattr__(self, "_proxy_iterated", True)
        return ask("iter", self)

    def __setattr__(self, name, value):
        ask("setattr", self, name, value)

    def __call__(self, *arguments, **keywords):
        role = role_of(self)
        if role == "plain" or (role == "remove" and (arguments or keywords)):
            refuse(self)
        result = ask("call", self, *arguments, **keywords)
        owner = object.__getattribute__(self, "_proxy_owner")
        if owner is not None and isinstance(result, Proxy) and pack(result) == pack(owner):
            return owner  # a method such as `append` that returns its object
        if role == "add" and not isinstance(result, Proxy):
            return None
        if role == "collection" and not isinstance(result, Proxy):
            raise BrokenTest("the test uses a class of collections without importing it")
        return with_role(result, "constructed" if role in CLASSES else "")

    def __format__(self, how):
        return format(str(self), how)


class Coroutine(Proxy):
    """A coroutine of the program. It runs when the test awaits it."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __getattr__(self, name):
        raise AttributeError(name)

    def send(self, _value):
        raise StopIteration(ask("await", self))

    def __bool__(self):
        return True  # asyncio tests it; Python's own coroutines are true, too

    def __next__(self):
        return self.send(None)

    def throw(self, error, *_more):
        raise error

    def close(self):
        pass

    def __await__(self):
        return ask("await", self)
        yield


def proxy(content):
    return (Coroutine if content[1] == "a coroutine" else Proxy)(content)


def refuse(self, *_arguments):
    kind = object.__getattribute__(self, "_proxy_kind")
    raise wrong(NotPlainData("%s of the program is not plain data, so it cannot be used as such" % kind))


def forward(operation):
    return lambda self, *arguments: ask(operation, self, *arguments)


def forward_text(operation):
    """Always the same text, for the reason that an object is iterated once."""

    def text(self):
        answer = ask(operation, self)
        if role_of(self) != "constructed" and answer != object.__getattribute__(self, "_proxy_texts").setdefault(operation, answer):
            refuse(self)
        return answer

    return text


def forward_of_constructed(operation):
    return lambda self, *arguments: (forward(operation) if role_of(self) == "constructed" else refuse)(self, *arguments)


def forward_between_constructed(operation):
    def combine(self, other):
        if any(not isinstance(each, Proxy) or role_of(each) != "constructed" for each in (self, other)):
            refuse(self)
        return with_role(ask(operation, self, other), "constructed")

    return combine


# None of these passes data of the test, except the index of an object that the test constructed.
for kinds, make in (
    ("next", forward),
    ("str repr", forward_text),
    ("len reversed getitem setitem delitem abs neg int float", forward_of_constructed),
    ("add sub mul matmul truediv floordiv mod pow and_ or_ xor", forward_between_constructed),
):
    for operation in kinds.split():
        setattr(Proxy, "__%s__" % operation.rstrip("_"), make(operation))
for operation in "eq ne lt le gt ge bool hash contains round complex divmod lshift rshift invert pos reduce_ex".split():
    setattr(Proxy, "__%s__" % operation, refuse)
for operation in "add sub mul matmul truediv floordiv mod pow and or xor divmod lshift rshift".split():
    setattr(Proxy, "__r%s__" % operation, refuse)
