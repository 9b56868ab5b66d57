/** Harbor's own Python code accepts what Hone writes, and has the keys that Hone checks. */
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { prepareEnvironment } from "../../base/python.ts";
import { atifEpisode } from "./atif.fixture.ts";
import { toAtif } from "./atif.ts";
import { makeTask } from "./make-tasks.fixture.ts";
import { harborTasks, taskShape } from "./tasks.ts";

const python = await prepareEnvironment("harbor");

test("Harbor's validator accepts the ATIF document of an episode, and its viewer serves it", async () => {
  const folder = mkdtempSync(join(tmpdir(), "atif-"));
  try {
    const trial = join(folder, "job", "trial");
    mkdirSync(join(trial, "agent"), { recursive: true });
    const file = join(trial, "agent", "trajectory.json");
    const document = toAtif(await atifEpisode());
    writeFileSync(file, JSON.stringify(document));
    writeFileSync(join(folder, "job", "config.json"), '{"job_name": "job"}');
    writeFileSync(join(trial, "config.json"), '{"task": {"path": "task"}, "trial_name": "trial"}');
    const script = `
import sys
from pathlib import Path
from harbor.utils.trajectory_validator import TrajectoryValidator
from harbor.viewer.server import create_app
from starlette.testclient import TestClient
validator = TrajectoryValidator()
print(validator.validate(sys.argv[1], validate_images=False), validator.errors)
viewer = TestClient(create_app(Path(sys.argv[2])))
print([job["name"] for job in viewer.get("/api/jobs").json()["items"]])
print(viewer.get("/api/jobs/job/trials/trial/trajectory").text)`;
    const lines = execFileSync(python, ["-c", script, file, folder], { encoding: "utf8" }).trim().split("\n");
    expect(lines.slice(0, 2)).toEqual(["True []", "['job']"]);
    expect(JSON.parse(lines[2]!)).toEqual(document);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

test("a verifier's reward is read strictly, whatever code of the agent it ran", () => {
  const folder = mkdtempSync(join(tmpdir(), "rewards-"));
  const script = `
import json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from types import SimpleNamespace
from hone_harbor import rewards
read = {".json": rewards.from_json, ".txt": rewards.from_text}
for name in sys.argv[2:]:
    path = Path(name)
    try:
        print(json.dumps(read[path.suffix](SimpleNamespace(trial_paths=SimpleNamespace(reward_json_path=path, reward_text_path=path)))))
    except Exception as error:
        print(f"{type(error).__name__}: {error}")`;
  const invalid = (why: string) => new RegExp(`^VerifierOutputParseError: .*${why}`);
  const cases: [name: string, content: string, expected: object | RegExp][] = [
    ["a.txt", " -0.5\n", { reward: -0.5 }],
    ["b.txt", "1e999", invalid("not a finite number in 32 bits")],
    ["c.txt", "nan", invalid("not a finite number")],
    ["d.txt", `1${" ".repeat(70_000)}`, invalid("longer than 65536 bytes")],
    ["e.txt", "\n", /^RewardFileEmptyError/],
    ["f.json", '{"reward": 1, "tests": 0.5}', { reward: 1, tests: 0.5 }],
    ["g.json", '{"reward": NaN}', invalid("not a finite number")],
    ["h.json", '{"reward": -Infinity}', invalid("not a finite number")],
    ["i.json", '{"reward": 1e308}', invalid("not a finite number in 32 bits")],
    ["j.json", `{"reward": 1${"0".repeat(400)}}`, invalid("not a finite number in 32 bits")],
    ["k.json", '{"reward": 0, "reward": 1}', invalid("a key is there twice")],
    ["l.json", '{"reward": true}', invalid("'True' is not a number")],
    ["m.json", '{"reward": {"a": 1}}', invalid("is not a number")],
    ["n.json", "1", invalid("not an object of numbers")],
    ["o.json", "[".repeat(60_000), invalid("has no valid reward")],
    ["p.json", "{", invalid("has no valid reward")],
  ];
  try {
    for (const [name, content] of cases) writeFileSync(join(folder, name), content);
    symlinkSync(join(folder, "f.json"), join(folder, "q.json"));
    mkdirSync(join(folder, "r.json"));
    const all = [...cases.map(([name]) => name), "q.json", "r.json"].map((name) => join(folder, name));
    const worker = join(import.meta.dirname, "../../../worker");
    const lines = execFileSync(python, ["-c", script, worker, ...all], { encoding: "utf8" })
      .trim()
      .split("\n");
    for (const [index, [, , expected]] of cases.entries()) {
      if (expected instanceof RegExp) expect(lines[index]).toMatch(expected);
      else expect(JSON.parse(lines[index]!)).toEqual(expected);
    }
    expect(lines.slice(cases.length)).toEqual([
      expect.stringContaining("q.json cannot be read: Too many levels of symbolic links"),
      expect.stringContaining("r.json is not a file"),
    ]);
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
