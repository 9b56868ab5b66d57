"""Runs test.py, in which every unknown name belongs to a program that runs in another sandbox.

The program's code does not run here. Its functions and objects are proxies: a call sends plain data to the other process
and returns the plain data of its answer. Exits with one of three codes, and the reason on stderr.
"""

import ast
import builtins
import importlib
import inspect
import os
import re
import sys
import threading
import traceback
import types

CHANNEL = 4
leave_process = os._exit
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import proxies  # noqa: E402
from proxies import BrokenTest  # noqa: E402

del sys.path[0]

# Other codes than Python's own, because a test can also end by itself. `checkEnds` in code.ts repeats them.
PASSED, FAILED, BROKEN = 40, 41, 42

# Names of libraries and of their assertions: the program must not decide what they mean.
LIBRARIES = set("pytest numpy np pandas pd torch scipy sympy hypothesis parameterized approx raises".split())
LIBRARIES |= set("isclose allclose array_equal deepcopy".split())


class Names(dict):
    """Python's own names come first, so that the program cannot replace those that the test checks with."""

    def __init__(self, modules):
        super().__init__(vars(builtins))
        self.modules = modules

    def __missing__(self, name):
        if name.startswith("__"):
            raise KeyError(name)
        if name in self.modules:
            return importlib.import_module(name)
        return proxies.named(name)


# Calls that compare their first two arguments.
EQUALITIES = {"assertEqual", "assertNotEqual", "assertListEqual", "assertTupleEqual", "assertDictEqual", "assertSequenceEqual", "assertCountEqual"}
IDENTITIES = {"assertIs": "assertTrue", "assertIsNot": "assertFalse"}


