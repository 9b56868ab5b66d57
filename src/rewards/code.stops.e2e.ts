/** Replies that try to stop a run get 0: only what no program could change is an error of the test. */
import { expect, test } from "vitest";
import { type CodeTest, codeTests } from "./code.ts";
import { best as sandbox } from "./sandbox/levels.fixture.ts";

const [py, js] = ["python", "javascript"] as const;
const cases: [1 | 0 | "error", string, CodeTest, "python" | "javascript"][] = [
  [
    1,
    "class A:\n  async def __aenter__(self): return self\n  async def __aexit__(self,*a): pass\n  async def get(self): return 4\nasync def gen(n):\n  for i in range(n): yield i",
    {
      code: "import asyncio\nasync def main():\n  async with A() as a:\n    assert await a.get() == 4\n  o=[]\n  async for x in gen(3): o.append(x)\n  assert o == [0,1,2]\nasyncio.run(main())",
    },
    py,
  ],
  [
    0,
    "import os\nclass Meta(type):\n  def __call__(cls, *a): os._exit(0)\nclass P(metaclass=Meta): pass",
    { code: "assert P(1).x == 1" },
    py,
  ],
  [0, "import os, signal\ndef f(n): os.kill(os.getpid(), signal.SIGKILL)", { code: "assert f(3) == 4" }, py],
  [0, "x = (", { code: "assert f(3) == 4" }, py],
  [0, "def f(n): return '\\ud800'", { code: "assert f(3) == 4" }, py],
  [0, "def f(n): return 10**200000", { code: "assert f(3) == 4" }, py],
  [0, "from decimal import Decimal\ndef f(n): return Decimal('1e999999999')", { code: "assert int(f(3)) == 4" }, py],
  [
    0,
    "class P:\n  def __getattribute__(self, n): raise SystemExit(0)\ndef f(n): return P()",
    { code: "assert f(3).x == 4" },
    py,
  ],
  [0, "def f(n):\n  l = []\n  l.append(l)\n  return l", { code: "assert f(3) == 4" }, py],
  [0, "def f(n): return [lambda: 0] * 3", { code: "r = f(3)\nassert list(map(lambda g: g(lambda: 1), r)) == 4" }, py],
  [0, "def f(n): return {n: 1}", { code: "r = f(3)\nwhile r: r.pop(3)\nassert r == 4" }, py],
  [0, "def f(n): return -1", { code: "import os\nif f(3) < 0: os.abort()\nassert f(3) == 4" }, py],
  [
    0,
    "def f(n): return -1",
    { code: "import unittest\nif f(3) < 0: raise unittest.SkipTest('x')\nassert f(3) == 4" },
    py,
  ],
  [
    0,
    "def f(n): return -1",
    { code: "import importlib\nif f(3) < 0: importlib.import_module('nothing')\nassert f(3) == 4" },
    py,
  ],
  [0, "def f(n): return -1", { code: "import os\nif f(3) < 0: os.execvp('true', ['true'])\nassert f(3) == 4" }, py],
  [
    0,
    "def f(n): return -1",
    {
      code: "import threading, time\nif f(3) < 0: threading.Thread(target=time.sleep, args=(99,)).start()\nassert f(3) == 4",
    },
    py,
  ],
  [
    "error",
    "def f(n): return 4",
    {
      code: "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n  f(3)\nassert out.getvalue() == '4'",
    },
    py,
  ],
  ["error", "class A: pass", { code: "class B(A): pass\nassert B().x == 1" }, py],
  ["error", "def f(g): return g(1)", { code: "assert f(lambda x: x) == 1" }, py],
  ["error", "def f(g): return g(1)", { code: "import os\nr = f(1)\nos._exit(0)\nassert r == 2" }, py],
  [0, "const f = () => { process.kill(process.pid, 'SIGKILL'); };", { code: "assert.equal(f(3), 4);" }, js],
  [0, "const f = (", { code: "assert.equal(f(3), 4);" }, js],
  [0, "const f = () => '\\ud800';", { code: "assert.equal(f(3), 4);" }, js],
  [0, "const f = () => { const a = []; a.push(a); return a; };", { code: "assert.equal(f(3), 4);" }, js],
  [0, "const f = () => { throw undefined; };", { code: "assert.equal(f(3), 4);" }, js],
  [
    0,
    "const f = () => { throw { get message() { throw 1; }, get name() { throw 2; } }; };",
    { code: "assert.equal(f(3), 4);" },
    js,
  ],
  [
    0,
    "class E extends Error { get message() { throw 1; } }\nconst f = () => { throw new E(); };",
    { code: "assert.equal(f(3), 4);" },
    js,
  ],
  [
    0,
    "const f = () => new Proxy({}, { get() { throw 1; }, ownKeys() { throw 2; }, getPrototypeOf() { throw 3; } });",
    { code: "assert.equal(f(3), 4);" },
    js,
  ],
  [0, "const f = () => -1;", { code: "if (f(3) < 0) process.exit(0);\nassert.equal(f(3), 4);" }, js],
  [0, "const f = () => -1;", { code: "if (f(3) < 0) process.reallyExit(0);\nassert.equal(f(3), 4);" }, js],
  [
    0,
    "const f = () => -1;",
    {
      code: "const wait = (x) => new Promise((r) => { if (x === 4) r(); });\nasync function main() { await wait(f(3)); assert.equal(f(3), 4); }\nmain();",
    },
    js,
  ],
  [0, "const f = () => -1;", { code: "it('x', (t, done) => { if (f(3) === 4) done(); });" }, js],
  [0, "const f = () => -1;", { code: "it('x', (t) => { if (f(3) < 0) t.skip(); assert(f(3) === 4); });" }, js],
  [0, "const f = () => () => 1;", { code: "const g = f(3);\nassert.equal(g((x) => x), 4);" }, js],
  [0, "const f = () => ({ then: (r) => {} , g() {} });", { code: "assert.equal(await f(3), 4);" }, js],
  [0, "const f = () => -1;", { code: "if (f(3) < 0) { const own = { g() {} }; f(own); }\nassert.equal(f(3), 4);" }, js],
  [0, "const f = () => -1;", { code: "if (f(3) < 0) { await import('nothing'); }\nassert.equal(f(3), 4);" }, js],
];

test.each(cases)("%s: %j %j", async (wanted, code, test, language) => {
  const options = { sandbox, language, limits: { cpuSeconds: 2, seconds: 6 } };
  const graded = codeTests(`\`\`\`\n${code}\n\`\`\``, [test], options);
  if (wanted === "error") await expect(graded).rejects.toThrow("codeTests cannot grade");
  else expect(await graded).toMatchObject({ reward: wanted });
});
