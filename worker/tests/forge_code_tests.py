"""Random classes that overload operators and methods must not pass a Python code test that their plain value fails.

Usage: forge_code_tests.py SEED CASES SECONDS. Runs CASES cases, or as many as fit into SECONDS if that is not 0. Both sides of a
code test run in this process. Prints counts as JSON once a minute and at the end. A failure prints the program and the test, and
exits with 1.
"""

import io
import json
import os
import random
import re
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "sandbox"))
import check_program  # noqa: E402
import serve_program  # noqa: E402
import proxies  # noqa: E402

# In a check, C is the call and E the expected value, which no program can guess.
CHECKS = {
    int: """C == E;E == C;not C != E;not (C != E or E != C);C - E == 0;not C - E;not (C ^ E);abs(C - E) < 1e-6;round(C - E, 3) == 0
C in (E,);C in {E};E <= C <= E;not (C < E or C > E);math.isclose(C, E);int(C) == E;float(C) == E;C // E == 1 and C % E == 0
divmod(C, E) == (1, 0);{E: 1}[C];[E].index(C) == 0;[E].count(C) == 1;sum([C, -E]) == 0;str(C) == str(E);f"{C}" == str(E)
"%d" % C == str(E);isinstance(C, int) and C == E;hash(C) == hash(E);bool(C == E);C.__eq__(E) is True;operator.eq(C, E);-C == -E;abs(C) == E
not [x for x in [E] if x != C];C & E == E and C | E == E;pow(C - E, 2) < 1;complex(C) == E;C + 0 == E;0 + C == E;E - C == 0
C * 1.0 == E;C in range(E, E + 1);decimal.Decimal(C) == E;fractions.Fraction(C) == E;C.real == E;C.conjugate() == E
C.bit_length() == E.bit_length() and C.numerator == E;max(C, E) == E == min(C, E);sorted([C, E]) == [E, E];repr(C) == repr(E)
all(map(lambda x: f(x) == E, [3, 4]));[f(x) for x in (3, 4)] == [E, E];(C, 1) == (E, 1);[C] == [E];{"a": C} == {"a": E};len([C]) == 1 and C == E
C is E or C == E;not (C < E) and not (C > E);C <= E and C >= E;C >> 0 == E;~C == ~E;C.__sub__(E) == 0;isinstance(C, type(E)) and C == E
any(x == C for x in [E]);next(x for x in [E] if x == C) == E;copy.copy(C) == E;statistics.mean([C]) == E""",
    str: """C == E;C.startswith(E);C.endswith(E);E in C;C in E and len(C) == len(E);C.find(E) == 0;C.index(E) == 0;C.count(E) == 1
C.split(E) == ["", ""];C.lower() == E;re.match(E, C);re.fullmatch(E, C);E.startswith(C) and len(C) == len(E);"".join(C) == E
"%s" % C == E;C + "" == E;"" + C == E;C[0:] == E;len(C) == len(E) and all(a == b for a, b in zip(C, E));C.encode() == E.encode()
list(C) == list(E);C.partition(E) == ("", E, "");C.casefold() == E;C.isidentifier() and C == E;C.__contains__(E)
len(C) == len(E) and all(c in C for c in E) and C[0] == E[0] and C[-1] == E[-1] and C[1] == E[1];C.strip() == E;str(C) == E;C * 1 == E;C > "" and C == E
all(C[i] == c for i, c in enumerate(E));C.rindex(E) == 0;C.rfind(E) == 0;not C.replace(E, "") and len(C);C.ljust(0) == E;C.format() == E;E.find(C) == 0 and C""",
    list: """C == E;C[0] == E[0];E[0] in C;C.index(E[0]) == 0;C.count(E[0]) == 1;C + [] == E;[] + C == E;C * 1 == E;C[:] == E;list(C) == E
tuple(C) == tuple(E);r.extend(E) or r[3] == E[0] and r[0] == E[0];len(C) == len(E) and all(a == b for a, b in zip(C, E))
len(r) == len(E) and all(a == b for a, b in zip(r, E));all(r[i] == E[i] for i in range(len(E)));r.pop() == E[-1];sorted(C) == sorted(E)
not [x for x in E if x not in r];[x for x in C] == E;r.copy() == E;max(C) == max(E);list(reversed(C)) == E[::-1];sum(C) == sum(E)
len(set(r)) == len(set(E)) and all(x in E for x in r);len(list(r)) == len(E) and all(x in E for x in r);not r.remove(E[0]) and not r.remove(E[1])
len(r) == 3 and not [x for x in r if x not in E];r.__contains__(E[0]);C > [] and C == E;isinstance(C, list) and C == E;dict(enumerate(C)) == dict(enumerate(E))""",
    set: """C == E;C.issubset(E) and len(C) == len(E);C.issuperset(E);not (C - E) and not (E - C);not (C - E) and len(C) == len(E);not (C ^ E)
C & E == E;C | E == E and len(C) == len(E);len(C & E) == len(E);all(x in C for x in E);C.difference(E) == set() and len(C) == 3
C.symmetric_difference(E) == set();C >= E;C <= E and len(C) == 3;sorted(C) == sorted(E);not E.difference(C);not C.isdisjoint(E)
len(r) == 3 and all(x in E for x in r);not any(r.remove(x) for x in E);r.union(E) == E and len(r) == 3;set(C) == E;frozenset(C) == E;E.issubset(C)
E <= C;C.intersection(E) == E;len(C) == 3 and C.issubset(E);not [r.discard(x) for x in E if x not in r];E & C == E;not E ^ C""",
    dict: """C == E;all(r[k] == v for k, v in E.items());all(r.get(k) == v for k, v in E.items());E.items() <= C.items();C.items() >= E.items()
dict(C) == E;{**C} == E;C | {} == E;all(r.pop(k) == v for k, v in E.items());all(k in r for k in E);sorted(C.items()) == sorted(E.items())
len(r) == len(E) and all(E[k] == v for k, v in r.items());set(r.keys()) == set(E.keys()) and all(E[k] == r[k] for k in r)
all(r.get(k) for k in E);set(C) == set(E);list(C.values()) == list(E.values());C.keys() == E.keys();all(map(r.__contains__, E));len(C) == 2 and not (E.keys() - C)""",
}
SETTINGS = [
    "r = f(3)\nassert CHECK",
    "def check(candidate):\n  r = candidate(3)\n  assert CHECK\ncheck(f)",
    "def test_f():\n  r = f(3)\n  assert CHECK",
    "import unittest\nclass T(unittest.TestCase):\n  def test_f(self):\n    r = f(3)\n    self.assertTrue(CHECK)\nunittest.main(exit=False)",
    "import unittest\nclass T(unittest.TestCase):\n  def test_f(self):\n    self.assertEqual(f(3), E)\nunittest.main()",
    "import unittest\nclass T(unittest.TestCase):\n  def test_f(self):\n    self.assertIn(f(3), [E])\nif __name__ == '__main__': unittest.main()",
    "import unittest\nclass T(unittest.TestCase):\n  def test_f(self):\n    self.assertAlmostEqual(f(3), E)\n    r = f(3)\n    self.assertTrue(CHECK)",
    "r = f(3)\ntry:\n  ok = CHECK\nexcept Exception:\n  ok = False\nif not ok: raise SystemExit(1)\nraise SystemExit(0)",
    "import asyncio\nasync def main():\n  r = f(3)\n  assert CHECK\nasyncio.run(main())",
]
VALUES = [0, 1, 7, -1, True, False, 0.0, 1.5, float("nan"), float("inf"), 2j, "", "a", "abc", b"", (), (1, 2, 3), [], [1], [1, 2, 3], {}, {"a": 1}]
VALUES += [set(), {1, 2, 3}, frozenset(), frozenset({1}), None]
RESULTS = """True;False;0;1;3;0.0;-1;1e9;"";"a";[];{};set();None;self;V;iter([]);iter([1, 2, 3]);NotImplemented;a[0] if a else self;a[-1] if a else True
list(a);type(a[0])() if a else 0;lambda *a, **k: True;lambda *a, **k: 0;lambda *a, **k: a[0] if a else 0;K();int;[K()];{"a": K()};"a" * 8;E0()
iter([E0(), 1]);[1, 2, 3];{1, 2, 3};(x for x in a);len(a);a;str(a);next(iter([]));[][1];{}[1];1 / 0;None.x;exit(0)""".replace("\n", ";").split(";")
USUAL = ["True", "0", "3", "iter([])", "a[0] if a else 0", "set()", "False", "1 / 0", "next(iter([]))"]
DUNDERS = """eq ne lt le gt ge hash bool len iter next contains getitem reversed str repr format int float complex index abs neg pos invert round trunc
add sub mul matmul truediv floordiv mod divmod pow and or xor lshift rshift radd rsub rmul rtruediv rfloordiv rmod rpow rand ror rxor iadd isub
call getattr getattribute missing length_hint instancecheck subclasscheck bytes reduce reduce_ex copy deepcopy fspath await aiter enter exit""".split()
NAMES = ["__%s__" % name for name in DUNDERS] * 2 + sorted(name for name in proxies.PLAIN_NAMES if not name.startswith("__"))
SIGNS = {" - ": "__sub__", " in ": "__contains__", " == ": "__eq__", " & ": "__and__", " ^ ": "__xor__", " | ": "__or__", " < ": "__lt__"}
SIGNS.update({" <= ": "__le__", " >= ": "__ge__", "[": "__getitem__", "len(": "__len__", "for ": "__iter__", " + ": "__add__", "not ": "__bool__"})
BASES = [""] * 12 + ["int", "float", "str", "list", "dict", "set", "tuple", "frozenset", "complex", "bytes"]
SHAPES = ["def f(x): return E0()"] * 8 + [
    "def f(x): return V if E0() is None else next(iter([]))",
    "f = type('f', (E0,), {'__new__': lambda cls, *a: E0()})",
    "class f(E0):\n  def __init__(self, *a): pass",
    "class M(E0):\n  def __call__(self, *a): return E0()\nf = M()",
    "def f(x): yield E0()",
    "def f(x): return [E0(), E0(), E0()]",
    "def f(x): return {'a': E0(), 'b': E0()}",
    "def f(x): return E0",
    "async def f(x): return E0()",
    "def f(x): return (E0() for _ in range(3))",
    "def f(x): return lambda *a, **k: E0()",
]


