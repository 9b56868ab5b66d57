import { existsSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { LangfuseClient } from "@langfuse/client";
import { Client } from "langsmith";
import { afterAll, expect, test, vi } from "vitest";
import { listen } from "../base/http.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { setLaunch, takeLaunch } from "../trainer/experiment.ts";
import { openToy, toy } from "../trainer/toy-experiment.fixture.ts";
import { train } from "../trainer/train.ts";
import { fromAsync } from "./from-async.ts";

const requests: string[] = [];
const when = "2026-01-01T00:00:00.000Z";
const page = { page: 1, limit: 50, totalItems: 2, totalPages: 1 };
const langfuseItem = (id: string, status = "ACTIVE") => ({
  ...{ id, status, input: { question: `q ${id}`, email: "a@b.c" }, expectedOutput: `a ${id}`, metadata: null },
  ...{
    datasetId: "d",
    datasetName: "support",
    createdAt: when,
    updatedAt: when,
    sourceTraceId: null,
    sourceObservationId: null,
  },
});
const example = (id: string) => ({
  ...{
    id,
    dataset_id: "00000000-0000-0000-0000-000000000001",
    created_at: when,
    modified_at: when,
    metadata: { dataset_split: ["train"] },
  },
  ...{ inputs: { question: `q ${id}` }, outputs: { answer: `a ${id}` } },
});
const server = createServer((request, response) => {
  const url = request.url ?? "";
  requests.push(url);
  const answer = url.startsWith("/api/public/v2/datasets/")
    ? { id: "d", name: "support", projectId: "p", createdAt: when, updatedAt: when, metadata: null, description: null }
    : url.startsWith("/api/public/dataset-items")
      ? { data: [langfuseItem("1"), langfuseItem("2", "ARCHIVED"), langfuseItem("3")], meta: page }
      : url.startsWith("/examples") || url.startsWith("/api/v1/examples")
        ? [example("00000000-0000-0000-0000-00000000000a"), example("00000000-0000-0000-0000-00000000000b")]
        : url.includes("/datasets")
          ? [{ id: "00000000-0000-0000-0000-000000000001", name: "support" }]
          : {};
  response.writeHead(200, { "content-type": "application/json" });
  response.end(JSON.stringify(answer));
});
const baseUrl = await listen(server);
afterAll(() => {
  server.closeAllConnections();
  server.close();
});

test("items of a Langfuse dataset, by its client 5.11, without archived ones and personal data", async () => {
  const langfuse = new LangfuseClient({ baseUrl, publicKey: "p", secretKey: "s" });
  const dataset = await fromAsync(
    "support",
    async () => (await langfuse.dataset.get("support")).items,
    (item) =>
      item.status === "ACTIVE"
        ? {
            id: item.id,
            question: (item.input as { question: string }).question,
            answer: item.expectedOutput as string,
          }
        : undefined,
  );
  expect([dataset.size, dataset.notes]).toEqual([2, ["support: skipped 1 items"]]);
  expect(dataset.task(1)).toEqual({ id: "3", row: { id: "3", question: "q 3", answer: "a 3" }, origin: "support[1]" });
});

test("examples of a LangSmith dataset, by its client 0.12", async () => {
  const client = new Client({ apiUrl: baseUrl, apiKey: "k" } as never);
  const examples = client.listExamples({ datasetName: "support" });
  const dataset = await fromAsync(
    "langsmith",
    examples,
    ({ id, inputs, outputs }) => ({ id, ...inputs, ...outputs }) as { id: string; question: string; answer: string },
  );
  expect(dataset.size).toBe(2);
  expect(dataset.task(0).row).toMatchObject({
    question: expect.stringContaining("q "),
    answer: expect.stringContaining("a "),
  });
});

test("a slow service is said every ten seconds", async () => {
  vi.useFakeTimers();
  using said = vi.spyOn(process.stderr, "write").mockReturnValue(true);
  async function* source() {
    for (let id = 0; id < 3; id++) {
      yield { id };
      await vi.advanceTimersByTimeAsync(8000);
    }
  }
  await fromAsync("slow", source, (item) => item);
  await vi.advanceTimersByTimeAsync(60_000);
  vi.useRealTimers();
  const counts = said.mock.calls.map(([text]) => text);
  expect(counts).toEqual(["slow: fetching the rows, 2 items so far\n", "slow: fetching the rows, 3 items so far\n"]);
});

test("a run keeps the rows, and a run that is continued reads them instead of the service", async () => {
  const folder = join(temporaryFolder("rows"), "run");
  let fetched = 0;
  async function* source() {
    fetched++;
    for (let index = 0; index < 8; index++) yield { index, secret: "s" };
  }
  const open = () => fromAsync("kept", source, ({ index }) => ({ index: index + fetched }));
  const rows = await open();
  const overrides = [`rllm.trainer.run_dir=${folder}`, "rllm.trainer.total_batches=1"];
  await train({ ...toy(), train: rows as never }, { engine: openToy(), overrides });
  const file = join(folder, "data", "kept.jsonl");
  expect(readFileSync(file, "utf8").split("\n")[0]).toBe('{"index":1}');
  setLaunch({ resume: folder });
  try {
    const again = await open();
    expect([fetched, again.size, again.task(7).row]).toEqual([1, 8, { index: 8 }]);
  } finally {
    takeLaunch();
  }
  expect(existsSync(file)).toBe(true);
});

test.each<[string, string, Iterable<unknown>, string]>([
  ["no rows", "a", [], "has no rows"],
  ["rows that are not objects", "a", [[1]], "a[0]: toRow returned [1] instead of an object"],
  ["a name that is not a file's", "../a", [{}], "is not a file name"],
])("%s are refused", async (_name, name, items, message) => {
  await expect(fromAsync(name, items, (item) => item as object)).rejects.toThrow(message);
});

test.each<[string, () => Iterable<{ id: string }>, string]>([
  [
    "a client that fails",
    function* () {
      yield { id: "x" };
      throw new TypeError("401: no");
    },
    "a: fetching the rows failed after 1 items: TypeError: 401: no",
  ],
  ["an item that toRow cannot read", () => [{ id: "x" }, { id: "y" }], 'a: toRow failed for item 1 (y): Error: no "q"'],
])("%s is an error of the dataset", async (_name, source, message) => {
  const toRow = ({ id }: { id: string }) => {
    if (id === "y") throw new Error('no "q"');
    return { id };
  };
  await expect(fromAsync("a", source, toRow)).rejects.toMatchObject({ name: "UserError", message });
});
