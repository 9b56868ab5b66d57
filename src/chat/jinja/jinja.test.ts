import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { compileJinja } from "./jinja.ts";
import { fromJson } from "./texts.ts";
import type { Dict } from "./values.ts";

/** Recorded with transformers by scripts/proofs/templates/fuzz.py. */
const written = readFileSync(new URL("../fixtures/jinja.json", import.meta.url), "utf8");
const { cases } = JSON.parse(written) as { cases: { template: string; text?: string; error?: string }[] };
const variables = (fromJson(written) as Dict).get("variables") as Dict;

test.each(cases)("$template", ({ template, text }) => {
  const render = () => compileJinja(template).render(variables, 1e6);
  if (text === undefined) expect(render).toThrow();
  else expect(render()).toBe(text);
});

const render = (source: string, given: Record<string, unknown> = {}) => compileJinja(source).render(given, 1e6);

test("numbers and the order of keys stay as they are in JSON", () => {
  const text = '{"name": "x", "404": "a", "price": 100.0, "small": 1e-07, "id": 2512292042121000001}';
  expect(render("{{ v | tojson }}", { v: fromJson(text) })).toBe(text);
  expect(render("{{ v }}", { v: { a: 1, b: 1.5, c: undefined, d: null } })).toBe("{'a': 1, 'b': 1.5, 'd': None}");
});

test.each([
  ["%d %b %Y", "07 Mar 2026"],
  ["%A %-d. %B, %H:%M:%S %p %I", "Saturday 7. March, 16:05:09 PM 04"],
  ["%j %U %W %V %G %y %F %T %D %e %%", "066 09 09 10 2026 26 2026-03-07 16:05:09 03/07/26  7 %"],
])("strftime_now(%j)", (format, expected) => {
  const now = new Date(2026, 2, 7, 16, 5, 9);
  expect(compileJinja(`{{ strftime_now('${format}') }}`).render({}, 1e6, now)).toBe(expected);
});

test.each([
  ["{{ 'a' | nofilter }}", "line 1: no filter is named nofilter"],
  ["\n{% for x in y %}{{ x is notest }}{% endfor %}", "line 2: no test is named notest"],
  ["{% if 1 %}{{ 1 is notest }}{% endif %}", "No test named 'notest' found"],
  ["{% include 'x' %}", "line 1: {% include %} needs other templates"],
  ["{% for x in y %}", "line 1: {% endfor %} is missing"],
  ["a\n{{ 'x }}", "line 2: a string has no end"],
  ["{{ range(3).append(1) }}", "UndefinedError"],
  ["{{ [].append(1) }}", "is unsafe"],
  ["{% set ns = namespace(_x=1) %}", "SecurityError"],
  ["{{ raise_exception('no') }}", /^no$/],
])("%j is refused", (source, message) => {
  expect(() => render(source)).toThrow(message);
});