def members(pick, few, likely):
    lines = []
    for name in {pick(pick((NAMES, likely))) for _ in range(few)}:
        how = pick(["method"] * 6 + ["value", "property", "static"])
        if how == "value":
            lines.append("  %s = %s" % (name, pick(["True", "None", "0", "int", "lambda *a, **k: True", "lambda *a, **k: a[-1]"])))
        elif how == "property":
            lines.append("  %s = property(lambda self, *a: %s)" % (name, pick(pick((RESULTS, USUAL)))))
        elif how == "static":
            lines.append("  @staticmethod\n  def %s(*a, **k):\n    self = None\n    return %s" % (name, pick(pick((RESULTS, USUAL)))))
        else:
            lines.append("  def %s(self, *a, **k): return %s" % (name, pick(pick((RESULTS, USUAL)))))
    if pick([True] + [False] * 3):
        lines.append("  def __getattr__(self, name): return lambda *a, **k: %s" % pick(RESULTS).replace("self", "None"))
    if pick([True] + [False] * 5):
        lines.append("  __class__ = %s" % pick(["int", "str", "list", "set", "dict", "float"]))
    return "\n".join(lines) or "  pass"


def forged_program(random_, value, test):
    check = test.split("assert", 1)[-1]
    likely = [name for name in proxies.PLAIN_NAMES if "." + name in check] * 3
    likely = sorted(likely) + [name for sign, name in SIGNS.items() if sign in check] or NAMES
    pick, base = random_.choice, random_.choice(BASES)
    meta = pick(["", "", "metaclass=Meta"])
    head = ", ".join(part for part in (base, meta) if part)
    return "\n".join(
        [
            "V = %s" % written(value),
            "class Meta(type):\n" + members(pick, 3 if meta else 0, likely),
            "class K:\n" + members(pick, pick([0, 2, 5]), likely),
            "class E0(%s):\n%s" % (head, members(pick, pick([1, 3, 8, 20, 60]), likely)),
            pick(SHAPES),
        ]
    )


