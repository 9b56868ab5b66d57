"""What a test can do with those values of a program that are not plain data: they stay in the program's process.

A program may return any object where the test expects plain data. So that its class cannot decide the verdict, an object
never receives the test's data in an operator or a method of a plain type, and objects are compared here, by what they consist
of. docs/decisions/code-tests.md explains the rule.
"""

import collections
import enum
import re
import threading
import types
import weakref

from plain_data import BUILT_IN, LIBRARY, NotPlain, decode, encode, from_line, to_line

PLAIN_TYPES = (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, re.Pattern)
PLAIN_TYPES += (bytearray, collections.deque, collections.Counter, collections.OrderedDict)
# Of the library's types, and what programs call such methods.
COMPARISONS = "equals equal eq is_equal same same_as is_same isclose is_close compare contains matches overlaps is_relative_to samefile subnet_of"
PLAIN_NAMES = {name for kind in PLAIN_TYPES for name in dir(kind)} | set(COMPARISONS.split())
PLAIN_ATTRIBUTES = {"real", "imag", "numerator", "denominator"}
# They pass no data that the test expects: it adds the arguments, or passes none.
ADDING = {"append", "extend", "insert", "add", "update", "discard"}
REMOVING = {"pop", "clear"}
# A test may use these without an import, and a program may define classes with these names. If that makes plain data, the test
# gets the library's own, with which it compares.
COLLECTIONS = {kind.__name__: kind for kind, _parts, _make in LIBRARY.values() if kind.__module__ not in ("builtins", "pathlib")}
CLASSES = ("class", "collection")
CLASS_NAME = re.compile(r"_*[A-Z][A-Za-z0-9]*")
# Operations that cannot change an object of the program.
READING = set("name parameters getattr state class classes hash str repr bool len eq ne lt le gt ge".split())
# Methods of plain types that answer whether a value has what the test passes.
PREDICATES = set("startswith endswith count index find rfind rindex issubset issuperset isdisjoint match fullmatch search has".split())
PREDICATES |= {name for name in PLAIN_NAMES if name.startswith(("is", "__"))} | set(COMPARISONS.split())


class ProgramEnded(BaseException):
    """A BaseException, so that a test does not catch it as an error of the program."""


class BrokenTest(BaseException):
    """The test cannot grade any program. The session keeps the reason, since unittest catches everything."""

    def __init__(self, why):
        super().__init__(why)
        session.broken = session.broken or why


class ProgramError(Exception):
    """The program raised an exception that is not an Exception, or that would end a loop of the test."""


class ProgramExit(SystemExit):
    """The program called `exit`. The test may expect that, but does not end with it."""


ProgramExit.__name__ = "SystemExit"


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
        self.note = None
        """What explains a failure of the test, if it fails."""
        self.lock = threading.RLock()
        self.class_names = ()
        """Names of classes in the test. They are looked up before anything else, so that the program cannot choose later what they mean."""
        self.named = {}
        self.classes = {}
        """The classes of this process that stand for classes of the program, by their numbers."""
        self.collections = {}
        """The library's classes, by the numbers of the program's values with their names."""
        self.objects = {}
        """Weak references to the proxies of results."""
        self.clock = 0
        self.changed = 0
        """When the program last ran what may change an object."""
        self.parameters = {}
        """The names of a class's parameters, by its number. They are known before the test passes anything."""
        self.texts = {}
        """The texts of members of enums."""
        self.passed = []
        """Numbers of the objects in the operation that is sent."""
        self.shared = {}
        """When an object was last passed to the program, by its number."""
        self.has_run = self.decided = False
        """Whether the program has run, and whether its values may have led to what the test does now."""
        self.raises = ()
        """Lines of the test that raise an exception in a context of the program, whatever the program did."""


session = Session(None)


def begin(exchange):
    global session
    session = Session(exchange)
    return session


def wrong(error):
    session.wrong = session.wrong or str(error)
    return error


