import fc from "fast-check";
import { expect, it } from "vitest";
import { numbersOf, toJson } from "./json-lines.ts";

it("keeps every number, finite or not", () => {
  const metrics = fc.dictionary(
    fc.string().filter((name) => name !== "__proto__"),
    fc.double().map((value) => value + 0), // JSON has no -0.
  );
  fc.assert(
    fc.property(metrics, (metrics) => {
      expect(numbersOf(JSON.parse(toJson(metrics)))).toEqual(metrics);
    }),
  );
  expect(numbersOf({ step: 1, kind: "validation", nested: {}, text: "NaN of it" })).toEqual({ step: 1 });
});

it("keeps every 32-bit float of a typed array exactly, in few digits", () => {
  fc.assert(
    fc.property(fc.float32Array(), (values) => {
      const read = (JSON.parse(toJson({ values })) as { values: (number | string)[] }).values;
      expect(Float32Array.from(read, Number)).toEqual(values.map((value) => value + 0)); // JSON has no -0.
    }),
  );
  expect(toJson(Float32Array.of(-0.1, 0.7, 1e-8))).toBe("[-0.1,0.7,1e-8]");
  expect(toJson({ tokens: Int32Array.of(1, 2) })).toBe('{"tokens":[1,2]}');
});