def written(value):
    return 'float("%r")' % value if value != value or value in (float("inf"), 1e999) else repr(value)


def expected_of(kind, random_):
    number = lambda: random_.randrange(10**6, 10**9)
    word = lambda: "".join(random_.choices("bcdefghijk", k=8))
    return {
        int: number,
        str: word,
        list: lambda: [number(), number(), number()],
        set: lambda: {number(), number(), number()},
        dict: lambda: {word(): number(), word(): number()},
    }[kind]()


class TimeUp(BaseException):
    pass


def on_time_up(*_more):
    proxies.session.wrong = "time"
    raise TimeUp


def exchange_with(server):
    """In its own process, a program that exits in spite of `answer` only ends itself."""

    def exchange(line):
        try:
            return server.answer(line)
        except SystemExit:
            return b""

    return exchange


def verdict(program, test):
    names = {"__name__": "__main__"}
    try:
        exec(program, names)
    except BaseException:
        return None  # no class
    proxies.begin(exchange_with(serve_program.Server(names)))
    # An iterator without end is ended by the sandbox's time limit.
    # They limit processor time, because other programs may use the machine.
    signal.setitimer(signal.ITIMER_PROF, 1, 0.2)
    signal.setitimer(signal.ITIMER_REAL, 20, 0.2)
    try:
        return check_program.judge(test)
    except TimeUp:
        return check_program.FAILED, "time"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def run_case(random_):
    """What happened; or what is wrong, the program and the test."""
    kind = random_.choice(list(CHECKS))
    expected = expected_of(kind, random_)
    check = re.sub(r"\bC\b", "f(3)", random_.choice(CHECKS[kind].replace("\n", ";").split(";")))
    setting = random_.choice(SETTINGS if kind is int else [each for each in SETTINGS if "Almost" not in each])
    test = "import copy, decimal, fractions, math, operator, re, statistics\nE = %r\n" % (expected,)
    test += setting.replace("CHECK", check)
    right = verdict("def f(x): return %r" % (expected,), test)
    if right[0] != check_program.PASSED:
        return "the right program fails: %s" % right[1], "", test
    program = forged_program(random_, random_.choice(VALUES), test)
    forged = verdict(program, test)
    if forged is None:
        return "invalid"
    if forged[0] == check_program.PASSED and any(passes(value, test) for value in VALUES):
        return "weak"  # such as `not (x < 5 or x > 5)`, which NaN passes
    return "refused" if forged[0] == check_program.FAILED else ("verdict %d: %s" % forged, program, test)


def passes(value, test):
    return verdict("def f(x): return %s" % written(value), test)[0] == check_program.PASSED


def main():
    seed, cases, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    end, said = time.monotonic() + seconds, time.monotonic()
    counts = {"refused": 0, "invalid": 0, "weak": 0, "late": 0}
    output, sys.stderr = sys.stdout, io.StringIO()
    for signaled in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(signaled, on_time_up)
    index = 0
    while time.monotonic() < end if seconds else index < cases:
        try:
            outcome = run_case(random.Random("%s:%d" % (seed, index)))
        except TimeUp:  # On a busy machine, a second time-out can follow before the timers are off.
            outcome = "late"
        if isinstance(outcome, tuple):
            output.write("case %s:%d: %s\n\n%s\n\n%s\n" % (seed, index, *outcome))
            return 1
        counts[outcome] += 1
        index += 1
        if time.monotonic() > said + 60:
            said = time.monotonic()
            print(json.dumps(counts), file=output, flush=True)
            sys.stderr = io.StringIO()
    print(json.dumps(counts), file=output, flush=True)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