def pack(value):
    """What the program gets for a value that is not plain data."""
    passed = session.passed
    make(value)
    session.passed = passed
    number = number_of(value)
    if number is not None:
        passed.append(number)
        if isinstance(value, Mirrored) and isinstance(value, enum.Enum):
            return {"member": [number, value.name, encode(value.value, pack)]}
        return {"record": [number, [encode(each, pack) for each in value]]} if isinstance(value, tuple) else {"object": [number, ""]}
    if type(value) in BUILT_IN.values() and isinstance(value, BaseException):
        return {"error": [type(value).__name__, [encode(each, pack) for each in value.args]]}
    if isinstance(value, tuple):
        return encode(tuple(value), pack)
    if isinstance(value, enum.Enum) and isinstance(value, (int, str)):
        return encode(value.value, pack)
    kind = "functions" if callable(value) and hasattr(value, "__name__") else "%r objects" % type(value).__name__
    why = "the test passes %s of its own to the program, but only plain data can be passed" % kind
    if session.decided:
        raise wrong(NotPlainData(why))
    raise BrokenTest(why)


def number_of(value):
    """The number of the program's value for which this one stands, if it does."""
    if isinstance(value, type):
        return vars(value).get("program_number")
    if isinstance(value, Proxy):
        return object.__getattribute__(value, "_proxy_number")
    if isinstance(value, Mirrored):
        return value.__dict__["program_object"] if isinstance(value, BaseException) else type(value).program_number
    return None


def ask(operation, *arguments, **keywords):
    with session.lock:
        if not session.used:
            session.used = True
            for name in session.class_names:
                learn_parameters(look_up(name))
        for each in arguments:
            make(each)
        session.clock += 1
        if operation not in READING and operation != "construct":
            session.changed = session.clock
        callee = arguments[0] if arguments else None
        # Before the program has returned a value, only the test is to blame for what it passes.
        if operation not in READING:
            session.decided = session.has_run or not (isinstance(callee, type) or (isinstance(callee, Proxy) and from_name(callee)))
        session.passed = []
        try:
            line = to_line([encode(part, pack) for part in (operation, list(arguments), keywords)])
        except NotPlain as error:
            raise wrong(NotPlainData("the test passes %s" % error)) from None
        passed = session.passed
        session.has_run = session.has_run or operation not in READING
        for group in given_in(arguments) if passed else ():
            for each in group if isinstance(group, (set, frozenset)) else ():
                if isinstance(each, Coroutine):
                    refuse(each)
        reply = session.exchange(line)
        if not reply.endswith(b"\n"):
            raise wrong(ProgramEnded("the program ended"))
        try:
            kind, content, more = from_line(reply)
            result = decode(content, unpack)
            changed = [decode(each, unpack) for each in more]
            if kind == "raise" and not isinstance(result, BaseException):
                raise NotPlain(result)
        except Exception as error:
            raise wrong(ProgramEnded("the program's answer is not plain data")) from error
        if kind == "raise":
            raise raised(result, operation)
        if operation not in READING or is_function(result):
            session.shared.update(dict.fromkeys(passed, session.clock))
        given = [*arguments[1:], *keywords.values()]
        for old, new in zip(arguments[1:-1] if operation == "construct" else given, changed):
            update(old, new)
        return result


def is_function(value):
    return isinstance(value, Proxy) and object.__getattribute__(value, "_proxy_kind") == "a function"


def given_in(value):
    """All values in what the test passes."""
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from given_in(each)
    yield value


def learn_parameters(kind):
    if isinstance(kind, Proxy) and object.__getattribute__(kind, "_proxy_kind") == "a class":
        try:
            names = ask("parameters", kind)
        except Exception:
            return
        if isinstance(names, list) and all(isinstance(each, str) for each in names):
            session.parameters[number_of(kind)] = names


def update(old, new):
    """A function that modifies its arguments has modified copies; this repeats the changes in the test."""
    if type(old) is not type(new) or not isinstance(old, (list, dict, set, bytearray, collections.deque)):
        return
    if encode(old, pack) == encode(new, pack):
        return
    if isinstance(old, (list, bytearray)):
        old[:] = new
        return
    old.clear()
    (old.extend if isinstance(old, collections.deque) else old.update)(new)


# Values of the program, as the test gets them.


