// Slow: each command has its own process.

import { expect, test } from "vitest";
import { runHone } from "./hone.fixture.ts";

function hone(...args: string[]) {
  // Always use the bundled copy of verl's tree, and print plain text even if the environment forces colors.
  const env = { ...process.env, HONE_PYTHON: "no-such-python", CI: "true", FORCE_COLOR: "" };
  const { stdout, stderr, status } = runHone(args, env);
  return { stdout, lines: stderr.split("\n").filter((line) => line !== ""), status };
}

test("standard output contains only the tree; each warning is a line on standard error with both keys", () => {
  const { stdout, lines, status } = hone(
    "config",
    "rllm/backend=verl",
    "algorithm.adv_estimator=rloo",
    "actor_rollout_ref.rollout.n=6",
    "rllm.rollout.n=4",
    "--format",
    "json",
  );
  expect(JSON.parse(stdout)).toMatchObject({
    algorithm: { adv_estimator: "rloo" },
    actor_rollout_ref: { rollout: { n: 4, mode: "async" } },
    rllm: { backend: "verl", rollout: { n: 4 }, algorithm: { adv_estimator: "rloo" } },
  });
  expect(lines.filter((line) => !line.startsWith("note: "))).toEqual([
    "warning[deprecated_native]: algorithm.adv_estimator is the older name of rllm.algorithm.adv_estimator; set rllm.algorithm.adv_estimator instead",
    "warning[conflict]: actor_rollout_ref.rollout.n and rllm.rollout.n differ; rllm.rollout.n wins",
  ]);
  expect(status).toBe(0);
}, 60_000);

test("one key is explained; two configurations are compared; a mistake ends with 2", () => {
  const explained = hone("config", "--explain", "rllm.rollout.n", "rllm/backend=tinker", "training.group_size=4");
  expect(explained.stdout).toContain("forwarded from training.group_size (command line: training.group_size=4)");
  expect(explained.stdout).toContain("effect: takes effect on tinker");
  const compared = hone(
    "config",
    "diff",
    "data.train_batch_size=8",
    "rllm.data.train_batch_size=9",
    "--format",
    "json",
  );
  expect(JSON.parse(compared.stdout).map(({ key }: { key: string }) => key)).toEqual([
    "rllm.data.train_batch_size",
    "data.train_batch_size",
  ]);
  const mistaken = hone("config", "rllm.rolout.n=3");
  expect(mistaken).toMatchObject({ stdout: "", status: 2 });
  expect(mistaken.lines[0]).toBe("error: rllm.rolout.n=3: unknown key rllm.rolout.n; did you mean rllm.rollout.n?");
}, 60_000);
