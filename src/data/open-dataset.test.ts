/** Tests Hone with the hub's own client against a server that answers like the hub. */
// Slow: downloads files in parts.
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from "vitest";
import { HoneError, RunError } from "../base/errors.ts";
import { removeFolder, testFolder } from "../temporary-folder.fixture.ts";
import {
  asked,
  card,
  commitOf,
  fault,
  gitOid,
  parquet,
  repositories,
  sha256,
  startHubServer,
} from "./hub-server.fixture.ts";
import { type HubOptions, hub, openDataset } from "./open-dataset.ts";

let hubUrl = "";
let close = () => {};
beforeAll(async () => {
  ({ url: hubUrl, close } = await startHubServer());
});
afterAll(() => close());

let cacheDir = "";
let said: string[] = [];
const options = (more: HubOptions = {}): HubOptions => ({
  hubUrl,
  cacheDir,
  retryDelayMs: 1,
  onStatus: (text) => said.push(text),
  ...more,
});
beforeEach(() => {
  cacheDir = testFolder("hub");
  said = [];
  asked.length = 0;
  Object.assign(fault, { cutAfter: 0, cuts: 0, corrupt: 0, status: 0, ignoreRange: false });
  for (const name of ["HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"]) vi.stubEnv(name, undefined);
});
afterEach(() => vi.unstubAllEnvs());