def unpack(tag, content):
    if tag == "object":
        number, kind = int(content[0]), str(content[1])[:80]
        return (Coroutine if kind == "a coroutine" else Generator if kind == "a generator" else Proxy)(number, kind)
    if tag == "state":
        number, base, fields = content
        return State(int(number), decode(base, unpack), decode(fields, unpack))
    if tag == "exception class":
        return mirrored_error(*content)
    if tag == "record class":
        return mirrored_record(*content)
    if tag == "enum":
        return mirrored_enum(*content)
    kind = decode(content[0], unpack)
    if tag == "exception":
        return exception_of(kind, *content[1:])
    if tag == "record":
        return tuple.__new__(kind, [decode(each, unpack) for each in content[1]]) if isinstance(kind, type) else kind
    if tag == "member":
        return kind[content[1]] if content[1] is not None else kind(decode(content[2], unpack))
    raise NotPlain(tag)


class State:
    """What an object of the program consists of: the number of its class, and plain data."""

    def __init__(self, number, base, fields):
        self.number, self.base, self.fields = number, base, fields

    def __eq__(self, other):
        return isinstance(other, State) and (self.number, self.base, self.fields) == (other.number, other.base, other.fields)

    __hash__ = None


def scalars(value):
    """The scalars of which a value consists, each as a key that does not depend on its type."""
    if isinstance(value, Proxy):
        make(value)
        value = state_of(value)
    if isinstance(value, State):
        value = [value.base, *value.fields.values()]
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return {key for each in value for key in scalars(each)}
    return {str(value)} if isinstance(value, (str, int, float)) and not isinstance(value, bool) else {repr(value)}


def lengths(value):
    if not isinstance(value, (list, tuple, set, frozenset, dict)):
        return set()
    return {str(len(value))} | {length for each in value for length in lengths(each)}


def keeps(content, arguments):
    """
    Whether a value consists of what the test passed and of nothing else but zeros and lengths. Otherwise a class without content, or
    with all numbers, would make objects that equal every other.
    """
    passed = {key for each in arguments for key in scalars(each)}
    own = scalars(content)
    empty = {"None", "False", "True", "0", "0.0", ""} | {length for each in arguments for length in lengths(each)}
    words = {}
    for key in passed - own:  # "1.10" may be kept as (1, 10)
        words[key] = set(re.findall(r"\w+", key)) if len(re.findall(r"\w+", key)) > 1 else {key}
    found = {word for each in words.values() for word in each} | passed
    missing = {word for each in words.values() for word in each} - own - (empty if passed & own - empty else {"None"})
    return not missing and own - found <= empty


class Mirrored:
    """Base of objects that stand for the program's exceptions, named tuples and members of enums: their data is here."""

    def __getattr__(self, name):
        if name.startswith("_" if isinstance(self, enum.Enum) else "__") or name in ("program_object", "program_text"):
            raise AttributeError(name)
        result = ask("getattr", self, name)
        if name in PLAIN_NAMES and isinstance(result, Proxy):
            raise wrong(NotPlainData("a method %s of the program is not one of plain data" % name))
        return result


class MirroredClass(type):
    """Attributes and objects of such a class are the program's."""

    def __getattr__(cls, name):
        if name.startswith("_") or "program_number" not in vars(cls):
            raise AttributeError(name)
        return ask("getattr", cls, name)

    def __call__(cls, *arguments, **keywords):
        return construct(cls, arguments, keywords)


def mirrored(number, kind):
    """The same class each time that the program describes it."""
    return session.classes.setdefault(int(number), kind)


def mirrored_error(number, name, bases):
    """Of the built-in classes it has the first, since Python cannot combine all of them."""
    if int(number) in session.classes:
        return session.classes[int(number)]
    bases = [decode(each, unpack) for each in bases]
    own = [each for each in bases if isinstance(each, type) and issubclass(each, Mirrored)]
    known = [each for each in bases if isinstance(each, type) and issubclass(each, Exception) and each not in own]
    own = own or [Mirrored]
    for parents in ((*own, *known), (*own, *known[:1]), (*own, ProgramError)):
        try:
            if any(issubclass(each, Exception) for each in parents):
                members = {"program_number": int(number), "__module__": "__main__", "__str__": lambda self: self.program_text}
                return mirrored(number, MirroredClass(str(name), parents, members))
        except TypeError:
            continue
    return ProgramError


