// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Ajv, type ErrorObject } from "ajv";
import { expect, test } from "vitest";
import { isMap, LineCounter, parseDocument } from "yaml";
import { baseYaml } from "./base-yaml.ts";
import { configJsonSchema } from "./json-schema.ts";
import { shippedFolder } from "./tree.ts";

const schema = configJsonSchema();
const ajv = new Ajv({ allErrors: true, strict: true, strictTypes: false });
const whole = ajv.compile(schema);
const ofRllm = ajv.compile((schema.properties as Record<string, object>).rllm!);

const read = (file: string) => readFileSync(file, "utf8");

/** The mistakes that an editor would mark in a YAML text: line and message. */
function marks(text: string, validate = whole): string[] {
  const lines = new LineCounter();
  const document = parseDocument(text, { lineCounter: lines });
  validate(document.toJS());
  return [...new Set((validate.errors ?? []).map((error) => mark(error)))];

  function mark({ instancePath, params, message }: ErrorObject): string {
    const path = instancePath.split("/").slice(1);
    const extra = (params as { additionalProperty?: string }).additionalProperty;
    const parent = document.getIn(extra === undefined ? path.slice(0, -1) : path, true) ?? document.contents;
    const name = extra ?? path.at(-1);
    const pair = isMap(parent) ? parent.items.find(({ key }) => String(key) === name) : undefined;
    const at = (pair?.key as { range?: number[] } | undefined)?.range?.[0] ?? 0;
    return `${lines.linePos(at).line}: ${name}: ${extra === undefined ? message : "unknown"}`;
  }
}

test.each(["unified.yaml", ...readdirSync(join(shippedFolder, "rllm/backend")).map((name) => `rllm/backend/${name}`)])(
  "config/%s matches the schema",
  (name) => {
    expect(marks(read(join(shippedFolder, name)))).toEqual([]);
  },
);

test("config/rllm/base.yaml matches the schema of rllm", () => {
  expect(marks(baseYaml(), ofRllm)).toEqual([]);
});

test("a mistyped key and a wrong value are reported at their lines", () => {
  const text = [
    "rllm:",
    "  rollout:",
    "    n: 8",
    "    n_vall: 2",
    "training:",
    "  lerning_rate: 1e-4",
    "modell: {}",
    "data:",
    "  shuffle: perhaps",
  ].join("\n");
  expect(marks(text)).toEqual(
    expect.arrayContaining([
      "4: n_vall: unknown",
      "6: lerning_rate: unknown",
      "7: modell: unknown",
      "9: shuffle: must be boolean",
    ]),
  );
});

test("references, ??? and empty sections are allowed in place of any value", () => {
  const text = [
    "defaults: [/ppo_trainer, _self_]",
    "hydra: {searchpath: ['pkg://verl.trainer.config']}",
    "rllm:",
    "  rollout: {n: '${training.group_size}', train: {presence_penalty: 0.5}}",
    "  trainer:",
    "training: {learning_rate: '${oc.env:RATE,1e-4}', group_size: ???}",
    "actor_rollout_ref: {rollout: {top_k: 30}, model: {path: x}}",
  ].join("\n");
  expect(marks(text)).toEqual([]);
});

test("hover text has the meaning, the reason if a key has no effect, and differences between documents", () => {
  const at = (...names: string[]) =>
    names.reduce<{ properties?: Record<string, object>; description?: string }>(
      (section, name) => section.properties![name]!,
      schema,
    ).description;
  expect(at("rllm", "trainer", "test_freq")).toContain("rLLM's documentation says epochs");
  expect(at("rllm", "remote_runtime", "agentcore")).toContain("Has no effect: agents in AWS's AgentCore");
});
