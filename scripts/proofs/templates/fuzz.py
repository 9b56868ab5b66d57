"""Writes random Jinja templates with what transformers renders: python fuzz.py seed count out.json"""

import copy
import json
import pathlib
import random
import signal
import sys
import warnings

from record import templates

VARIABLES = {
    "s": "Hello, World",
    "t": "  a-b_c é\tß\n🎉x ",
    "u": "it's \"q\" \\ <b>&",
    "e": "",
    "n": 7,
    "z": 0,
    "m": -3,
    "f": 2.5,
    "g": 1e-07,
    "h": 100.0,
    "big": 12345678901234567890,
    "yes": True,
    "no": False,
    "nil": None,
    "xs": [3, 1, 2, 1],
    "ys": ["b", "A", "c", "a"],
    "mixed": [1, "a", None, True, 2.0, [1], {"k": 1}],
    "empty": [],
    "d": {"a": 1, "b": {"c": [1, 2, {"x": "y"}]}, "404": "n", "items": "it", "name": "nm"},
    "rows": [
        {"role": "user", "content": "hi", "n": 2},
        {"role": "tool", "content": "OK", "n": 1, "extra": None},
        {"role": "user", "content": "é", "n": 3},
    ],
}
NAMES = [*VARIABLES, "missing"]
STRINGS = ["", "a", "A b", "x,y;z", "é", "🎉", "%s", "%d-%s", "{}", "{0}:{1}", "\\n", " ", "l", "role", "content", "n", "a.b", "-", "1", "007", "2.50", "1e3", "<&>", "O'r"]
FILTERS = ["upper", "lower", "title", "capitalize", "trim", "length", "count", "list", "first", "last", "string", "tojson", "int", "float", "abs", "round", "sort", "unique", "reverse", "join", "sum", "max", "min", "items", "dictsort", "wordcount", "escape", "e", "safe", "urlencode", "default", "d", "filesizeformat", "forceescape"]
FILTERS_WITH = [
    "join({0})", "replace({0}, {1})", "replace({0}, {1}, 1)", "default({0})", "default({0}, true)", "trim({0})", "indent(2)", "indent({0})", "indent(1, true, true)",
    "round(1)", "round(2, 'floor')", "round(0, 'ceil')", "round(-1)", "int({0})", "int(0, 16)", "float({0})", "tojson(indent=2)", "tojson(sort_keys=true)", "tojson(ensure_ascii=true)", "tojson(separators=(',', ':'))", "tojson(indent=0)",
    "map('upper')", "map('string')", "map(attribute='role')", "map(attribute='missing', default='-')", "map(attribute='n')", "map('default', {0})", "map('length')",
    "select", "reject", "select('string')", "reject('none')", "select('odd')", "select('equalto', {0})", "select('in', {0})", "selectattr('role')", "selectattr('role', 'equalto', 'user')", "rejectattr('extra', 'defined')", "rejectattr('role', 'eq', 'tool')", "selectattr('n', '>', 1)", "selectattr('content', 'in', {0})",
    "sort(reverse=true)", "sort(attribute='n')", "sort(attribute='role,n')", "sort(case_sensitive=true)", "unique(attribute='role')", "groupby('role')", "batch(2)", "batch(2, {0})", "slice(2)", "slice(3, {0})", "sum(attribute='n')", "sum(start={0})", "max(attribute='n')", "min(attribute='role')", "dictsort(by='value')", "dictsort(true, reverse=true)", "dictsort(reverse=true)",
    "truncate(5)", "truncate(7, true)", "truncate(6, false, '.')", "truncate(5, leeway=0)", "center(9)", "format({0})", "format({0}, {1})", "attr({0})", "first", "filesizeformat(true)", "join(', ', attribute='role')", "map(attribute='role') | unique", "default(value={0})", "length",
]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "sequence", "iterable", "odd", "even", "lower", "upper", "callable", "escaped", "eq {0}", "ne {0}", "lt {0}", "ge({0})", "in {0}", "equalto({0})", "sameas none", "sameas({0})", "divisibleby 3", "divisibleby({0})", "gt({0})", "filter", "test", "==({0})"]
METHODS = ["upper()", "lower()", "title()", "capitalize()", "swapcase()", "casefold()", "strip()", "lstrip()", "rstrip()", "strip({0})", "lstrip({0})", "rstrip({0})", "split()", "split({0})", "split({0}, 1)", "rsplit({0}, 1)", "split(none, 1)", "rsplit(none, 1)", "split(maxsplit=1)", "splitlines()", "splitlines(true)", "replace({0}, {1})", "replace({0}, {1}, 1)", "startswith({0})", "endswith({0})", "startswith(({0}, {1}))", "find({0})", "rfind({0})", "find({0}, 2)", "find({0}, -3)", "index({0})", "count({0})", "count({0}, 1, -1)", "join({0})", "zfill(5)", "center(8)", "center(7, '*')", "ljust(6)", "rjust(6, '.')", "partition({0})", "rpartition({0})", "removeprefix({0})", "removesuffix({0})", "isdigit()", "isalpha()", "isalnum()", "isspace()", "islower()", "isupper()", "istitle()", "isnumeric()", "isdecimal()", "isascii()", "isidentifier()", "isprintable()", "expandtabs(4)", "format({0}, {1})", "format(a={0})", "keys()", "values()", "items()", "get({0})", "get({0}, {1})", "copy()", "index({0})", "count({0})", "append({0})", "pop()", "update({0})", "is_integer()", "bit_length()", "rindex({0})"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "and", "or", "in", "not in", "**"]
FORMATS = ["%s", "%5s|%-5s", "%d", "%05d", "%+d", "%x", "%o", "%.2f", "%8.3f", "%e", "%g", "%r", "%i%%", "%c", "%(a)s", "%-8.2f|", "%G", "%#x", "% d", "%.0f", "%s %s", "%.3d"]
SPECS = ["{}", "{:>8}", "{:<8}|", "{:^9}|", "{:*^9}", "{:05d}", "{:.2f}", "{:,}", "{:+}", "{:x}", "{:#b}", "{:e}", "{:.3}", "{:%}", "{!r}", "{!s:>4}", "{0}{0}", "{:_}", "{:08.3f}", "{:g}", "{{}}{}", "{0[0]}", "{0.real}"]
DATA = ["x", " ", "\n", "  ", "\n\n", "\t", " y\n", "\r\n", "a b", "{", "}", "%}", "{ {", "#", "'", "\n  \n"]