def exception_of(kind, number, arguments, text):
    arguments = [decode(each, unpack) for each in arguments]
    if issubclass(kind, Mirrored):
        error = kind.__new__(kind, *arguments)
        error.args = tuple(arguments)
        error.__dict__.update(program_object=int(number), program_text=str(text))
        return error
    try:
        error = kind(*arguments)
        return error if str(error) == text else kind(text)
    except Exception:
        return ProgramError("%s: %s" % (kind.__name__, text))


def raised(error, operation):
    """StopIteration would end a loop of the test, e.g. in `all(map(check, cases))`."""
    if isinstance(error, SystemExit):
        return ProgramExit(*error.args)
    if not isinstance(error, Exception) or (
        isinstance(error, (StopIteration, StopAsyncIteration)) and operation not in ("next", "anext")
    ):
        error = ProgramError("%s: %s" % (type(error).__name__, error))
    return error


def mirrored_record(number, name, fields, defaults):
    if int(number) in session.classes:
        return session.classes[int(number)]
    plain = collections.namedtuple(str(name), [str(each) for each in fields], defaults=[decode(each, unpack) for each in defaults])
    members = {"program_number": int(number), "__module__": "__main__", "__call__": forward_call}
    return mirrored(number, type(str(name), (plain, Mirrored), members))


def forward_between_members(operation):
    def compare(self, other):
        if not isinstance(other, Mirrored):
            raise wrong(NotPlainData("a member of an enum of the program is not plain data"))
        return bool(ask(operation, self, other))

    return compare


def forward_call(self, *arguments, **keywords):
    return ask("call", self, *arguments, **keywords)


def mirrored_enum(number, name, sort, members, own):
    """An alias is left out: it would make two names the same value."""
    if int(number) in session.classes:
        return session.classes[int(number)]
    base = {"str": (str, Mirrored, enum.Enum), "IntEnum": (int, Mirrored, enum.Enum)}.get(sort, (Mirrored, getattr(enum, sort)))
    methods = {"__%s__" % each: forward_between_members(each) for each in own if each not in ("str", "repr", "format")}
    methods.update({"__%s__" % each: forward_text(each) for each in own if each in ("str", "repr")})
    if "str" in own:
        methods["__format__"] = lambda self, how: format(str(self), how)

    def fill(body):
        body.update(methods)

    kind = types.new_class(str(name), base, {}, fill)
    values = [(str(each), decode(value, unpack)) for each, canonical, value in members if each == canonical]
    made = kind(str(name), values, module="__main__")
    made.program_number = int(number)
    return mirrored(number, made)


# Proxies of everything else.


def role_of(value):
    make(value)
    return object.__getattribute__(value, "_proxy_role")


def from_name(value):
    return role_of(value) in ("named", *CLASSES)


def with_role(value, role):
    if isinstance(value, Proxy):
        object.__setattr__(value, "_proxy_role", role)
    return value


def look_up(name):
    """A name of the program that the test uses. Its spelling in the test, not the program, says that it is a class."""
    if name in session.named:
        return session.named[name]
    role = "collection" if name in COLLECTIONS else "class" if CLASS_NAME.fullmatch(name) else "named"
    try:
        value = with_role(ask("name", name), role)
    except NameError:
        if name in session.class_names:
            return missing
        raise
    if isinstance(value, type) and issubclass(AssertionError, value):
        # `except Bad` would also catch the test's own failure.
        value = type(name, (ProgramError,), {"program_number": 0})
    if role == "collection":
        session.collections[number_of(value)] = COLLECTIONS[name]
    if name in session.class_names:
        session.named[name] = value
    return value


missing = object()


def named(name):
    value = look_up(name)
    if value is missing:
        value = with_role(ask("name", name), "class")  # defined since, or an error
    return value


