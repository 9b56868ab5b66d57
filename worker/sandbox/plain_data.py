"""Plain data as JSON, exchanged by a program under test and the process that checks it. Nothing is unpickled."""

import json
import math
import re

LIMIT = 2**53


class NotPlain(Exception):
    """A value with behavior of its own, such as an object of a class, a function or a generator."""


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
        return {kind.__name__: [encode(item, refuse) for item in value]}
    if kind is dict:
        return {"dict": [[encode(key, refuse), encode(item, pack_object)] for key, item in value.items()]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is complex:
        return {"complex": again([value.real, value.imag])}
    if kind is re.Pattern:
        return {"pattern": [encode(value.pattern, refuse), value.flags]}
    if issubclass(kind, str):
        return str.__str__(value)
    for base in (int, float, complex, list, tuple, set, frozenset, dict, bytes):
        if issubclass(kind, base):  # a named tuple, a counter, an enum: only its data is sent
            return encode(base(value), pack_object)
    if hasattr(kind, "__index__"):  # an integer of another library
        return encode(int(value.__index__()), pack_object)
    return pack_object(value)


def refuse(value):
    raise NotPlain(value)


def decode(value, unpack_object):
    if isinstance(value, list):
        return [decode(item, unpack_object) for item in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "object":
        return unpack_object(content)
    if tag == "int":
        return int(content, 16)
    if tag == "float":
        return float({"nan": "nan", "inf": "inf", "-inf": "-inf"}[content])
    if tag == "bytes":
        return bytes.fromhex(content)
    items = [decode(item, unpack_object) for item in content]
    if tag == "complex":
        return complex(*items)
    if tag == "pattern":
        return re.compile(items[0], items[1] & ~re.DEBUG)  # which would print
    return {"tuple": tuple, "set": set, "frozenset": frozenset, "dict": dict}[tag](items)


def to_line(message):
    return (json.dumps(message, allow_nan=False) + "\n").encode()


def from_line(line):
    def refuse_constant(_constant):
        raise ValueError("not JSON")

    return json.loads(line, parse_constant=refuse_constant)
