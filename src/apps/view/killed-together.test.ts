// Slow: processes are killed.
import { type ChildProcess, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { afterAll, expect, test } from "vitest";
import { uniforms } from "../../base/values.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { type JournalLine, journalFile } from "../../tracking/journal.ts";
import { openToy, toy } from "../../trainer/toy-experiment.fixture.ts";
import { train } from "../../trainer/train.ts";
import type { Curves } from "./queries/curves.ts";
import type { EpisodeList } from "./queries/episodes.ts";
import type { RunDetail } from "./queries/run.ts";
import { startViewer } from "./server.ts";

const root = temporaryFolder("killed-together");
const run = join(root, "runs", "toy");
const script = fileURLToPath(new URL("killed-together.fixture.ts", import.meta.url));
mkdirSync(join(root, "runs"));

const children: ChildProcess[] = [];
afterAll(() => {
  for (const child of children) child.kill("SIGKILL");
});

function start(what: "train" | "view") {
  const child = spawn(process.execPath, ["--import", "tsx", script, what, root], {
    stdio: ["ignore", "pipe", "ignore"],
  });
  children.push(child);
  return child;
}

async function kill(child: ChildProcess): Promise<void> {
  child.kill("SIGKILL");
  if (child.exitCode === null && child.signalCode === null) await once(child, "close");
}

/** Steps that have ended, with those that were repeated. */
const endedSteps = () =>
  existsSync(journalFile(run)) ? readFileSync(journalFile(run), "utf8").split('"kind":"step-end"').length - 1 : 0;

/** A page that follows the run until the viewer is killed. */
async function follow(url: string): Promise<void> {
  try {
    const events = await fetch(`${url}api/events?run=toy&after=0`);
    void events.text().catch(() => {});
    for (;;) await (await fetch(`${url}api/runs/toy/episodes`)).text();
  } catch {}
}

/** The lines that can be read, and the number of those that cannot. */
function readLines<Line>(file: string): { lines: Line[]; cutOff: number } {
  const texts = readFileSync(file, "utf8")
    .split("\n")
    .filter((text) => text !== "");
  const lines = texts.flatMap((text): Line[] => {
    try {
      return [JSON.parse(text)];
    } catch {
      return [];
    }
  });
  return { lines, cutOff: texts.length - lines.length };
}

const checksums = () =>
  readdirSync(run, { recursive: true, encoding: "utf8" })
    .filter((name) => statSync(join(run, name)).isFile())
    .map((name) => [
      name,
      createHash("sha256")
        .update(readFileSync(join(run, name)))
        .digest("hex"),
    ]);

test("trainer and viewer are killed together: the journal only grows, and both go on", {
  timeout: 300_000,
}, async () => {
  const kills = 2;
  const random = uniforms(17);
  let before = "";
  for (let round = 0; round < kills; round++) {
    const ended = endedSteps();
    const [trainer, viewer] = [start("train"), start("view")];
    const [url] = (await once(viewer.stdout!, "data")) as [Buffer];
    while (endedSteps() === ended && trainer.exitCode === null) await sleep(20);
    const following = follow(String(url).trim());
    await sleep(400 * random());
    await Promise.all([kill(trainer), kill(viewer)]);
    await following;
    expect(trainer.signalCode).toBe("SIGKILL");
    const text = readFileSync(journalFile(run), "utf8");
    expect(text.startsWith(before)).toBe(true);
    before = text;
  }

  const { lines: entries, cutOff } = readLines<JournalLine>(journalFile(run));
  expect(cutOff).toBeLessThanOrEqual(kills);
  expect(entries.map(({ seq }) => seq)).toEqual(entries.map((_, index) => index + 1));
  expect(entries.filter(({ kind }) => kind === "run-start")).toHaveLength(kills);

  const files = checksums();
  const reopened = () =>
    startViewer({ path: join(root, "runs"), host: "127.0.0.1", port: 0, page: root, cache: join(root, "cache") });
  const first = await reopened();
  const get = async <Answer>(url: string, path: string) => (await (await fetch(`${url}api/${path}`)).json()) as Answer;
  const detail = await get<RunDetail>(first.url, "runs/toy");
  expect(detail).toMatchObject({ state: "interrupted", cursor: entries.length });
  expect(detail.problem).toBeUndefined();
  const steps = readLines<{ step: number; kind?: string }>(join(run, "metrics.jsonl"))
    .lines.filter(({ kind }) => kind === undefined)
    .map(({ step }) => step);
  expect((await get<Curves>(first.url, "runs/toy/curves?names=reward%2Fmean")).steps).toEqual(steps);
  await first.close();
  expect(checksums()).toEqual(files);

  const last = steps.at(-1)! + 2;
  await train(toy({ rllm: { trainer: { total_batches: last } } }), {
    engine: openToy(),
    overrides: [`rllm.trainer.run_dir=${run}`],
  });
  expect(readFileSync(journalFile(run), "utf8").startsWith(before)).toBe(true);
  const second = await reopened();
  expect(await get<RunDetail>(second.url, "runs/toy")).toMatchObject({ state: "done", step: last });
  expect((await get<EpisodeList>(second.url, `runs/toy/episodes?filter=step%3D${last}%20and%20kind=train`)).total).toBe(
    16,
  );
  await second.close();
});
