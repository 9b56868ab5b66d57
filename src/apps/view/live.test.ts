// Slow: waits for files to change.
import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { type JournalLine, journalFile, openJournal } from "../../tracking/journal.ts";
import { generateRun, generateStep } from "./generate-run.fixture.ts";
import { createLive, openViewer } from "./live.ts";
import { runState } from "./queries/run.ts";
import { readJournalState } from "./run-index.ts";
import { createApp } from "./server.ts";

const root = temporaryFolder("live");
const run = join(root, "runs", "toy");
mkdirSync(run, { recursive: true });
generateRun(run, { steps: 1 });
const viewer = openViewer(join(root, "runs"), join(root, "cache"));
const live = createLive(viewer);
const app = createApp({ viewer, live, token: null, page: root });
const journal = openJournal(run, { onProblem: () => {}, flushMs: 1 });
const warn = (text: string) => journal.event({ type: "warning", text });

beforeAll(async () => {
  warn("first");
  await vi.waitFor(() => expect(readFileSync(journalFile(run), "utf8")).toContain("first"));
});
afterAll(async () => {
  live.close();
  await journal.close();
  viewer.close();
});

interface Received {
  event: string;
  id: string | undefined;
  data: unknown;
}

/** A page that follows the run. */
async function connect(path: string, headers: Record<string, string> = {}, from = app) {
  const response = await from.request(path, { headers });
  const reader = response.body!.pipeThrough(new TextDecoderStream() as TransformStream<Uint8Array, string>).getReader();
  let rest = "";
  return {
    /** The next event of this name. */
    async next(event: string): Promise<Received> {
      for (;;) {
        const end = rest.indexOf("\n\n");
        if (end >= 0) {
          const block = rest.slice(0, end);
          rest = rest.slice(end + 2);
          const field = (name: string) => new RegExp(`^${name}: (.*)$`, "m").exec(block)?.[1];
          if (field("event") === event) return { event, id: field("id"), data: JSON.parse(field("data")!) };
          continue;
        }
        const { value, done } = await reader.read();
        if (done) throw new Error(`the stream ended before an event "${event}"`);
        rest += value;
      }
    },
    close: () => reader.cancel(),
  };
}
const texts = ({ data }: Received) => (data as JournalLine[]).map(({ text }) => text);

test("a page gets new lines of the journal, and goes on where it was cut", async () => {
  const page = await connect("/api/events?run=toy");
  await page.next("changed");
  warn("second");
  warn("third");
  const seen: unknown[] = [];
  let last: string | undefined;
  while (seen.length < 2) {
    const received = await page.next("journal");
    seen.push(...texts(received));
    last = received.id;
  }
  expect(seen).toEqual(["second", "third"]);
  await page.close();
  warn("while it was away");
  const again = await connect("/api/events?run=toy", { "last-event-id": last! });
  expect(texts(await again.next("journal"))).toEqual(["while it was away"]);
  await again.close();
  const all = await connect("/api/events?run=toy&after=0");
  expect(texts(await all.next("journal"))).toEqual(["first", "second", "third", "while it was away"]);
  await all.close();
});

test("new episodes and new runs are reported, and the list of runs hears of a run that trains", async () => {
  const page = await connect("/api/events?run=toy");
  const list = await connect("/api/events");
  expect((await page.next("changed")).data).toMatchObject({ step: 1, episodes: 16 });
  generateStep(run, 2, {});
  let { data } = await page.next("changed");
  while ((data as { episodes: number }).episodes < 32) ({ data } = await page.next("changed"));
  expect(data).toMatchObject({ run: "toy", step: 2, episodes: 32, state: "interrupted" });
  expect((await list.next("changed")).data).toEqual(data);
  generateRun(join(root, "runs", "other"), { steps: 1 });
  expect(new Set(((await page.next("runs")).data as { runs: string[] }).runs)).toEqual(new Set(["toy", "other"]));
  await page.close();
  await list.close();
});

test("an empty folder is viewed, and its first run appears", async () => {
  const empty = join(root, "empty");
  mkdirSync(empty);
  const waiting = openViewer(empty, join(root, "cache"));
  const liveHere = createLive(waiting);
  const page = await connect(
    "/api/events",
    {},
    createApp({ viewer: waiting, live: liveHere, token: null, page: root }),
  );
  expect(waiting.names()).toEqual([]);
  generateRun(join(empty, "first"), { steps: 1 });
  expect((await page.next("runs")).data).toEqual({ runs: ["first"] });
  await page.close();
  liveHere.close();
  waiting.close();
});

test.each([
  [join(root, "missing"), "is neither a run folder nor a folder of runs"],
  [import.meta.dirname, "contains none"],
])("%s is refused", (path, text) => {
  expect(() => openViewer(path, join(root, "cache"))).toThrow(text);
});

test("the state of a run that has just ended does not depend on the index", async () => {
  const { index } = viewer.open("toy");
  await index.refresh();
  const before = readJournalState(index.database);
  expect(runState(run, before)).toBe("interrupted");
  journal.event({ type: "run-end", reason: "stopped" });
  expect(runState(run, before)).toBe("stopped");
});

test("POST /api/view points the open pages at an address", async () => {
  const pages = [await connect("/api/events"), await connect("/api/events?run=toy")];
  const headers = { "content-type": "application/json" };
  const body = JSON.stringify({ url: "/runs/toy/episodes/t1.0" });
  for (const page of pages) {
    // A connection that was just closed may still count.
    const answer = await app.request("/api/view", { method: "POST", headers, body });
    expect(((await answer.json()) as { pages: number }).pages).toBeGreaterThanOrEqual(1);
    expect((await page.next("view")).data).toEqual({ url: "/runs/toy/episodes/t1.0" });
    await page.close();
  }
});
