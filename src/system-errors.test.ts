import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { RunError, UserError } from "./errors.ts";
import { describeSystemFailure, readable } from "./system-errors.ts";
import { temporaryFolder } from "./temporary-folder.fixture.ts";
import { readCheckpoint } from "./trainer/checkpoints/checkpoints.ts";
import { openToy, toy } from "./trainer/toy-experiment.fixture.ts";
import { train } from "./trainer/train.ts";

const root = temporaryFolder("system-errors");

/** A run folder in which this name is a folder (or a file) although Hone writes a file (or a folder) there. */
function spoiled(name: string, kind: "file" | "folder"): string {
  const run = join(root, `${kind}-${name.replaceAll("/", "-")}`);
  mkdirSync(run);
  if (name !== "config.yaml") writeFileSync(join(run, "config.yaml"), "");
  if (kind === "folder") mkdirSync(join(run, name), { recursive: true });
  else writeFileSync(join(run, name), "");
  return run;
}

describe("an unusable run folder is reported as one sentence with its path, without a stack trace", () => {
  test.each([
    ["below a file", () => join(spoiled("file", "file"), "file/run"), "ENOTDIR"],
    ["with a name too long", () => join(root, "n".repeat(300)), "ENAMETOOLONG"],
    ["with a folder as metrics.jsonl", () => spoiled("metrics.jsonl", "folder"), "EISDIR"],
    ["with a folder as config.yaml", () => spoiled("config.yaml", "folder"), "EISDIR"],
    ["with a folder as log.txt", () => spoiled("log.txt", "folder"), "EISDIR"],
    ["with a folder as .lock", () => spoiled(".lock", "folder"), "EISDIR"],
    ["with a folder as checkpoint.json", () => spoiled("checkpoints/step-000002/checkpoint.json", "folder"), "EISDIR"],
    ["with a file as checkpoints", () => spoiled("checkpoints", "file"), "EEXIST"],
    ["with a file as episodes", () => spoiled("episodes", "file"), "EEXIST"],
  ])("%s", async (_, make, code) => {
    const overrides = [`rllm.trainer.run_dir=${JSON.stringify(make())}`];
    const error = readable(await train(toy(), { engine: openToy(), overrides }).catch((thrown: unknown) => thrown));
    expect(error).toBeInstanceOf(UserError);
    const { message, hint } = error as UserError;
    expect([message, hint]).toEqual([expect.stringMatching(`^${root}.*\\(${code}\\)$`), expect.any(String)]);
    expect(message.length).toBeLessThan(500);
  });
});

describe("a checkpoint.json with other content is reported as damaged", () => {
  const content = { format: 1, step: 2, state: {}, metrics: {} };
  test.each<[string, unknown, string]>([
    ["null", null, "is not a JSON object"],
    ["a list", [1], "is not a JSON object"],
    ["a null entry", { ...content, files: { "policy/a": null } }, "does not describe policy/a"],
    ["an entry without a size", { ...content, files: { "policy/a": {} } }, "does not describe policy/a"],
    ["state that is null", { ...content, state: null, files: {} }, "has no step, state"],
  ])("%s", async (name, value, message) => {
    const folder = join(root, `checkpoint-${name}`);
    mkdirSync(folder);
    writeFileSync(join(folder, "checkpoint.json"), JSON.stringify(value));
    await expect(readCheckpoint(folder)).rejects.toThrow(message);
    await expect(readCheckpoint(folder)).rejects.toBeInstanceOf(UserError);
  });
});

test("failures that a valid run can have exit with 1, the user's mistakes with 2", () => {
  const exitCode = (code: string) => describeSystemFailure({ code, path: "/a" })?.exitCode;
  expect(["ENOSPC", "EDQUOT", "EROFS", "EFBIG", "EMFILE", "EIO"].map(exitCode)).toEqual([1, 1, 1, 1, 1, 1]);
  expect(["EACCES", "EPERM", "ENAMETOOLONG", "ENOTDIR", "EISDIR"].map(exitCode)).toEqual([2, 2, 2, 2, 2]);
  expect(describeSystemFailure({ code: "constructor" })).toBeUndefined();
  expect(describeSystemFailure({ code: "ENOSPC", path: "/a" })).toBeInstanceOf(RunError);
});
