/** A model's text becomes the value that the tool's schema means. */
import { expect, test } from "vitest";
import { callFromTexts } from "./argument-types.ts";

const string = { type: "string" };
const nothing = { type: "null" };
const defs = {
  Code: string,
  Maybe: { anyOf: [{ $ref: "#/$defs/Code" }, nothing] },
  Loop: { anyOf: [{ $ref: "#/$defs/Loop" }, { $ref: "#/$defs/Loop" }] },
  "a/b": string,
};

const read = (schema: object, text: string) => {
  const parameters = { type: "object", properties: { value: schema }, $defs: defs };
  const call = callFromTexts("put", [["value", text]], [{ name: "put", parameters }]);
  return typeof call === "string" ? call : call.arguments.value;
};

test.each<[string, object, [text: string, value: unknown][]]>([
  [
    "a string",
    string,
    [
      ["5", "5"],
      ["null", "null"],
      ["", ""],
      [" x ", " x "],
    ],
  ],
  [
    "a nullable string",
    { anyOf: [string, nothing] },
    [
      ["5", "5"],
      ["null", null],
      ["None", null],
      ["true", "true"],
    ],
  ],
  [
    "a list of types",
    { type: ["null", "string"] },
    [
      ["[1]", "[1]"],
      ["null", null],
    ],
  ],
  ["oneOf", { oneOf: [{ type: "string", maxLength: 3 }, string] }, [["1e5", "1e5"]]],
  [
    "OpenAPI's nullable",
    { type: "string", nullable: true },
    [
      ["7", "7"],
      ["null", null],
    ],
  ],
  [
    "a reference",
    { $ref: "#/$defs/Code" },
    [
      ["007", "007"],
      ["null", "null"],
    ],
  ],
  [
    "a reference to a nullable reference",
    { $ref: "#/$defs/Maybe" },
    [
      ["007", "007"],
      ["null", null],
    ],
  ],
  ["a reference with an escaped name", { $ref: "#/$defs/a~1b" }, [["1", "1"]]],
  [
    "a reference to itself",
    { $ref: "#/$defs/Loop" },
    [
      ["1", 1],
      ["x", "x"],
    ],
  ],
  ["an unknown reference", { $ref: "other.json#/Code" }, [["1", 1]]],
  ["allOf", { allOf: [{ description: "a code" }, string] }, [["1", "1"]]],
  ["allOf that narrows", { allOf: [{ type: ["string", "integer"] }, string] }, [["1", "1"]]],
  ["const", { const: "42" }, [["42", "42"]]],
  ["enum of strings", { enum: ["1", "2"] }, [["1", "1"]]],
  ["enum of numbers", { enum: [1, 2] }, [["1", 1]]],
  [
    "enum of both",
    { enum: [1, "2", null] },
    [
      ["1", 1],
      ["2", "2"],
      ["null", null],
    ],
  ],
  [
    "an integer",
    { type: "integer" },
    [
      ["5", 5],
      ["x", "x"],
      ["12345678901234567890", "12345678901234567890"],
    ],
  ],
  [
    "a nullable integer",
    { anyOf: [{ type: "integer" }, nothing] },
    [
      ["5", 5],
      ["null", null],
      ["None", null],
    ],
  ],
  [
    "an integer or a string",
    { type: ["integer", "string"] },
    [
      ["5", 5],
      ["5.5", "5.5"],
      ["true", "true"],
    ],
  ],
  [
    "a boolean",
    { type: "boolean" },
    [
      ["True", true],
      ["false", false],
    ],
  ],
  [
    "an object or a string",
    { anyOf: [{ type: "object" }, string] },
    [
      ['{"a": 1}', { a: 1 }],
      ["[1]", "[1]"],
    ],
  ],
  ["a list", { type: "array" }, [["[1, 'a']", [1, "a"]]]],
  [
    "anything",
    {},
    [
      ["5", 5],
      ["a", "a"],
    ],
  ],
  ["a schema that contradicts itself", { allOf: [string, nothing] }, [["5", 5]]],
])("%s", (_, schema, cases) => {
  for (const [text, value] of cases) expect(read(schema, text), text).toEqual(value);
});

test("properties of combined, referenced and open schemas", () => {
  const parameters = {
    allOf: [{ $ref: "#/$defs/Base" }, { properties: { b: string } }],
    patternProperties: { "^x_": string },
    additionalProperties: { type: "integer" },
    $defs: { Base: { properties: { a: string } } },
  };
  const texts = [..."ab"].map((key) => [key, "1"] as const);
  const call = callFromTexts("put", [...texts, ["x_1", "1"], ["c", "1"]], [{ name: "put", parameters }]);
  expect(call).toMatchObject({ arguments: { a: "1", b: "1", x_1: "1", c: 1 } });
});