async function complaint(promise: Promise<unknown>): Promise<string> {
  const error = await promise.then(
    () => expect.fail("no error was thrown"),
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(HoneError);
  return `${error instanceof RunError ? "failure" : "mistake"}: ${(error as HoneError).message} | ${(error as HoneError).hint}`;
}

describe("hub", () => {
  test("downloads the split's files once, in the layout that the hub's own tools share", async () => {
    const train = await hub("org/card", options({ config: "main" }));
    expect(train.size).toBe(20);
    expect(train.task(13)).toEqual({
      id: "org/card/train/13",
      row: { question: "q3", answer: "3" },
      origin: "org/card/main/train-00001-of-00002.parquet row 4",
    });
    const commit = commitOf(repositories["org/card"]!.revisions.main!);
    const folder = join(cacheDir, "datasets--org--card");
    expect(readFileSync(join(folder, "snapshots", commit, "main/train-00000-of-00002.parquet"))).toEqual(parquet);
    expect(readFileSync(join(folder, "refs/main"), "utf8")).toBe(commit);
    // The shards have the same bytes and share a blob; the other blob is the card.
    expect(readdirSync(join(folder, "blobs")).sort()).toEqual([gitOid(Buffer.from(card)), sha256(parquet)].sort());
    expect(said.filter((text) => text.includes("downloading main/"))).toHaveLength(1);

    asked.length = 0;
    const again = await hub("org/card", options({ config: "main" }));
    expect(again.task(13)).toEqual(train.task(13));
    expect(asked.filter(({ path }) => path.includes("/resolve/"))).toEqual([]);
  });

  test("other configurations, splits, revisions; files without a card; the converted branch", async () => {
    expect((await hub("org/card", options({ config: "socratic" }))).task(0).row).toEqual({ question: "why?" });
    expect((await hub("org/card", options({ config: "main", split: "test" }))).size).toBe(10);
    expect((await hub("org/plain", options())).size).toBe(2);
    expect((await hub("org/plain", options({ split: "validation" }))).task(0).row).toEqual({ n: 3 });
    expect((await hub("org/plain", options({ revision: "v2" }))).task(0).row).toEqual({ n: 20 });
    expect((await hub("org/csv", options({ split: "test" }))).size).toBe(10);
  });

  test("openDataset reads hub: names, HF_ENDPOINT and HF_TOKEN", async () => {
    vi.stubEnv("HF_ENDPOINT", `${hubUrl}/`);
    vi.stubEnv("HF_HUB_CACHE", cacheDir);
    vi.stubEnv("HF_TOKEN", "hf_good");
    const stderr = vi.spyOn(process.stderr, "write").mockReturnValue(true);
    const dataset = await openDataset("hub:org/gated?split=train&revision=main");
    expect(stderr).toHaveBeenCalledWith("org/gated: downloading train.jsonl, 0.0 MB\n");
    stderr.mockRestore();
    expect(dataset.size).toBe(1);
    expect(new Set(asked.map(({ token }) => token))).toEqual(new Set(["hf_good"]));
  });

  test("an interrupted download resumes where it stopped, in this run", async () => {
    Object.assign(fault, { cutAfter: 60_000, cuts: 2 });
    const dataset = await hub("org/big", options());
    expect(dataset.size).toBe(4000);
    const ranges = asked
      .filter(({ path, range }) => path.includes("/resolve/") && range !== "bytes=0-0")
      .map(({ range }) => range);
    expect(ranges).toHaveLength(3);
    expect(ranges[0]).toBeUndefined();
    for (const range of ranges.slice(1)) expect(Number(/^bytes=(\d+)-/.exec(range!)?.[1])).toBeGreaterThan(0);
    expect(said.some((text) => text.includes("was interrupted"))).toBe(true);
  });

  test("an interrupted download resumes where it stopped, in the next run", async () => {
    const blobs = join(cacheDir, "datasets--org--big", "blobs");
    Object.assign(fault, { cutAfter: 100_000, cuts: 1 });
    const first = hub(
      "org/big",
      options({ onStatus: (text) => Object.assign(fault, text.includes("was interrupted") ? { status: 503 } : {}) }),
    );
    expect(await complaint(first)).toContain("failure: org/big: the hub 127.0.0.1 cannot be reached");
    const partial = readdirSync(blobs)[0]!;
    expect(partial).toMatch(/\.incomplete$/);
    fault.status = 0;
    expect((await hub("org/big", options())).size).toBe(4000);
    expect(readdirSync(blobs)).toEqual([partial.replace(".incomplete", "")]);
    expect(said[0]).toMatch(/^org\/big: downloading train\.jsonl, 0\.3 MB \(resuming at 0\.\d MB\)$/);
  });

  test("damaged bytes are found by checksum and fetched again", async () => {
    fault.corrupt = 2;
    expect((await hub("org/plain", options())).size).toBe(2);
    expect(said.some((text) => text.includes("the checksum of train.jsonl does not match"))).toBe(true);
    removeFolder(cacheDir);
    fault.corrupt = 100;
    expect(await complaint(hub("org/plain", options()))).toMatch(/^failure: .*checksum.* \| Run the command again/);
    expect(existsSync(join(cacheDir, "datasets--org--plain", "hone"))).toBe(false);
  });

  test("a server that ignores ranges is slower, but the file is right", async () => {
    Object.assign(fault, { cutAfter: 60_000, cuts: 1000, ignoreRange: true });
    expect(await complaint(hub("org/big", options()))).toContain("checksum");
    Object.assign(fault, { cutAfter: 60_000, cuts: 1, ignoreRange: true });
    expect((await hub("org/big", options())).size).toBe(4000);
  });

  test("without a connection: the cached files with a note, or an error with a hint", async () => {
    const offline = options({ hubUrl: "http://127.0.0.1:9" });
    expect(await complaint(hub("org/plain", offline))).toMatch(
      /^failure: org\/plain: the hub 127\.0\.0\.1 cannot be reached \(.*\) \| .*openDataset\("train\.parquet"\)\.$/,
    );
    const online = await hub("org/plain", options());
    const recalled = await hub("org/plain", offline);
    expect(recalled.task(1)).toEqual(online.task(1));
    expect(recalled.notes?.[0]).toMatch(
      /^org\/plain: the hub cannot be reached; using the files of commit [0-9a-f]{8} from /,
    );

    vi.stubEnv("HF_HUB_OFFLINE", "1");
    asked.length = 0;
    expect((await hub("org/plain", options())).notes?.[0]).toContain(
      "HF_HUB_OFFLINE is set; using the files of commit",
    );
    expect(await complaint(hub("org/plain", options({ split: "validation" })))).toContain("was never downloaded");
    expect(asked).toEqual([]);
  });

  test("a hub with server errors counts as unreachable", async () => {
    await hub("org/plain", options());
    fault.status = 503;
    expect((await hub("org/plain", options())).notes?.[0]).toContain("the hub cannot be reached");
    expect(await complaint(hub("org/big", options()))).toContain(
      "failure: org/big: the hub 127.0.0.1 cannot be reached",
    );
  });

  test("a damaged cache does not crash", async () => {
    await hub("org/plain", options());
    const folder = join(cacheDir, "datasets--org--plain", "hone");
    for (const name of readdirSync(folder)) writeFileSync(join(folder, name), "{");
    expect((await hub("org/plain", options())).size).toBe(2);
  });

  test.each<[string, HubOptions, string]>([
    [
      "org/nothing",
      {},
      "mistake: org/nothing: the hub denied access (401); the dataset is private, gated, or does not exist | Check the name. For",
    ],
    ["org/nothing", { token: "hf_good" }, "mistake: org/nothing: dataset or revision not found on the hub"],
    ["org/gated", { token: "hf_bad" }, "the hub denied access (403)"],
    ["org/plain", { revision: "v9", token: "hf_x" }, "dataset or revision not found on the hub"],
    ["org/plain", { revision: "../x" }, '"../x" is not a branch, tag or commit'],
    ["org/plain", { token: "secret" }, "HF_TOKEN is not a hub access token"],
    ["org/plain", { hubUrl: "http://" }, 'HF_ENDPOINT is "http:", which is not an http(s) URL'],
    ["org/plain", { hubUrl: "nowhere" }, 'HF_ENDPOINT is "nowhere", which is not an http(s) URL'],
    [
      "org/card",
      {},
      "mistake: the dataset org/card has several configurations, and none is the default | Available: main, socratic.",
    ],
    ["org/card", { config: "mian" }, 'the dataset org/card has no configuration "mian" | Available: main, socratic.'],
    ["org/card", { config: "main", split: "dev" }, 'the dataset org/card has no split "dev" | Available: train, test.'],
    ["org/plain", { split: "test" }, 'the dataset org/plain has no split "test" | Available: train, validation.'],
    ["org/csv", { split: "dev" }, 'the dataset org/csv has no split "dev" | Available: train, test.'],
    ["org/images", {}, "org/images: the dataset has no .parquet or .jsonl files for this split"],
  ])("%s %j is refused", async (dataset, more, expected) => {
    expect(await complaint(hub(dataset, options(more)))).toContain(expected);
  });
});
