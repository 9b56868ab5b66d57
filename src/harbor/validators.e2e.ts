/** Harbor's own Python code accepts what Hone writes, and has the keys that Hone checks. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { prepareEnvironment } from "../python/prepare.ts";
import { atifEpisode } from "./atif.fixture.ts";
import { toAtif } from "./atif.ts";
import { harborTasks } from "./harbor-tasks.ts";
import { makeTask } from "./make-tasks.fixture.ts";
import { taskShape } from "./task-files.ts";

const python = await prepareEnvironment("harbor");

test("Harbor's validator accepts the ATIF document of an episode", async () => {
  const folder = mkdtempSync(join(tmpdir(), "atif-"));
  try {
    const file = join(folder, "trajectory.json");
    writeFileSync(file, JSON.stringify(toAtif(await atifEpisode())));
    const validate = `
import sys
from harbor.utils.trajectory_validator import TrajectoryValidator
validator = TrajectoryValidator()
print(validator.validate(sys.argv[1], validate_images=False), validator.errors)`;
    expect(execFileSync(python, ["-c", validate, file], { encoding: "utf8" }).trim()).toBe("True []");
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

test("the keys of task.toml are those of Harbor's model, and its older ones", () => {
  const dump = `
import json
from harbor.models.task.config import TaskConfig
print(json.dumps(TaskConfig.model_json_schema()))`;
  const schema = JSON.parse(execFileSync(python, ["-c", dump], { encoding: "utf8" }));
  const keys = (name: string) => Object.keys(schema.$defs[name].properties).sort();
  const own = (shape: object, ...older: string[]) =>
    Object.keys(shape)
      .filter((key) => !older.includes(key))
      .sort();
  expect(own(taskShape, "version")).toEqual(Object.keys(schema.properties).sort());
  expect(own(taskShape.agent)).toEqual(keys("AgentConfig"));
  expect(own(taskShape.environment, "memory", "storage")).toEqual(keys("EnvironmentConfig"));
  expect(own(taskShape.environment.healthcheck)).toEqual(keys("HealthcheckConfig"));
  expect(own(taskShape.environment.mcp_servers[0])).toEqual(keys("MCPServerConfig"));
  expect(own(taskShape.environment.tpu)).toEqual(keys("TpuSpec"));
  expect(own(taskShape.verifier)).toEqual(keys("VerifierConfig"));
  expect(own(taskShape.verifier.collect[0])).toEqual(keys("VerifierCollectConfig"));
  expect(own(taskShape.steps[0])).toEqual(keys("StepConfig"));
  expect(own(taskShape.task)).toEqual(keys("PackageInfo"));
  expect(own(taskShape.solution)).toEqual(keys("SolutionConfig"));
});

test("Harbor's client finds the tasks of a data set in a registry file", () => {
  const folder = mkdtempSync(join(tmpdir(), "registry-"));
  try {
    const registry = join(folder, "registry.json");
    const dataset = (version: string, ...words: string[]) => ({
      ...{ name: "words", version, description: "" },
      tasks: words.map((word) => ({ name: word, path: makeTask(folder, "scratch", word) })),
    });
    writeFileSync(registry, JSON.stringify([dataset("1.0", "one"), dataset("2.0", "two", "three")]));
    const tasks = harborTasks("words@2.0", { registry });
    expect([tasks.name, tasks.size, tasks.task(1).row.name]).toEqual(["words@2.0", 2, "write-three"]);
    expect(tasks.task(0).row.instruction).toContain("two");
    expect(() => harborTasks("words@3.0", { registry })).toThrow(/Version 3.0 of dataset words not found/);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