class Proxy:
    """
    A value of the program that is not plain data. Its role: `named` or `class` for a name in the test, `collection` for one of a
    library's class, `constructed` by calling a class, `derived` for the result of an operator with data of the test, `plain` for a
    method with the name of a plain type's, `add` for one that has no result, `remove` for one without arguments, or empty.
    """

    __slots__ = tuple("_proxy_" + name for name in "number kind role iterated owner said state born made ended".split()) + ("__weakref__",)

    def __init__(self, number, kind):
        fields = {"number": number, "kind": kind, "role": "", "iterated": False, "owner": None, "said": {}, "state": None, "made": None}
        for name, value in {**fields, "born": session.clock, "ended": False}.items():
            object.__setattr__(self, "_proxy_" + name, value)
        session.objects[id(self)] = weakref.ref(self, lambda _gone, key=id(self), all=session.objects: all.pop(key, None))

    def __getattr__(self, name):
        role = role_of(self)
        if name in PREDICATES and "entered" in object.__getattribute__(self, "_proxy_said"):
            refuse(self)
        if name.startswith("__") and name.endswith("__") and role not in CLASSES and name not in PLAIN_NAMES:
            if name in ("__wrapped__", "__notes__", "__length_hint__", "__array__", "__fspath__"):
                raise AttributeError(name)
        result = self._proxy_read(name)
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

    def _proxy_read(self, name):
        """An attribute has the same plain value for each check of a result, until the program runs again."""
        said = object.__getattribute__(self, "_proxy_said")
        result = ask("getattr", self, name)
        if role_of(self) in ("", "named", "derived") and is_copy(result):
            now = (session.changed, encode(result, pack))
            if said.setdefault("." + name, now) != now and said["." + name][0] == now[0]:
                refuse(self)
            said["." + name] = now
        return result

    def __iter__(self):
        """Once, so that an object cannot show a different content to each check of a result."""
        if role_of(self) not in ("constructed", *CLASSES):
            if object.__getattribute__(self, "_proxy_kind") in ("a generator", "an iterator"):
                if object.__getattribute__(self, "_proxy_ended"):
                    refuse(self)
                object.__setattr__(self, "_proxy_iterated", True)
                return self
            if object.__getattribute__(self, "_proxy_iterated") or "bool" in object.__getattribute__(self, "_proxy_said"):
                refuse(self)
            object.__setattr__(self, "_proxy_iterated", True)
        return ask("iter", self)

    def __next__(self):
        if object.__getattribute__(self, "_proxy_ended"):
            raise StopIteration
        try:
            return ask("next", self)
        except StopIteration:
            object.__setattr__(self, "_proxy_ended", True)
            raise

    def __bool__(self):
        """An object that has been iterated could be true and show nothing, which no plain data does."""
        if role_of(self) == "constructed":
            return bool(ask("bool", self))
        if object.__getattribute__(self, "_proxy_iterated"):
            refuse(self)
        now = (session.changed, ask("bool", self) is True)
        said = object.__getattribute__(self, "_proxy_said")
        if said.setdefault("bool", now) != now and said["bool"][0] == now[0]:
            refuse(self)
        said["bool"] = now
        return now[1]

    def __len__(self):
        """Python asks for it, and ignores the error, in `list(f(3))`."""
        if role_of(self) in ("constructed", *CLASSES):
            return ask("len", self)
        raise NotPlainData(not_plain(self))

    def __setattr__(self, name, value):
        ask("setattr", self, name, value)

    def __call__(self, *arguments, **keywords):
        role = role_of(self)
        if role == "plain" or (role == "remove" and (arguments or keywords)):
            refuse(self)
        if role in CLASSES:
            return construct(self, arguments, keywords)
        result = ask("call", self, *arguments, **keywords)
        owner = object.__getattribute__(self, "_proxy_owner")
        if owner is not None and isinstance(result, Proxy) and number_of(result) == number_of(owner):
            return owner  # a method such as `append` that returns its object
        if role == "add" and not isinstance(result, Proxy):
            return None
        return result

    def __format__(self, how):
        return format(str(self), how)

    def __hash__(self):
        commit()
        return hash(ask("hash", self))

    def __eq__(self, other):
        return same(self, other)

    def __ne__(self, other):
        if isinstance(other, Proxy):
            return not same(self, other) and not (role_of(self) == role_of(other) == "constructed" and bool(ask("eq", self, other)))
        return not same(self, other)

    def __instancecheck__(self, value):
        """Whether the class of a value is this one or extends it, which its classes' numbers tell."""
        if isinstance(value, (Proxy, Mirrored)) and number_of(value) is not None:
            return number_of(self) in ask("classes", value)
        if role_of(self) in CLASSES:
            return False
        refuse(self)

    def __subclasscheck__(self, kind):
        return number_of(kind) is not None and number_of(self) in ask("classes", kind)

    def __enter__(self):
        return entered(self, ask("enter", self))

    def __exit__(self, kind, error, trace):
        return leave("exit", self, kind, error, trace)

    async def __aenter__(self):
        return entered(self, ask("aenter", self))

    async def __aexit__(self, kind, error, trace):
        return leave("aexit", self, kind, error, trace)

    def __aiter__(self):
        if object.__getattribute__(self, "_proxy_iterated"):
            refuse(self)
        object.__setattr__(self, "_proxy_iterated", True)
        return ask("aiter", self)

    async def __anext__(self):
        return ask("anext", self)


