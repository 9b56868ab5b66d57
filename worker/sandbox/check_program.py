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
        if name in LIBRARIES or name.startswith("assert"):
            raise BrokenTest("the test uses %s without importing it" % name)
        return proxies.named(name)


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


def run_module(tree, module):
    """Raises what the test raises, except an exit with 0 that has no check after it."""
    try:
        exec(compile(tree, "test.py", "exec"), module.__dict__)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
        lines = [frame.lineno for frame in traceback.extract_tb(end.__traceback__) if frame.filename == "test.py"]
        checks = [node.lineno for node in ast.walk(tree) if isinstance(node, (ast.Assert, ast.Raise))]
        if any(check > line for line in lines[:1] for check in checks):
            raise BrokenTest("line %d of the test exits with 0 before the checks that follow" % lines[-1]) from None


def judge(source):
    """The exit code for a test of the program with which `proxies.begin` was called, and the reason."""
    session, watch = proxies.session, Watch()
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["test.py"]
    why = None
    try:
        tree = ast.parse(source, "test.py")
        module.__dict__["__builtins__"] = Names(modules_of(tree))
        if "unittest" in source:
            watch.add_unittest()
        run_module(tree, module)
        run_uncalled(tree, module, watch)
        if threading.active_count() > 1:
            threading._shutdown()  # waits for threads, and ends the idle ones of executors
    except BaseException as error:
        why = describe(error)
    if session.broken is not None:
        return BROKEN, session.broken
    why = watch.failure() or why or session.wrong
    if watch.results and watch.ran == 0 and not watch.failure():
        why = "unittest ran no test"
    if not session.used:
        return BROKEN, why or "the test never uses the program"
    return (PASSED, "") if why is None and session.wrong is None else (FAILED, why or session.wrong)


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
    os._exit(code)


if __name__ == "__main__":
    main()
