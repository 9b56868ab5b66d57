/** Random JavaScript programs that return objects with overloaded methods and conversions, and tests of plain data. */

export interface Forging {
  /** Passes the test. */
  right: string;
  /** Returns objects around the same plain data. */
  forged: string;
  test: string;
}

/** Checks: C is the call, r its result, E the expected value, which no program can guess. */
const checks = {
  number: `assert.equal(C, E);assert.strictEqual(C, E);assert.ok(Math.abs(C - E) < 1e-6);assert(C == E);assert(!(C - E))
assert(C >= E && C <= E);assert([E].includes(C));assert(new Set([E]).has(C));assert(new Map([[E, 1]]).has(C))
assert.equal(C.toFixed(2), E.toFixed(2));assert.equal(\`\${C}\`, \`\${E}\`);assert.equal(String(C), String(E));if (C !== E) throw new Error()
assert.equal(JSON.stringify(C), JSON.stringify(E));switch (C) { case E: break; default: assert.fail(); };assert(Object.is(C, E))
assert.equal(Number(C), E);assert.equal(+C, E);assert.equal(parseInt(C), E);assert.equal(C.valueOf(), E);assert.match(String(C), new RegExp(E))
assert.equal(C ^ E, 0);assert.equal({ [E]: 1 }[C], 1);assert.equal(C.toString(), String(E));assert.deepEqual([C], [E]);assert.deepStrictEqual({ a: C }, { a: E })
assert.equal(C % E, 0);assert.equal([E].indexOf(C), 0);assert(E in { [C]: 1 })
assert([3, 4].every((x) => f(x) === E));assert.equal(C * 1, E);assert.equal(C & E, E);assert.deepEqual(C, E);assert.ok(isFinite(C - E) && C - E === 0)`,
  string: `assert.equal(C, E);assert(C.includes(E));assert(C.startsWith(E));assert(C.endsWith(E));assert.equal(C.indexOf(E), 0);assert(C.match(E))
assert.match(C, new RegExp(E));assert.equal(C.localeCompare(E), 0);assert.equal(C.split(E).length, 2);assert.equal(C.replace(E, "!"), "!")
assert(r.length === E.length && [...r].every((c, i) => c === E[i]));assert(E.includes(C) && r.length === E.length);assert.equal(C + "", E)
for (let i = 0; i < E.length; i++) assert.equal(r[i], E[i]);assert.equal(r.length, 8); for (let i = 0; i < r.length; i++) assert.equal(r[i], E[i])
assert.equal(C.slice(0), E);assert.equal(C.toUpperCase(), E.toUpperCase());assert.equal(C.trim(), E);assert(C.at(0) === E[0] && C.at(1) === E[1] && C.at(2) === E[2])
assert.equal(C.concat(""), E);assert(new RegExp(E).test(C));assert.equal(E.indexOf(C), 0) || assert.equal(r.length, 8);assert.equal(C.charAt(0) + r.slice(1), E)
assert.equal(C.search(E), 0);assert(C.lastIndexOf(E) === 0);assert.equal(C.padEnd(8), E);assert(E === C);assert.equal([..."x"].map(() => C).join(), E)`,
  array: `assert.deepEqual(C, E);assert.deepStrictEqual(C, E);assert(r.length === 3 && E.every((x, i) => r[i] === x));assert(E.every((x) => r.includes(x)))
assert(C.includes(E[0]));assert.equal(C.indexOf(E[0]), 0);assert.equal(C.join(), E.join());assert.equal([...C].join(), E.join());assert(C.some((x) => x === E[0]))
assert.equal(r.length, 3); for (let i = 0; i < r.length; i++) assert.equal(r[i], E[i]);assert.equal(r.length, 3); for (const [i, x] of r.entries()) assert.equal(x, E[i])
assert.equal(r.length, 3); r.forEach((x, i) => assert.equal(x, E[i]));assert.equal(C.find((x) => x === E[0]), E[0]);assert.equal(JSON.stringify(C), JSON.stringify(E))
assert([...r].length === 3 && [...r].every((x) => E.includes(x)));assert(r.length === 3 && r.every((x, i) => x === E[i]));assert.equal(C.toString(), E.toString())
assert.equal(r.pop(), E[2]);assert.equal(r.shift(), E[0]);assert.equal(C.at(-1), E[2]);assert.deepEqual([...C].sort(), [...E].sort());const [a, b] = r; assert(a === E[0] && b === E[1])
assert.equal(r[0], E[0]);assert.equal(String(C), String(E));assert.deepEqual(C.slice(), E);assert.deepEqual([].concat(C), E);assert(Array.isArray(r) && E.every((x) => r.includes(x)))
r.push(1); assert.equal(r[0], E[0]);assert.equal(C.reduce((a, b) => a + b), E[0] + E[1] + E[2]);assert.deepEqual(Array.from(C), E);assert.equal(C.lastIndexOf(E[1]), 1)`,
  map: `assert.deepEqual(C, E);assert([...E].every(([k, v]) => r.get(k) === v));assert([...E.keys()].every((k) => r.has(k)));assert.deepEqual([...C], [...E])
assert(r.size === E.size && [...r].every(([k, v]) => E.get(k) === v));assert.deepEqual([...C.keys()], [...E.keys()]);assert.deepStrictEqual(new Map(C), E)
assert(r.size === 2 && [...r.entries()].every(([k, v]) => E.get(k) === v));for (const k of E.keys()) assert.ok(r.get(k));assert.equal(r.delete([...E.keys()][0]), true)
assert.equal(r.size, 2); r.forEach((v, k) => assert.equal(v, E.get(k)));assert.deepEqual(Object.fromEntries(C), Object.fromEntries(E));assert.equal(C.get([...E.keys()][1]), [...E.values()][1])`,
  set: `assert.deepEqual(C, E);assert([...E].every((x) => r.has(x)));assert(C.has([...E][0]));assert(r.size === E.size && [...r].every((x) => E.has(x)))
assert.deepEqual([...C].sort(), [...E].sort());assert(r.size === 3 && ![...E].some((x) => !r.has(x)));assert([...E].every((x) => r.delete(x)));assert.deepStrictEqual(new Set(C), E)
assert(r.size === 3 && [...r.values()].every((x) => E.has(x)));assert.equal([...E].filter((x) => r.has(x)).length, 3);assert(C.isSupersetOf ? C.isSupersetOf(E) : C.has([...E][0]))
assert([...r].length === 3 && [...r].every((x) => E.has(x)));assert.equal(r.size, 3); for (const x of r) assert(E.has(x))`,
  record: `assert.deepEqual(C, E);assert(Object.keys(E).every((k) => r[k] === E[k]));assert.equal(C.alpha, E.alpha);for (const k in E) assert.ok(k in r && r[k])
assert.deepStrictEqual({ ...C }, E);assert(Object.keys(r).length === 2 && Object.entries(r).every(([k, v]) => E[k] === v));assert(Object.keys(E).every((k) => Object.hasOwn(r, k)))
assert(Object.keys(E).every((k) => r.hasOwnProperty(k)));assert.equal(JSON.stringify(C), JSON.stringify(E));const { alpha } = r; assert.equal(alpha, E.alpha)
for (const k of Object.keys(E)) assert.ok(r[k]);assert(Reflect.ownKeys(E).every((k) => Reflect.has(r, k)));assert(Object.keys(E).every((k) => r.propertyIsEnumerable(k)))`,
};

