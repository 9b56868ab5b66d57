// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
// Slow: hundreds of random configurations.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { expect, test } from "vitest";
import { composeConfig } from "../config/compose.ts";
import { configJsonSchema } from "../config/json-schema.ts";
import { backendFacts } from "../config/schema/backends.ts";
import { type ConfigInput, configKeys, configSchema, configSections, openSections } from "../config/schema.ts";
import { valueAt } from "../config/tree.ts";
import { toYaml } from "../config/yaml.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { explainConfig } from "./check.ts";

const folder = temporaryFolder("explain");

test("every key has a type in words, a valid default and a description", () => {
  for (const { key, type, default: value, description, schema } of configKeys.values()) {
    expect(`${key}: ${description}`).toMatch(/: [A-Za-z].*\.$/);
    expect(type).not.toMatch(/anything|undefined|9007199254740991/);
    expect(schema.safeParse(value).success).toBe(true);
    expect(value).toEqual(valueAt(configSchema.parse({}), key));
  }
  expect(configSections).toContain("rllm.algorithm.rollout_correction");
  expect(configSections.has("model.name")).toBe(false);
});

test.each([
  ["rllm.rollout.n", "integer >= 1"],
  ["rllm.trainer.total_batches", "integer or null"],
  ["training.beta1", "number >= 0 and < 1"],
  ["rllm.algorithm.eps_clip_high", "number > 0 or null"],
  ["rllm.algorithm.loss_fn", expect.stringMatching(/^importance_sampling \| ppo .* or another name or null$/)],
  ["rllm.trainer.logger", "list of console | tensorboard | wandb | mlflow | trackio"],
  ["rllm.trainer.val_only", "true or false"],
  ["rllm.trainer.run_dir", "text or null"],
])("%s takes %s", (key, type) => {
  expect(configKeys.get(key)?.type).toEqual(type);
});

test("explains all, a section or one key", () => {
  const composed = composeConfig({ overrides: ["training.eps=1e-7"] });
  expect(explainConfig(composed)).toHaveLength(configKeys.size);
  expect(explainConfig(composed, "training.eps")).toEqual([
    {
      key: "training.eps",
      value: 1e-7,
      origin: { kind: "override", text: "training.eps=1e-7" },
      originText: "command line: training.eps=1e-7",
      default: 1e-8,
      type: "number > 0",
      description: "Adam's epsilon.",
      effect: "takes effect on local",
    },
  ]);
  expect(explainConfig(composed, "sampling").map(({ key }) => key.split(".")[0])).toEqual(Array(8).fill("sampling"));
  expect(() => explainConfig(composed, "eps")).toThrow("unknown key eps; did you mean training.eps");
});

test("each line of the YAML has the origin of its value", () => {
  const { config, origins } = composeConfig({
    overrides: ["rllm.trainer.logger=[console,wandb]", "training.eps=1e-7"],
  });
  const text = toYaml(config, origins);
  expect(text).toContain("    logger: [console, wandb] # command line: rllm.trainer.logger=[console,wandb]\n");
  expect(text).toContain("  eps: 1e-7 # command line: training.eps=1e-7\n");
  expect(text).toContain("  beta1: 0.9 # default\n");
  const lines = text.trimEnd().split("\n");
  expect(lines.filter((line) => line.includes("#"))).toHaveLength(configKeys.size);
});

test("the YAML reads back as the same configuration for any text values", () => {
  const file = join(folder, "resolved.yaml");
  const tricky = fc.constantFrom(
    "null",
    "1e3",
    "~",
    " a ",
    "${model.name}",
    "\\${x}",
    "\\\\${",
    "a\nb",
    "# c",
    "\u2028",
    "\t",
  );
  const text = fc.oneof(tricky, fc.string({ unit: "grapheme", minLength: 1 }), fc.string({ minLength: 1 }));
  const settings = fc.record({
    rllm: fc.record({
      trainer: fc.record({
        project_name: text,
        run_dir: fc.option(text),
        logger: fc.array(fc.constantFrom("console", "wandb")),
      }),
    }),
    training: fc.record({ learning_rate: fc.double({ min: 0, noNaN: true, noDefaultInfinity: true }) }),
  });
  fc.assert(
    fc.property(settings, text, (input, flag) => {
      const config = configSchema.parse(input);
      const origins = new Map([["rllm.trainer.project_name", { kind: "override" as const, text: flag }]]);
      writeFileSync(file, toYaml(config, origins));
      expect(composeConfig({ files: [file] }).config).toEqual(config);
    }),
    { numRuns: 100 },
  );
});

test("the JSON Schema is closed, describes every key and requires none", () => {
  interface Schema {
    properties?: Record<string, Schema>;
    additionalProperties?: unknown;
    required?: string[];
    description?: string;
  }
  const described: string[] = [];
  const walk = (schema: Schema, path: string[]) => {
    if (schema.properties === undefined) {
      if (schema.description) described.push(path.join("."));
      return;
    }
    if (backendFacts.verl.ownSections?.includes(path[0]!) && !configSections.has(path[0]!)) return;
    if (!openSections.has(path.join("."))) expect(schema.additionalProperties).toBe(false);
    expect(schema.required).toBeUndefined();
    for (const [name, child] of Object.entries(schema.properties)) walk(child, [...path, name]);
  };
  walk(configJsonSchema() as Schema, []);
  expect(described).toEqual(expect.arrayContaining([...configKeys.keys()]));
});

test("composing is quick", () => {
  const started = performance.now();
  for (let index = 0; index < 20; index++)
    composeConfig({ overrides: ["training.eps=1e-7"] } as { input?: ConfigInput });
  expect((performance.now() - started) / 20).toBeLessThan(50);
});