def is_copy(value):
    return not isinstance(value, (Proxy, Mirrored)) and not (isinstance(value, type) and number_of(value) is not None)


def construct(kind, arguments, keywords):
    result = with_role(ask("construct", kind, *arguments, keywords), "constructed")
    library = session.collections.get(number_of(kind))
    if library is not None and not isinstance(result, Proxy):
        return library(*arguments, **keywords)
    if isinstance(result, Proxy):
        object.__setattr__(result, "_proxy_made", (number_of(kind), arguments, keywords))
    return result


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


class Generator(Proxy):
    __slots__ = ()
    __hash__ = object.__hash__

    @property
    def __class__(self):
        return types.GeneratorType

    def send(self, value):
        return ask("call", ask("getattr", self, "send"), value) if value is not None else next(self)


class Expected(Proxy):
    """
    An object that the test constructs only to compare with it: `Point(1, 2)` in `expected = Point(1, 2)`. The program makes it after
    the results with which it is compared, so that a function cannot return what the test expects.
    """

    __slots__ = ("_proxy_pending",)

    def __init__(self, kind, arguments, keywords):
        super().__init__(None, "an object")
        object.__setattr__(self, "_proxy_pending", (kind, arguments, keywords))


def expect(kind, *arguments, **keywords):
    """Called in place of a class where the test constructs an object to compare with."""
    if isinstance(kind, Proxy) and role_of(kind) == "class" and object.__getattribute__(kind, "_proxy_kind") == "a class":
        return Expected(kind, arguments, keywords)
    return kind(*arguments, **keywords)


def expect_from(kind, *arguments, **keywords):
    """The same where the test compares with another result of the program: both could be the same constant."""
    result = expect(kind, *arguments, **keywords)
    if isinstance(kind, Proxy) and role_of(kind) != "collection" and is_copy(result) and not keeps(result, [*arguments, *keywords.values()]):
        raise wrong(NotPlainData("a function that is named like a class does not keep what the test expects"))
    return result


def make(value):
    """Makes an expected object, at the first use other than a comparison."""
    if not isinstance(value, Expected) or object.__getattribute__(value, "_proxy_pending") is None:
        return
    kind, arguments, keywords = object.__getattribute__(value, "_proxy_pending")
    object.__setattr__(value, "_proxy_pending", None)
    commit()
    made = construct(kind, arguments, keywords)
    if not isinstance(made, Proxy):
        raise wrong(NotPlainData("a class of the program makes plain data"))
    for name in ("number", "kind", "role", "made", "born"):
        object.__setattr__(value, "_proxy_" + name, object.__getattribute__(made, "_proxy_" + name))


def commit():
    """Asks for the state of all results, before the program learns what the test compares them with."""
    for reference in list(session.objects.values()):
        value = reference()
        if value is not None and number_of(value) is not None and type(value) is Proxy and role_of(value) in ("", "derived"):
            if object.__getattribute__(value, "_proxy_kind").startswith("an object"):
                state_of(value)


def state_of(value):
    """What an object consists of, since the program last ran what may have changed it."""
    known = object.__getattribute__(value, "_proxy_state")
    if known is None or known[0] != session.changed:
        try:
            known = (session.changed, ask("state", value), session.clock)
        except Exception:
            known = (session.changed, None, session.clock)
        object.__setattr__(value, "_proxy_state", known)
    return known[1]


