"""Plain data as JSON, exchanged by a program under test and the process that checks it. Nothing is unpickled."""

import array
import builtins
import collections
import datetime
import decimal
import fractions
import json
import math
import pathlib
import re
import uuid

LIMIT = 2**53
BASES = (int, float, complex, list, tuple, set, frozenset, dict, bytes)
VIEWS = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}
"""Classes of the language that a program may return, or that a test may pass, as they are."""
EMPTY = {kind.__name__: kind for kind in (bool, str, *BASES)}
BUILT_IN = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and (value in (bool, str, *BASES) or issubclass(value, BaseException))
}


class NotPlain(Exception):
    """A value with behavior of its own, such as an object of a class, a function or a generator."""


# Values of the standard library: the parts that make one, and how to make it from them. Only these classes themselves, since
# subclasses have behavior of their own.
LIBRARY = {
    "bytearray": (bytearray, bytes, bytearray),
    "memoryview": (memoryview, bytes, memoryview),
    "slice": (slice, lambda value: [value.start, value.stop, value.step], lambda parts: slice(*parts)),
    "range": (range, lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    "deque": (collections.deque, lambda value: [list(value), value.maxlen], lambda parts: collections.deque(*parts)),
    "array": (array.array, lambda value: [value.typecode, list(value)], lambda parts: array.array(*parts)),
    "counter": (collections.Counter, lambda value: list(value.items()), lambda parts: collections.Counter(dict(parts))),
    "ordered": (collections.OrderedDict, lambda value: list(value.items()), collections.OrderedDict),
    "default": (
        collections.defaultdict,
        lambda value: [getattr(value.default_factory, "__name__", None), list(value.items())],
        lambda parts: collections.defaultdict(EMPTY.get(parts[0]), dict(parts[1])),
    ),
    "decimal": (decimal.Decimal, str, decimal.Decimal),
    "fraction": (
        fractions.Fraction,
        lambda value: [value.numerator, value.denominator],
        lambda parts: fractions.Fraction(*parts),
    ),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "timedelta": (
        datetime.timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
    "uuid": (uuid.UUID, str, uuid.UUID),
    "path": (type(pathlib.Path()), str, pathlib.Path),
    "pure path": (type(pathlib.PurePath()), str, pathlib.PurePath),
}
LIBRARY_TAGS = {kind: tag for tag, (kind, _parts, _make) in LIBRARY.items()}


def encode(value, pack_object):
    """
    `pack_object` turns other values into JSON, or raises NotPlain.

    The subclass of a plain type becomes this type, without its operators. Methods of the value may run here. They decide
    what is sent before the other process uses it, so they know no more than the function that returned the value.
    """
    kind = type(value)
    again = lambda items: [encode(item, pack_object) for item in items]
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if -LIMIT < value < LIMIT else {"int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind is list:
        return again(value)
    if kind is tuple:
        return {"tuple": again(value)}
    if kind in (set, frozenset):
        return {kind.__name__: again(value)}
    if kind is dict:
        return {"dict": [again(pair) for pair in value.items()]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is complex:
        return {"complex": again([value.real, value.imag])}
    if kind is re.Pattern:
        return {"pattern": [encode(value.pattern, refuse), value.flags]}
    if kind in LIBRARY_TAGS:
        tag = LIBRARY_TAGS[kind]
        return {tag: encode(LIBRARY[tag][1](value), pack_object)}
    if kind in VIEWS:
        return {"view": [VIEWS[kind], again(value)]}
    if value is NotImplemented or value is Ellipsis:
        return {"constant": repr(value)}
    if kind is type and BUILT_IN.get(value.__name__) is value:
        return {"type": value.__name__}
    if hasattr(kind, "__members__") or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return pack_object(value)  # an enum's member or a named tuple, which has names in addition to its data
    if issubclass(kind, str):
        return str.__str__(value)
    for base in BASES:
        if issubclass(kind, base):  # only its data is sent
            return encode(base(value), pack_object)
    if hasattr(kind, "__index__"):  # an integer of another library
        return encode(int(value.__index__()), pack_object)
    return pack_object(value)


def refuse(value):
    raise NotPlain(value)


def view(kind, items):
    if kind == "values":
        return dict(enumerate(items)).values()
    return dict(items).items() if kind == "items" else dict.fromkeys(items).keys()


def decode(value, unpack_object):
    """`unpack_object` is called with the tag and the content of a value that `pack_object` encoded."""
    if isinstance(value, list):
        return [decode(item, unpack_object) for item in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "int":
        return int(content, 16)
    if tag == "float":
        return float({"nan": "nan", "inf": "inf", "-inf": "-inf"}[content])
    if tag == "bytes":
        return bytes.fromhex(content)
    if tag == "type":
        return BUILT_IN[content]
    if tag == "constant":
        return {"NotImplemented": NotImplemented, "Ellipsis": Ellipsis}[content]
    if tag in LIBRARY:
        return LIBRARY[tag][2](decode(content, unpack_object))
    if tag not in ("tuple", "set", "frozenset", "dict", "complex", "pattern", "view"):
        return unpack_object(tag, content)
    items = [decode(item, unpack_object) for item in content]
    if tag == "complex":
        return complex(*items)
    if tag == "pattern":
        return re.compile(items[0], items[1] & ~re.DEBUG)  # which would print
    if tag == "view":
        return view(*items)
    return {"tuple": tuple, "set": set, "frozenset": frozenset, "dict": dict}[tag](items)


def to_line(message):
    return (json.dumps(message, allow_nan=False) + "\n").encode()


def from_line(line):
    def refuse_constant(_constant):
        raise ValueError("not JSON")

    return json.loads(line, parse_constant=refuse_constant)