class Rewritten(ast.NodeTransformer):
    """
    The test with calls of this process where Python itself would look at an object of the program: `is` and `type(x)`, and objects
    that it constructs to compare with, which the program makes last.
    """

    def __init__(self, tree, names):
        self.names = names
        """Names that the test does not define."""
        self.results, self.expected = set(), {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and self.is_result(node.value):
                self.results |= {ast.unparse(target) for target in node.targets}
        for node in ast.walk(tree):
            for side, other in self.compared(node):
                if isinstance(side, (ast.Name, ast.Attribute)):
                    name = ast.unparse(side)
                    self.expected[name] = self.expected.get(name) or self.is_result(other)

    def is_result(self, tree):
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        roots = [next((each.id for each in ast.walk(call) if isinstance(each, ast.Name)), "") for call in calls]
        return any(root in self.names for root in roots) or any(ast.unparse(node) in self.results for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.Attribute)))

    @staticmethod
    def compared(node):
        """Both sides of a comparison, each with the other."""
        sides = ()
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.Eq, ast.NotEq, ast.In, ast.NotIn)):
            sides = (node.left, node.comparators[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in EQUALITIES:
            sides = node.args[:2]
        return [(sides[0], sides[1]), (sides[1], sides[0])] if len(sides) == 2 else []

    def expect(self, tree, how):
        """Marks the objects that an expression constructs."""
        inside = ()
        if isinstance(tree, (ast.List, ast.Tuple, ast.Set)):
            inside = tree.elts
        elif isinstance(tree, ast.Dict):
            inside = [each for each in (*tree.keys, *tree.values) if each is not None]
        elif isinstance(tree, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            inside = [tree.elt]
        elif isinstance(tree, ast.Call) and isinstance(tree.func, (ast.Name, ast.Attribute)):
            name = tree.func.id if isinstance(tree.func, ast.Name) else tree.func.attr
            root = next((each.id for each in ast.walk(tree.func) if isinstance(each, ast.Name)), "")
            if root in self.names and proxies.CLASS_NAME.fullmatch(name):
                tree.args.insert(0, tree.func)
                tree.func = named_node(how, tree)
                inside = tree.args[1:]
        for each in inside:
            self.expect(each, how)

    def visit(self, node):
        identity = IDENTITIES.get(node.func.attr) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        for side, other in self.compared(node):
            self.expect(side, "__expect_from__" if self.is_result(other) else "__expect__")
        if isinstance(node, ast.Assign) and not getattr(node, "guarded", False):
            compared = [self.expected[name] for name in map(ast.unparse, node.targets) if name in self.expected]
            if compared:
                self.expect(node.value, "__expect_from__" if any(compared) else "__expect__")
        if isinstance(node, (ast.With, ast.AsyncWith, ast.Try)):
            for each in ast.walk(node):
                each.guarded = True
        node = self.generic_visit(node)
        if isinstance(node, ast.Compare) and any(isinstance(each, (ast.Is, ast.IsNot)) for each in node.ops) and len(node.ops) == 1:
            if isinstance(node.comparators[0], ast.Constant) or isinstance(node.left, ast.Constant):
                return node
            same = call_of("__identical__", node.left, node.comparators[0])
            return same if isinstance(node.ops[0], ast.Is) else ast.copy_location(ast.UnaryOp(ast.Not(), same), node)
        if identity is not None and len(node.args) >= 2:
            node.func.attr = identity
            node.args[:2] = [call_of("__identical__", *node.args[:2])]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type" and len(node.args) == 1:
            node.func = named_node("__type_of__", node)
        elif isinstance(node, ast.Attribute) and node.attr == "__class__" and isinstance(node.ctx, ast.Load):
            return call_of("__type_of__", node.value)
        return node


def named_node(name, place):
    return ast.copy_location(ast.Name(name, ast.Load()), place)


def call_of(name, first, *more):
    return ast.copy_location(ast.Call(named_node(name, first), [first, *more], []), first)


REWRITTEN = {
    "__expect__": proxies.expect,
    "__expect_from__": proxies.expect_from,
    "__identical__": proxies.identical,
    "__type_of__": proxies.type_of,
}


def names_of(tree, modules):
    """Names that belong to the program: the test neither defines nor imports them, and they are not Python's own."""
    used, own = set(), {*vars(builtins), *modules}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else own).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.alias):
            own.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            own.add(node.name)
    return {name for name in used - own if not name.startswith("__")}


CAPTURES = r"(contextlib\.)?redirect_(stdout|stderr)\(|sys\.std(out|in|err) =|(\w+\.)*patch\(['\"](sys\.std|builtins\.(print|input|open))"


def fault_of(tree, names):
    """
    What a test cannot do with any program, which is therefore an error of the test, with its line. It is found before the program
    runs: afterwards, what happens may be the program's doing.
    """
    for name in sorted(names):
        if name in LIBRARIES or name.startswith("assert"):
            return "the test uses %s without importing it" % name
    for place, statement in enumerate(tree.body):
        ends = isinstance(statement, ast.Expr) and re.fullmatch(r"(os\._exit|sys\.exit|exit|quit)\(0?\)", ast.unparse(statement))
        if ends and any(isinstance(node, (ast.Assert, ast.Raise)) for rest in tree.body[place:] for node in ast.walk(rest)):
            return "line %d of the test ends its process: it exits with 0 before the checks that follow" % statement.lineno
    functions = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    is_new = lambda node: isinstance(node, ast.Call) and ast.unparse(node.func) in names and proxies.CLASS_NAME.fullmatch(ast.unparse(node.func))
    made = {ast.unparse(target) for node in ast.walk(tree) if isinstance(node, ast.Assign) and is_new(node.value) for target in node.targets}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id in names:
                    return "line %d of the test subclasses %s of the program, which runs in another process" % (node.lineno, base.id)
        receiver = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        is_method = receiver is not None and (is_new(receiver) or ast.unparse(receiver) in made)
        if isinstance(node, ast.Call) and (is_method or (isinstance(node.func, ast.Name) and node.func.id in names)):
            for each in (*node.args, *(keyword.value for keyword in node.keywords)):
                if isinstance(each, ast.Lambda) or (isinstance(each, ast.Name) and each.id in functions):
                    return "line %d of the test passes functions of its own to the program" % node.lineno
        for each in getattr(node, "decorator_list", ()):
            if isinstance(each, ast.Name) and each.id in names:
                return "line %d of the test passes functions of its own to the program" % node.lineno
        if isinstance(node, (ast.Call, ast.Assign)) and re.match(CAPTURES, ast.unparse(node)):
            return "line %d of the test captures what the program prints, in another process: use { stdin, stdout }" % node.lineno
    return None


def modules_of(tree):
    """Modules of the standard library that the test uses without an import, as in `math.isclose`."""
    used = (node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    names = {value.id for value in used if isinstance(value, ast.Name)}
    return names & set(sys.stdlib_module_names)


class Watch:
    """Collects results that an exception of the test does not show: of unittest, of other threads."""

    def __init__(self):
        self.results = []
        self.ran = 0
        self.thread_error = None
        threading.excepthook = self.on_thread_error

    def on_thread_error(self, failed):
        if failed.exc_type is not SystemExit:
            self.thread_error = self.thread_error or failed.exc_value

    def add_unittest(self):
        import unittest

        for kind in (unittest.TestCase, unittest.TestSuite):
            if not hasattr(kind, "unwatched_run"):
                kind.unwatched_run = kind.run
            kind.run = self.watched(kind.unwatched_run, kind is unittest.TestCase)

    def watched(self, original, is_case):
        def run(case, result=None, *more):
            skipped = len(getattr(result, "skipped", ()))
            result = original(case, result, *more)
            if not any(result is each for each in self.results):
                self.results.append(result)
            self.ran += is_case and len(getattr(result, "skipped", ())) == skipped
            return result

        return run

    def failure(self):
        for result in self.results:
            if not result.wasSuccessful():
                failed = [*result.failures, *result.errors]
                return failed[0][1].strip().split("\n")[-1] if failed else "a test expected to fail passed"
        if self.thread_error is not None:
            return describe(self.thread_error)
        doctest = sys.modules.get("doctest")
        return "a doctest failed" if doctest and doctest.master and doctest.master.failures else None


def describe(error):
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "test.py"]
    if isinstance(error, SyntaxError) and error.filename == "test.py":
        lines = [error.lineno]
    place = "line %d of the test: " % lines[-1] if lines else ""
    text = str(error)
    return "%s%s%s" % (place, type(error).__name__, ": " + text if text else "")


def run_uncalled(tree, module, watch):
    """Runs, like pytest, the tests that the module defines but does not call."""
    unittest = sys.modules.get("unittest")
    if unittest and not watch.results:
        cases = unittest.TestLoader().loadTestsFromModule(module)
        if cases.countTestCases() > 0:
            cases.run(unittest.TestResult())
    called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for name, value in list(vars(module).items()):
        if name in called or getattr(value, "__module__", None) != "__main__":
            continue
        if re.match("test", name) and isinstance(value, types.FunctionType):
            run_function(name, value)
        elif name.startswith("Test") and isinstance(value, type) and not (unittest and issubclass(value, unittest.TestCase)):
            for method in [each for each in dir(value) if each.startswith("test")]:
                instance = value()
                getattr(instance, "setup_method", lambda: None)()
                run_function(method, getattr(instance, method))
                getattr(instance, "teardown_method", lambda: None)()


def run_function(name, function):
    needed = [each.name for each in inspect.signature(function).parameters.values() if each.default is each.empty]
    if needed:
        raise BrokenTest("%s needs %s, which nothing passes: fixtures are not supported" % (name, ", ".join(needed)))
    result = function()
    if inspect.iscoroutine(result):
        import asyncio

        asyncio.run(result)


class Unchecked(Exception):
    """The test ended early, as the program's values made it do."""


def end_process(code):
    """`os._exit` in the test."""
    raise SystemExit(code)


def run_module(tree, module):
    """Raises what the test raises, except an exit with 0 that has no check after it."""
    try:
        exec(compile(tree, "test.py", "exec"), module.__dict__)
    except SystemExit as end:
        if isinstance(end, proxies.ProgramExit) or end.code not in (None, 0):
            raise
        lines = [frame.lineno for frame in traceback.extract_tb(end.__traceback__) if frame.filename == "test.py"]
        functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        inside = [each for each in functions if each.lineno <= lines[-1] <= each.end_lineno]
        follow = [(inside[-1], lines[-1])] if inside else []
        for part, line in [(tree, lines[0]), *follow]:
            checks = [node for node in ast.walk(part) if isinstance(node, (ast.Assert, ast.Raise))]
            if any(check.lineno > line for check in checks):
                raise Unchecked("line %d of the test exits with 0 before the checks that follow" % lines[-1]) from None


def judge(source):
    """The exit code for a test of the program with which `proxies.begin` was called, and the reason."""
    session, watch = proxies.session, Watch()
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["test.py"]
    why = None
    try:
        tree = ast.parse(source, "test.py")
        modules = modules_of(tree)
        names = names_of(tree, modules)
        fault = fault_of(tree, names)
        if fault is not None:
            raise BrokenTest(fault)
        session.class_names = sorted(name for name in names if proxies.CLASS_NAME.fullmatch(name))
        contexts = [node for node in ast.walk(tree) if isinstance(node, (ast.With, ast.AsyncWith))]
        session.raises = {each.lineno for node in contexts for each in node.body if isinstance(each, ast.Raise)}
        tree = ast.fix_missing_locations(Rewritten(tree, names).visit(tree))
        os._exit = end_process
        module.__dict__["__builtins__"] = Names(modules)
        module.__dict__["__builtins__"].update(REWRITTEN)
        if "unittest" in source:
            watch.add_unittest()
        run_module(tree, module)
        run_uncalled(tree, module, watch)
        if threading.active_count() > 1:
            threading._shutdown()  # waits for threads, and ends the idle ones of executors
    except BaseException as error:
        why = describe(error)
    os._exit = leave_process
    if session.broken is not None:
        return BROKEN, session.broken
    why = watch.failure() or why or session.wrong
    if watch.results and watch.ran == 0 and not watch.failure():
        why = "unittest ran no test"
    if not session.used:
        return BROKEN, why or "the test never uses the program"
    if why is None and session.wrong is None:
        return PASSED, ""
    return FAILED, "; ".join(each for each in (why or session.wrong, session.note) if each)


def exchange_over(replies):
    def exchange(line):
        try:
            while line:
                line = line[os.write(CHANNEL, line) :]
            return replies.readline()
        except OSError:
            return b""

    return exchange


def main():
    proxies.begin(exchange_over(open(CHANNEL, "rb", closefd=False)))
    with open("test.py", encoding="utf-8") as file:
        source = file.read()
    code, why = judge(source)
    sys.stdout.flush()
    sys.stderr.write("\n%s\n" % why)
    sys.stderr.flush()
    leave_process(code)


if __name__ == "__main__":
    main()