def same(left, right):
    """
    Whether two objects consist of the same, and the program calls them equal: it alone decides neither. An object that the test
    constructs must contain the arguments, or a class without any content would equal everything.
    """
    if not (isinstance(left, Proxy) and isinstance(right, Proxy)):
        if right is None:
            return False
        make(left)
        state = state_of(left) if role_of(left) == "constructed" else None
        if isinstance(state, State) and state.base is not None:
            return state.base == right
        return refuse(left)
    objects = sorted((left, right), key=lambda each: isinstance(each, Expected))
    states = []
    for each in objects:
        make(each)
        states.append(state_of(each))
    result, expected = objects
    if number_of(left) == number_of(right):
        equal = known_before(result, expected)
    else:
        claimed = bool(ask("eq", left, right))
        equal = isinstance(states[0], State) and states[0] == states[1]
        if claimed != equal:
            note("objects of the program are compared by their attributes, which are %s" % ("equal" if equal else "different"))
        equal = equal and claimed
    if not equal:
        return False
    return are_kept(left, right, number_of(left) == number_of(right)) and known_before(result, expected)


def are_kept(left, right, identical):
    """Whether one of the objects that the test constructs contains the arguments, if it constructs one. One that it passed on is known."""
    made = [object.__getattribute__(each, "_proxy_made") for each in (left, right)]
    constructed = [each for each, parts in zip((left, right), made) if parts is not None and any(parts[1:])]
    same_arguments = all(made) and to_line(encode(made[0], pack)) == to_line(encode(made[1], pack))
    passed_on = identical and any(session.shared.get(number_of(each), 0) > object.__getattribute__(each, "_proxy_born") for each in constructed)
    if not constructed or same_arguments or passed_on or any(contains_arguments(each) for each in constructed):
        return True
    note("the arguments with which the test constructs an object are not its attributes, so that it cannot be compared")
    return False


def contains_arguments(value):
    number, arguments, keywords = object.__getattribute__(value, "_proxy_made")
    state = state_of(value)
    if not isinstance(state, State):
        return False
    names = session.parameters.get(number, [])
    passed = {**dict(zip(names, arguments)), **keywords}
    if len(names) >= len(arguments) and all(keeps_as(state, name, each) for name, each in passed.items()):
        return True
    return keeps(state, [*arguments, *keywords.values()])


def keeps_as(state, name, argument):
    """Whether an attribute with the name of a parameter has its value."""
    fields = [each for key, each in state.fields.items() if re.fullmatch(r"(_\w+_|_)?_?" + re.escape(name), str(key))]
    return any(each == argument or scalars(each) == scalars(argument) for each in fields)


def known_before(result, expected):
    """The program must not know the expected object when it makes the result, unless the test passed it on."""
    for one, other in ((result, expected), (expected, result)):
        if object.__getattribute__(one, "_proxy_made") is None and object.__getattribute__(other, "_proxy_made") is not None:
            state, made = object.__getattribute__(one, "_proxy_state"), object.__getattribute__(other, "_proxy_born")
            if state is not None and state[2] > made and session.shared.get(number_of(other), 0) <= made:
                note("the test constructs the expected object before the call: construct it in the assertion")
                return False
    return True


def note(text):
    session.note = session.note or text


def entered(context, result):
    """The same object is trusted as before, except to say whether it has what a test expects of plain data."""
    if isinstance(result, Proxy) and number_of(result) == number_of(context):
        object.__getattribute__(result, "_proxy_said")["entered"] = True
        with_role(result, role_of(context))
    return result


def leave(operation, context, kind, error, trace):
    """An exception of the test, such as an AssertionError, passes through a context manager of the program."""
    if error is None:
        return ask(operation, context, None, None, None) and None
    if isinstance(error, (ProgramEnded, BrokenTest)):
        return False
    own = not isinstance(error, AssertionError) and (
        isinstance(error, Mirrored) or getattr(error, "program_raised", False) or trace.tb_lineno in session.raises and trace.tb_next is None
    )
    if not isinstance(error, Mirrored):
        kind = type(error) if type(error) in BUILT_IN.values() else Exception
        error = error if type(error) in BUILT_IN.values() else Exception(str(error))
    return bool(ask(operation, context, kind, error, None)) and own


