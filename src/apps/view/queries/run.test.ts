import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { composeConfig } from "../../../config/compose.ts";
import { toYaml } from "../../../config/yaml.ts";
import { temporaryFolder } from "../../../temporary-folder.fixture.ts";
import { openRunFolder, originsFile } from "../../../tracking/run-folder.ts";
import { runConfig } from "./run.ts";

const folder = temporaryFolder("run-config");
const file = join(folder, "default.yaml");
writeFileSync(file, "data:\n  shuffle: false\n");
const { stored, origins } = composeConfig({
  files: [file],
  input: { model: { name: "tiny" } },
  // biome-ignore lint/suspicious/noTemplateCurlyInString: a reference of the configuration
  overrides: ["training.learning_rate=1e-4", "rllm.trainer.experiment_name=${model.name}"],
});
const yaml = toYaml(stored, origins, { unresolved: true });
const run = openRunFolder(join(folder, "run"));
run.writeConfig(yaml, origins);
run.close();

const kindOf = (key: string) => runConfig(run.path).entries.find((entry) => entry.key === key)?.origin?.kind;
const kinds = {
  "rllm.backend": "default",
  "model.name": "script",
  "data.shuffle": "file",
  "training.learning_rate": "override",
  "rllm.trainer.experiment_name": "override",
};

test.each(Object.entries(kinds))("the origin of %s is of the kind %s", (key, kind) => expect(kindOf(key)).toBe(kind));

test("the origins of all values are as recorded", () => {
  const chosen = runConfig(run.path).entries.filter(({ origin }) => origin?.kind !== "default");
  const recorded = JSON.parse(readFileSync(join(run.path, originsFile), "utf8"));
  expect(Object.fromEntries(chosen.map(({ key, origin }) => [key, origin?.kind]))).toEqual(recorded);
});

test.each([
  ["is missing", () => rmSync(join(run.path, originsFile))],
  ["is not JSON", () => writeFileSync(join(run.path, originsFile), "{")],
  ["has unknown kinds", () => writeFileSync(join(run.path, originsFile), '{"rllm.backend": "<b>"}')],
  ["is a list", () => writeFileSync(join(run.path, originsFile), "[]")],
])("without origins.json the text tells a default: it %s", (_, damage) => {
  damage();
  expect(kindOf("rllm.backend")).toBe("default");
  expect(kindOf("training.learning_rate")).toBe("unknown");
});
