// Slow: templates that loop until their time limit.
import { expect, test } from "vitest";
import { UserError } from "../base/errors.ts";
import { compileTemplate } from "./template.ts";

const render = (plain: string, count = 1) =>
  compileTemplate({ plain }, {}, "the-model").renderText(
    Array.from({ length: count }, (_, index) => ({ role: "user" as const, content: `message ${index}` })),
    {},
  );

test.each([
  ["a range without end", "{% for i in range(1000000000000) %}a{% endfor %}"],
  ["a range of tiny steps", "{% for i in range(0, 1, 0.0000000001) %}a{% endfor %}"],
  ["nested loops", "{% for i in range(3000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}"],
  [
    "a text that doubles",
    "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
  ],
  [
    "a list that doubles",
    "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
  ],
])("a chat template with %s gives one clear error and does not end the process", (_, template) => {
  expect(() => render(template)).toThrow(
    /^the chat template of the-model refuses these messages.*(its loops run over|it creates a)/,
  );
});

test("a template may loop over ten thousand messages, also after an endless one", () => {
  expect(() => render("{% for i in range(1000000000) %}{% endfor %}")).toThrow(UserError);
  const text = render(
    "{% for m in messages %}{% for i in range(9) %}{{ m.content[i] }}{% endfor %}{% endfor %}",
    10_000,
  );
  expect(text.length).toBe(90_000);
  expect(render("{{ range(2, 8, 3) | join(',') }} {{ range(3) | join(',') }} {{ range(3, 0, -1) | join(',') }}")).toBe(
    "2,5 0,1,2 3,2,1",
  );
});