class Generator:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, items):
        return self.r.choice(items)

    def string(self):
        text = self.pick(STRINGS)
        if self.r.random() < 0.1:
            return '"' + text.replace('"', '\\"') + '"'
        return "'" + text.replace("'", "\\'") + "'"

    def literal(self, depth):
        kind = self.r.randrange(12)
        if kind < 3:
            return self.string()
        if kind < 6:
            return self.pick(["0", "1", "2", "3", "-1", "7", "10", "1_000", "0x1f", "0b101", "99999999999999999999"])
        if kind == 6:
            return self.pick(["1.0", "0.5", "2.5", "1e3", "1.5e-7", "3.14159", "1e16", "1e22", "0.1", "123456.789"])
        if kind == 7:
            return self.pick(["true", "false", "none", "True", "None"])
        if kind == 8:
            return "[" + ", ".join(self.expression(depth - 1) for _ in range(self.r.randrange(4))) + "]"
        if kind == 9:
            return "{" + ", ".join(f"{self.pick([self.string(), '1', 'none', '2.0', 'true'])}: {self.expression(depth - 1)}" for _ in range(self.r.randrange(3))) + "}"
        if kind == 10:
            return "(" + "".join(self.expression(depth - 1) + ", " for _ in range(self.r.randrange(3))) + ")"
        return f"range({self.pick(['3', '1, 4', '5, 0, -2', '0', 'n', '2, 2'])})"

    def fill(self, pattern, depth):
        return pattern.replace("{0}", self.expression(depth - 1)).replace("{1}", self.expression(depth - 1))

    def expression(self, depth=3):
        if depth <= 0:
            return self.pick(NAMES) if self.r.random() < 0.7 else self.string()
        e = lambda: self.expression(depth - 1)
        kind = self.r.randrange(24)
        if kind < 3:
            return self.pick(NAMES)
        if kind < 5:
            return self.literal(depth)
        if kind < 7:
            return f"{e()} {self.pick(OPERATORS)} {e()}"
        if kind == 7:
            return f"({e()})"
        if kind < 10:
            return f"({e()}) | {self.pick(FILTERS)}"
        if kind < 13:
            return f"({e()}) | {self.fill(self.pick(FILTERS_WITH), depth)}"
        if kind == 13:
            return f"({e()}) is {self.pick(['', 'not '])}{self.fill(self.pick(TESTS), 1)}"
        if kind < 17:
            return f"({e()}).{self.fill(self.pick(METHODS), depth)}"
        if kind == 17:
            return f"({e()})[{self.pick(['0', '-1', '1:', ':2', '::-1', '1:3', '::2', '-2:', '5', self.string(), ':-1', '10:', '-1:0:-1', 'none'])}]"
        if kind == 18:
            return f"({e()}).{self.pick(['a', 'b', 'c', 'role', 'items', 'name', 'keys', 'missing', '0', 'real'])}"
        if kind == 19:
            return f"{e()} if {e()}" + (f" else {e()}" if self.r.random() < 0.8 else "")
        if kind == 20:
            return f"{self.pick(['not ', '-', '+'])}{self.pick(NAMES)}"
        if kind == 21:
            value = self.pick([e(), f"({e()}, {e()})"])
            return f"'{self.pick(FORMATS)}' % {value}" if value.startswith("(") else f"'{self.pick(FORMATS)}' % ({value})"
        if kind == 22:
            return f"'{self.pick(SPECS)}'.format({e()})"
        return f"{e()} {self.pick(['<', '==', '>=', 'in'])} {e()} {self.pick(['<', '!=', '>'])} {e()}"

    def tag(self, inside, kind="%"):
        left = self.pick(["", "", "", "-", "-", "+"])
        right = self.pick(["", "", "", "-", "-"] + (["+"] if kind == "%" else []))
        close = {"%": "%", "{": "}", "#": "#"}[kind]
        return f"{{{kind}{left} {inside} {right}{close}}}"

    def body(self, depth):
        return "".join(self.piece(depth) for _ in range(self.r.randrange(1, 4)))

    def piece(self, depth):
        kind = self.r.randrange(20)
        if kind < 5:
            return self.pick(DATA)
        if kind < 10 or depth <= 0:
            return self.tag(self.expression(self.r.randrange(3)), "{")
        if kind == 10:
            return self.tag(self.pick(["note", " two\nlines ", "{{ x }}"]), "#")
        if kind == 11:
            return self.tag(f"set {self.pick(['v', 's', 'w', 'ns.k', 'v, w'])} = {self.expression(2)}")
        if kind == 12:
            end = self.tag("else") + self.body(depth - 1) if self.r.random() < 0.5 else ""
            middle = self.tag(f"elif {self.expression(1)}") + self.body(depth - 1) if self.r.random() < 0.3 else ""
            return self.tag(f"if {self.expression(2)}") + self.body(depth - 1) + middle + end + self.tag("endif")
        if kind < 16:
            loop = self.pick(["loop.index", "loop.index0", "loop.revindex", "loop.revindex0", "loop.first", "loop.last", "loop.length", "loop.previtem", "loop.nextitem", "loop.depth", "loop.cycle('a', 'b')", "loop.changed(v)", "loop", "loop.missing"])
            target, items = self.pick([("v", self.expression(1)), ("v", "xs"), ("v", "rows"), ("k, v", "d.items()"), ("v", "ys"), ("k, v", "d | items"), ("v", "t"), ("v", "rows | map(attribute='n')")])
            condition = f" if {self.expression(1)}" if self.r.random() < 0.3 else ""
            end = self.tag("else") + "E" if self.r.random() < 0.3 else ""
            leave = self.tag(f"if {self.expression(1)}") + self.tag(self.pick(["break", "continue"])) + self.tag("endif") if self.r.random() < 0.2 else ""
            return self.tag(f"for {target} in {items}{condition}") + self.tag(loop, "{") + leave + self.tag("v", "{") + self.body(depth - 1) + end + self.tag("endfor")
        if kind == 16:
            name = self.pick(["mac", "mbc"])
            params = self.pick(["", "v", "v, w=1", "v=s, w='x'", "v, w"])
            inner = self.pick(["", self.tag("varargs", "{"), self.tag("kwargs", "{"), self.tag("caller()", "{")])
            call = self.pick([f"{name}({self.expression(1)})", f"{name}()", f"{name}({self.expression(1)}, w=2)", f"{name}(1, 2, 3)", f"{name}(q=1)", f"{name}", f"{name}(*xs)", f"{name}(**{{'v': 5}})"])
            use = self.tag(call, "{") if self.r.random() < 0.7 else self.tag(f"call {name}(3)") + self.body(0) + self.tag("endcall")
            return self.tag(f"macro {name}({params})") + self.body(depth - 1) + inner + self.tag("endmacro") + use
        if kind == 17:
            return self.tag(f"set v{self.pick(['', ' | upper', ' | trim'])}") + self.body(depth - 1) + self.tag("endset") + self.tag("v", "{")
        if kind == 18:
            return self.pick([
                self.tag(f"filter {self.pick(['upper', 'trim', 'replace(1, 2)', 'indent(2)'])}") + self.body(depth - 1) + self.tag("endfilter"),
                self.tag(f"with v = {self.expression(1)}, w = v") + self.body(depth - 1) + self.tag("endwith"),
                self.tag("generation") + self.body(depth - 1) + self.tag("endgeneration"),
                self.tag("set ns = namespace(k=1, a='b')") + self.tag(f"set ns.k = {self.expression(1)}") + self.tag("ns.k", "{"),
            ])
        return self.tag("raw") + self.pick(["{{ x }}", " {% if %} \n", "{# #}", "a"]) + self.tag("endraw")

    def template(self):
        if self.r.random() < 0.5:
            return "{{ " + self.expression(self.r.randrange(1, 4)) + " }}"
        return "".join(self.piece(2) for _ in range(self.r.randrange(1, 5)))


class TooLong(Exception):
    pass


def stop(*_):
    raise TooLong


def main(seed, count, out):
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, stop)
    results = []
    for index in range(int(count)):
        source = Generator(int(seed) * 1_000_003 + index).template()
        signal.setitimer(signal.ITIMER_REAL, 2)
        try:
            result = {"text": templates._cached_compile_jinja_template(source).render(**copy.deepcopy(VARIABLES))}
            if " at 0x" in result["text"].lower() or len(result["text"]) > 1_000_000:
                continue
            result["text"].encode()
        except TooLong:
            continue
        except RecursionError:
            continue
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        results.append({"template": source, **result})
    pathlib.Path(out).write_text(json.dumps({"variables": VARIABLES, "results": results}), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
