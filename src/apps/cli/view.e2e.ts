import type { ChildProcess } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { uniforms } from "../../base/values.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { generateRun } from "../view/generate-run.fixture.ts";
import type { EpisodeList } from "../view/queries/episodes.ts";
import type { RunDetail } from "../view/queries/run.ts";
import { startHone } from "./hone.fixture.ts";

const root = temporaryFolder("view-e2e");
const run = join(root, "toy");

/** @param beside starts it as `hone train --view` does */
function hone(
  args: readonly string[],
  { beside = false } = {},
): { child: ChildProcess; output: () => string; ended: Promise<number | null> } {
  const env = {
    ...process.env,
    XDG_CACHE_HOME: join(root, "cache"),
    ...(beside ? { HONE_STOP_WITH_PARENT: "1" } : {}),
  };
  const child = startHone(["view", ...args], { env, stdio: ["ignore", "pipe", "pipe", beside ? "ipc" : "ignore"] });
  let output = "";
  for (const stream of [child.stdout!, child.stderr!]) stream.on("data", (text) => (output += String(text)));
  return { child, output: () => output, ended: new Promise((resolve) => child.once("close", resolve)) };
}

const checksums = () =>
  readdirSync(run, { recursive: true, encoding: "utf8" })
    .filter((name) => statSync(join(run, name)).isFile())
    .map(
      (name) =>
        `${name} ${createHash("sha256")
          .update(readFileSync(join(run, name)))
          .digest("hex")}`,
    );

async function urlOf(viewer: ReturnType<typeof hone>): Promise<string> {
  for (;;) {
    const [url] = /http:\S+(?=\s)/.exec(viewer.output()) ?? [];
    if (url !== undefined) return url;
    if (viewer.child.exitCode !== null) throw new Error(viewer.output());
    await sleep(20);
  }
}

async function get<Answer>(url: string): Promise<Answer> {
  const response = await fetch(url);
  if (!response.ok) throw new Error(await response.text());
  return (await response.json()) as Answer;
}

test("a viewer that is killed while it indexes goes on where it was, and beside a run it survives Ctrl-C", async () => {
  generateRun(run, { steps: 60, tasks: 16, rollouts: 8, tokens: 100 });
  const before = checksums();
  const random = uniforms(7);
  for (let kill = 0; kill < 3; kill++) {
    const viewer = hone([run, "--no-open", "--port", "0"]);
    const url = await urlOf(viewer);
    void get(`${url}api/runs/toy`).catch(() => {});
    await sleep(100 + 400 * random());
    viewer.child.kill("SIGKILL");
    await viewer.ended;
  }
  const viewer = hone([run, "--no-open", "--port", "0"], { beside: true });
  const url = await urlOf(viewer);
  while ((await get<RunDetail>(`${url}api/runs/toy`)).indexing !== undefined) await sleep(50);
  const { total } = await get<EpisodeList>(`${url}api/runs/toy/episodes?filter=role%3Dsolver`);
  expect(total).toBe(60 * 16 * 8);
  expect((await get<EpisodeList>(`${url}api/runs/toy/episodes?filter=text~%22question+3%22`)).total).toBe(60 * 8);
  expect(viewer.output()).toContain("Ctrl-C stops the run after its step; the viewer ends with the run");
  viewer.child.kill("SIGINT");
  expect((await get<RunDetail>(`${url}api/runs/toy`)).step).toBe(60);
  const exit = once(viewer.child, "exit");
  viewer.child.disconnect();
  expect(await exit).toEqual([0, null]);
  expect(checksums()).toEqual(before);
});

test.each([
  [["--text", "--filter", "task=arith/2 and failed=true and step=60"], 0, "step 60, train"],
  [["--step", "3", "--episode", "arith/1:0"], 0, "arith/1:0: env_done"],
  [["--text", "--filter", "rewrd<1"], 2, 'did you mean "reward"?'],
  [["--text", "--port", "1"], 2, "--port has no effect"],
  [["--filter", "reward<1", "--no-open"], 2, "--filter requires"],
])("hone view %j", async (args, code, text) => {
  const { output, ended } = hone([run, ...args]);
  expect(await ended).toBe(code);
  expect(output()).toContain(text);
});

test("a folder without a run", async () => {
  const { output, ended } = hone([join(root, "nothing"), "--no-open"]);
  expect(await ended).toBe(2);
  expect(output()).toContain("neither a run folder nor a folder of runs");
});
