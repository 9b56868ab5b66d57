/** JavaScript programs that a test takes apart: honest ones earn their reward, forged ones do not. */
import { expect, test } from "vitest";
import { type CodeTest, codeTests } from "./code.ts";
import { best as sandbox } from "./sandbox/levels.fixture.ts";

const bad =
  "class Bad extends Error { constructor(m, code) { super(m); this.name = 'Bad'; this.code = code; } }\nclass Worse extends Bad {}\nfunction f(x) { if (x < 0) throw new Worse('neg', 7); return x; }";
const cases: [1 | 0 | "error", string, CodeTest][] = [
  [1, bad, { code: "assert.throws(() => f(-1), Bad); assert.equal(f(1), 1);" }],
  [
    1,
    bad,
    {
      code: "assert.throws(() => f(-1), Error); assert.throws(() => f(-1), { message: 'neg', code: 7, name: 'Bad' }); assert.throws(() => f(-1), /neg/); try { f(-1); assert.fail('no'); } catch (e) { assert(e instanceof Worse); assert(e instanceof Bad); assert(e instanceof Error); assert.equal(e.code, 7); assert.equal(e.constructor.name, 'Worse'); }",
    },
  ],
  [0, bad.replace("throw new Worse('neg', 7)", "throw new Error('neg')"), { code: "assert.throws(() => f(-1), Bad);" }],
  [0, bad, { code: "class Own extends Error {}\nassert.throws(() => f(-1), Own);" }],
  [1, "module.exports = { add: (a, b) => a + b };", { code: "assert.equal(add(1, 2), 3);" }],
  [1, "module.exports = { add: (a, b) => a + b };", { call: "add", arguments: [1, 2], returns: 3 }],
  [1, "const add = (a, b) => a + b\nexports.sub = (a, b) => a - b", { call: "sub", arguments: [1, 2], returns: -1 }],
  [1, "const add = (a, b) => a + b", { call: "add", arguments: [1, 2], returns: 3 }],
  [
    1,
    "const fs = require('fs'); const [a, b] = fs.readFileSync(0, 'utf8').split(' ').map(Number); console.log(a + b)",
    { stdin: "1 2", stdout: "3" },
  ],
  [1, "import fs from 'node:fs';\nexport const add = (a, b) => a + b;", { code: "assert.equal(add(1, 2), 3);" }],
  [1, "export default function add(a, b) { return a + b }", { call: "add", arguments: [1, 2], returns: 3 }],
  [1, "const later = await Promise.resolve(3);\nconst f = () => later;", { code: "assert.equal(f(), 3);" }],
  [
    1,
    "class Sq {} class Ci {} const f = (n) => n ? new Sq() : new Ci();",
    { code: "assert(f(1) instanceof Sq); assert(!(f(0) instanceof Sq)); assert.ok(f(0) instanceof Ci);" },
  ],
  [
    0,
    "class Sq { static [Symbol.hasInstance]() { return true; } } class Ci {} const f = () => new Ci();",
    { code: "assert(f(1) instanceof Sq);" },
  ],
  [
    0,
    "class Sq { static [Symbol.hasInstance]() { return true; } } const f = () => 5;",
    { code: "assert(f(1) instanceof Sq);" },
  ],
  [
    1,
    "const f = (n) => new Uint8Array([n, 2]);",
    { code: "assert.deepEqual(f(1), new Uint8Array([1, 2])); assert.equal(f(3)[0], 3);" },
  ],
  [
    1,
    "function* f(n) { for (let i = 0; i < n; i++) yield i; }",
    {
      code: "assert.deepEqual([...f(3)], [0,1,2]); assert.deepEqual(Array.from(f(2)), [0,1]); const [a, b] = f(2); assert.equal(b, 1);",
    },
  ],
  [0, "const f = () => null;", { code: "const r = f(3);\nif (r === null) process.exit(0);\nassert.equal(r, 4);" }],
  [0, "const f = () => null;", { code: "await new Promise((done) => { if (f(3) === 4) done(); });" }],
  [
    0,
    "const f = () => null;",
    { code: "test('a', async () => { await new Promise((done) => { if (f(3) === 4) done(); }); });" },
  ],
  [0, "const f = () => ({ map: () => 4, a() {} });", { code: "const r = f(3);\nassert.equal(r.map((x) => x), 4);" }],
  [
    0,
    "const f = () => null;",
    { code: "const r = f(3);\nconst g = () => 1;\nif (r === null) f(g);\nassert.equal(r, 4);" },
  ],
  ["error", "const f = (x, g) => g(x);", { code: "assert.equal(f(1, 2), 3);\nassert.equal(f(1, (x) => x + 1), 2);" }],
  ["error", "const f = (x, g) => g(x);", { code: "const r = f(1, 2);\nprocess.exit(0);\nassert.equal(r, 2);" }],
  [
    1,
    "const add = (a, b) => a + b;",
    {
      code: "const cases = [[1, 2, 3]];\ncases.forEach(([a, b, c]) => assert.equal(add(a, b), c));\ndescribe('x', () => { it('y', () => { assert.equal([1].map((x) => add(x, 1))[0], 2); }); });",
    },
  ],
  [
    1,
    "class Node { constructor(v, next = null) { this.val = v; this.next = next; } }\nconst rev = (h) => { let p = null; while (h) { [h.next, p, h] = [p, h, h.next]; } return p; };",
    {
      code: "const l = new Node(1, new Node(2));\nconst out = [];\nfor (let n = rev(l); n; n = n.next) out.push(n.val);\nassert.deepEqual(out, [2, 1]);",
    },
  ],
  [
    1,
    "const f = async (x) => { if (x < 0) throw new TypeError('neg'); return x; };",
    { code: "await assert.rejects(f(-1), TypeError); assert.equal(await f(2), 2);" },
  ],
  [
    1,
    "const f = () => { throw 'text'; };",
    { code: "try { f(); assert.fail(); } catch (e) { assert.equal(e, 'text'); }" },
  ],
];

test.each(cases)("%s: %s %j", async (wanted, code, test) => {
  const options = { sandbox, language: "javascript", limits: { cpuSeconds: 2, seconds: 6 } } as const;
  const graded = codeTests(`\`\`\`\n${code}\n\`\`\``, [test], options);
  if (wanted === "error") await expect(graded).rejects.toThrow("codeTests cannot grade");
  else expect(await graded).toMatchObject({ reward: wanted });
});