def type_of(value, *more):
    """`type(value)` and `value.__class__` in the test."""
    if more or not isinstance(value, Proxy) or isinstance(value, Coroutine):
        return type(value, *more)
    return with_role(ask("class", value), "class")


def identical(left, right):
    """`left is right` in the test: two answers of the program may be the same object."""
    if left is right or not (isinstance(left, Proxy) and isinstance(right, Proxy)):
        return left is right
    make(left)
    make(right)
    for each in (left, right):
        if object.__getattribute__(each, "_proxy_made") is None:
            object.__setattr__(each, "_proxy_state", object.__getattribute__(each, "_proxy_state") or (0, None, object.__getattribute__(each, "_proxy_born")))
    return number_of(left) == number_of(right) and are_kept(left, right, True) and known_before(left, right)


def not_plain(value):
    return "%s of the program is not plain data, so it cannot be used as such" % object.__getattribute__(value, "_proxy_kind")


def refuse(self, *_arguments):
    raise wrong(NotPlainData(not_plain(self)))


def forward(operation):
    return lambda self, *arguments: ask(operation, self, *arguments)


def forward_text(operation):
    """Always the same text, for the reason that an object is iterated once."""

    def text(self):
        answer = ask(operation, self)
        if not isinstance(self, Proxy):
            if answer != session.texts.setdefault((number_of(self), self.name, operation), answer):
                raise wrong(NotPlainData("a member of an enum of the program is not plain data"))
        elif role_of(self) != "constructed":
            if answer != object.__getattribute__(self, "_proxy_said").setdefault(operation, answer):
                refuse(self)
        return answer

    return text


def forward_of_constructed(operation):
    def use(self, *arguments):
        entered = "entered" in object.__getattribute__(self, "_proxy_said") and operation in ("contains", "abs", "int", "float")
        result = (forward(operation) if role_of(self) == "constructed" and not entered else refuse)(self, *arguments)
        return with_role(result, "constructed") if operation in ("neg", "pos", "invert") else result

    return use


def forward_between_constructed(operation):
    """With data of the test only if the result is an object: a number could be what the test expects."""

    def combine(self, other):
        if isinstance(other, Proxy) and all(role_of(each) == "constructed" for each in (self, other)):
            return with_role(ask(operation, self, other), "constructed")
        if role_of(self) not in ("constructed", "derived") or isinstance(other, Proxy) and role_of(other) not in ("constructed", "derived"):
            refuse(self)
        result = ask(operation, self, other)
        return with_role(result, "derived") if isinstance(result, Proxy) else refuse(self)

    return combine


def forward_reversed(operation):
    def combine(self, other):
        if isinstance(other, (list, bytearray)):
            return NotImplemented  # `items += f(3)` extends the list, as Python does next
        if role_of(self) not in ("constructed", "derived") or isinstance(other, Proxy):
            refuse(self)
        result = ask(operation, other, self)
        return with_role(result, "derived") if isinstance(result, Proxy) else refuse(self)

    return combine


def forward_order(operation):
    """The order of two objects that the test constructs."""

    def compare(self, other):
        if isinstance(other, Proxy) and all(role_of(each) in ("constructed", "derived") for each in (self, other)):
            return bool(ask(operation, self, other))
        return refuse(self)

    return compare


# None of these passes data of the test, except the index of an object that the test constructed.
for kinds, make_operator in (
    ("str repr", forward_text),
    ("reversed getitem setitem delitem contains abs neg pos invert int float", forward_of_constructed),
    ("add sub mul matmul truediv floordiv mod pow and_ or_ xor", forward_between_constructed),
    ("lt le gt ge", forward_order),
):
    for operation in kinds.split():
        setattr(Proxy, "__%s__" % operation.rstrip("_"), make_operator(operation))
for operation in "add sub mul matmul truediv floordiv mod pow and_ or_ xor".split():
    setattr(Proxy, "__r%s__" % operation.rstrip("_"), forward_reversed(operation))
for operation in "round complex divmod lshift rshift rdivmod rlshift rrshift reduce_ex".split():
    setattr(Proxy, "__%s__" % operation, refuse)