const settings = [
  "const r = f(3);\nCHECK",
  "const check = (candidate) => { const r = candidate(3); CHECK };\ncheck(f);",
  "const r = f(3);\nlet ok = true;\ntry { CHECK } catch { ok = false; }\nif (!ok) throw new Error('wrong');",
  "assert.doesNotThrow(() => { const r = f(3); CHECK });",
];

/** Plain data that every program could return. */
export const wrongs = [
  ...[
    "0",
    "1",
    "-1",
    "7",
    "NaN",
    "Infinity",
    "0n",
    "''",
    "'a'",
    "'abc'",
    "true",
    "false",
    "null",
    "undefined",
    "[]",
    "[1]",
    "[1, 2, 3]",
  ],
  ...[
    "{}",
    "({ a: 1 })",
    "({ length: 3 })",
    "new Map()",
    "new Map([['a', 1]])",
    "new Set()",
    "new Set([1, 2, 3])",
    "new Date(0)",
  ],
];

const results = [
  ...[
    "true",
    "false",
    "0",
    "1",
    "3",
    "8",
    "-1",
    "''",
    "'a'",
    "[]",
    "[1, 2, 3]",
    "undefined",
    "null",
    "this",
    "V",
    "a[0]",
    "a.at(-1)",
    "a",
    "a.length",
  ],
  ...[
    "() => true",
    "(...b) => b[0]",
    "() => 0",
    "new E0()",
    "[][Symbol.iterator]()",
    "[1, 2, 3].values()",
    "{ done: true }",
    "new Map()",
    "new Set(a)",
  ],
  ...[
    "({ next: () => ({ done: true }) })",
    "(n++ ? [] : [1, 2, 3])",
    "(n++ ? 0 : 3)",
    "[n++, n++, n++].values()",
    "{ throw new TypeError('no') }",
    "new Proxy(() => true, {})",
  ],
];

