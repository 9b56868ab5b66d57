// Slow: each run has its own process.

import { execFile } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { readLines } from "../json-lines.fixture.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import type { Episode } from "../trajectories/types.ts";

const here = (file: string) => JSON.stringify(new URL(file, import.meta.url).href);
const root = temporaryFolder("unhandled");

/** A run of the toy model in a process of its own, with this code before it and this code in each rollout. */
function runToy(name: string, before: string, inRollout: string): Promise<{ code: unknown; output: string }> {
  const script = join(root, `${name}.mts`);
  const folder = join(root, name);
  writeFileSync(
    script,
    `import { setTimeout as sleep } from "node:timers/promises";
import { reportError } from ${here("../apps/cli/report-error.ts")};
import { openToy, toy } from ${here("./toy-experiment.fixture.ts")};
import { train } from ${here("./train.ts")};
const never = new Promise<never>(() => {});
let begun = false;
const onceBegun = (act) => {
  const timer = setInterval(() => { if (begun) { clearInterval(timer); act(); } }, 5);
};
async function workflow({ row }, { model, rollout, stage, signal }) {
  await model.chat([{ role: "user", content: "b" }]);
  begun = true;
  ${inRollout}
  return rollout / 4;
}
const config = { rllm: { trainer: { logger: ["console"] }, workflow: { raise_on_error: false, retry_limit: 0 } } };
const experiment = toy(config as never, undefined, workflow as never);
${before}
try {
  await train(experiment, { engine: openToy(), overrides: [${JSON.stringify(`rllm.trainer.run_dir=${folder}`)}] });
} catch (error) {
  process.exitCode = reportError(error);
}`,
  );
  return new Promise((resolve) => {
    execFile(process.execPath, ["--import", "tsx", script], (error, output, errors) => {
      resolve({ code: error === null ? 0 : error.code, output: output + errors });
    });
  });
}

test.concurrent("stray errors of a rollout fail that rollout and not the run", { timeout: 60_000 }, async () => {
  const { code, output } = await runToy(
    "rollouts",
    "",
    `if (row.index % 4 === 0 && rollout === 0) { setTimeout(() => { throw new Error("of a timer"); }, 1); await never; }
  if (rollout === 1) { void Promise.reject(new Error("of a promise")); await never; }
  if (rollout === 2) { stage("reward"); process.exit(0); }`,
  );
  expect([code, output]).toEqual([0, expect.stringContaining("step 6/6")]);
  const episodes = readLines<Episode>(join(root, "rollouts/episodes/step-000001.jsonl"));
  const failures = episodes.map(({ failure }) => failure);
  const reported = new Set(failures.map((failure) => failure && `${failure.boundary}: ${failure.message}`));
  expect(reported).toEqual(
    new Set([
      undefined,
      "workflow: workflow threw Error: of a timer",
      "workflow: workflow threw Error: of a promise",
      "reward: reward threw Error: process.exit(0) was called in a rollout",
    ]),
  );
});

test.concurrent("an error outside of rollouts saves the run, reports it and exits with 1", {
  timeout: 60_000,
}, async () => {
  const { code, output } = await runToy(
    "outside",
    `onceBegun(() => { throw new TypeError("nobody awaits me"); });`,
    "await sleep(60);",
  );
  expect([code, output]).toEqual([
    1,
    expect.stringContaining("code outside of any rollout failed: TypeError: nobody awaits me"),
  ]);
  expect(output).toMatch(/outside\.mts:\d+/);
  expect(output).toMatch(/checkpoint .*step-00000\d/);
  expect(output).toContain("--resume");
  expect(output).not.toContain("node:internal");
});

test.concurrent("process.exit(0) outside of rollouts is a failed run, not a silent success", {
  timeout: 60_000,
}, async () => {
  const { code, output } = await runToy("exits", "onceBegun(() => process.exit(0));", "await sleep(60);");
  expect([code, output]).toEqual([1, expect.stringContaining("process.exit(0) was called")]);
  expect(output).toContain("--resume");
});

test.concurrent("errors after a rollout's outcome are one warning and a count", { timeout: 60_000 }, async () => {
  const { code, output } = await runToy("late", "", 'void Promise.reject(new Error("of a promise"));');
  expect(code).toBe(0);
  expect(output.match(/failed after its outcome was known: Error: of a promise/g)).toHaveLength(1);
  expect(output).toMatch(/\d+ more: Error: of a promise \(in rollouts whose outcome was known\)/);
});
