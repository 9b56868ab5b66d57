import { execFileSync } from "node:child_process";
import { mkdirSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { readYamlFile } from "../../config/yaml/read-yaml.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { beforeAfter } from "../records/before-after.ts";
import { findCheckpoint, savedConfigFile } from "./open-checkpoint.ts";

const root = temporaryFolder("odd-files");

test("FIFOs and devices in a run folder neither block resuming, chatting and exporting, nor the report at the end", async () => {
  const checkpoint = join(root, "checkpoints", "step-000001");
  mkdirSync(checkpoint, { recursive: true });
  mkdirSync(join(root, "episodes"));
  for (const file of ["checkpoints/step-000001/checkpoint.json", "episodes/step-000000-validation.jsonl"]) {
    execFileSync("mkfifo", [join(root, file)]);
  }
  await expect(findCheckpoint(checkpoint)).rejects.toThrow("checkpoint.json is a FIFO");
  await expect(findCheckpoint(root)).rejects.toThrow("checkpoint.json is a FIFO");
  expect(beforeAfter(root, 1)).toEqual([]);
  symlinkSync("/dev/zero", join(root, "config.yaml"));
  expect(() => savedConfigFile(root)).toThrow("config.yaml is a link, which is not followed");
  expect(readYamlFile(join(root, "config.yaml")).mistakes).toMatchObject([
    { message: expect.stringContaining("more than 1000000 bytes") },
  ]);
});