const usual = ["true", "0", "3", "a[0]", "[].values()", "this", "() => true"];

const names = [
  ...[
    "valueOf",
    "toString",
    "toJSON",
    "then",
    "next",
    "length",
    "size",
    "equals",
    "alpha",
    "0",
    "1",
    "2",
    "constructor",
    "done",
    "value",
    "name",
  ],
  ...[
    "[Symbol.toPrimitive]",
    "[Symbol.iterator]",
    "[Symbol.toStringTag]",
    "[Symbol.match]",
    "[Symbol.isConcatSpreadable]",
    "[Symbol.species]",
  ],
  ...[Array, String, Map, Set, Number].flatMap(({ prototype }) => Object.getOwnPropertyNames(prototype)),
];

const bases = [
  "",
  "",
  "",
  "extends Array",
  "extends Map",
  "extends Set",
  "extends String",
  "extends Number",
  "extends Date",
  "extends Function",
];

const shapes = [
  "const f = () => new E0();",
  "const f = () => new E0();",
  "const f = E0;",
  "function f() { return E0.prototype; }",
  "function* f() { yield new E0(); }",
  "const f = () => [new E0(), new E0(), new E0()];",
  "const f = () => ({ alpha: new E0(), a: new E0() });",
  "const f = () => new Proxy(new E0(), { get: (t, k, ...a) => G, has: () => true, ownKeys: () => [] });",
  "const f = () => new Proxy(function () {}, { get: (t, k, ...a) => G, apply: (...a) => G, has: () => true });",
  "const f = () => new Proxy([], { get: (t, k, ...a) => (k in t ? t[k] : G), has: () => true });",
  "const f = () => new Map([['a', new E0()]]);",
  "const f = () => Object.assign(() => true, { get: () => 1, has: () => true, includes: () => true });",
  "const f = () => ({ ...LITERAL });",
  "const f = () => new (class extends Error { message = 'no'; get stack() { return ''; } })();",
];

export function forging(random: () => number): Forging {
  const pick = <Value>(values: readonly Value[]) => values[Math.floor(random() * values.length)] as Value;
  const number = () => Math.floor(random() * 1e9) + 1e6;
  const word = () => Array.from({ length: 8 }, () => pick([..."bcdefghijk"])).join("");
  const expected = {
    number: () => `${number()}`,
    string: () => JSON.stringify(word()),
    array: () => `[${number()}, ${number()}, ${number()}]`,
    map: () => `new Map([["${word()}", ${number()}], ["${word()}", ${number()}]])`,
    set: () => `new Set([${number()}, ${number()}, ${number()}])`,
    record: () => `({ alpha: ${number()}, ${word()}: ${number()} })`,
  };
  const kind = pick(Object.keys(checks)) as keyof typeof checks;
  const check = pick(checks[kind].split(/;(?=\w+[.(!]|if |for |const |switch |r\.)(?! )|\n/)).replaceAll(
    /\bC\b/g,
    "f(3)",
  );
  const value = expected[kind]();
  const likely = names.filter((name) => new RegExp(`\\b${name.replaceAll(/\W|Symbol/g, "")}\\b`).test(check));
  const member = () => {
    const often = random() < 0.5 ? likely : names;
    const [name, result, how] = [
      pick(often.length > 0 ? often : names),
      pick(random() < 0.5 ? usual : results),
      random(),
    ];
    const body = result.startsWith("{ throw") ? result : `{ return ${result}; }`;
    if (name === "constructor") return "";
    return how < 0.25
      ? `get ${name}() { const a = []; return (${result.startsWith("{") ? "0" : result}); }`
      : `${name}(...a) ${body}`;
  };
  const members = (separator: string) =>
    Array.from({ length: pick([1, 4, 12, 40]) }, member)
      .filter(Boolean)
      .join(separator);
  const forged = [
    `let n = 0; const V = ${pick(wrongs)};`,
    `class E0 ${pick(bases)} { ${members("\n  ")} }`,
    pick(shapes).replaceAll("G", () => pick(["true", "() => true", "0", "(...b) => b[0]", "() => 0", "3", "k", "n++"])),
  ].join("\n");
  return {
    right: `const f = () => (${value});`,
    forged: forged.replace("...LITERAL", () => members(", ")),
    test: `const E = ${value};\n${pick(settings).replace("CHECK", () => `${check};`)}`,
  };
}
