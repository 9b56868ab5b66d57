import { describe, expect, it } from "vitest";
import { createConnection, LostResultError } from "./connection.ts";
import { sampleMany } from "./sampler.ts";

type Line = Record<string, unknown>;
const answerOf = (...lines: Line[]) => new Response(lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
const resultOf = (index: number, byte: number) => ({ index, protobuf: Buffer.from([byte]).toString("base64") });

/** @param answer by the seeds that were asked for, and how often there was an answer before */
function service(answer: (numbers: number[], times: number) => Response | Error | Promise<Response>) {
  const asked: number[][] = [];
  const cancelled: unknown[] = [];
  const connection = createConnection({
    ...{ baseUrl: "http://nowhere", apiKey: "tml-key", retryMs: 1 },
    async fetch(url, { body }) {
      if (url.endsWith("client/config")) return Response.json({});
      const posted = JSON.parse(String(body)) as { requests: { seq_id: number }[]; request_id: unknown };
      if (url.endsWith("cancel_future")) {
        cancelled.push(posted.request_id);
        return Response.json({});
      }
      const numbers = posted.requests.map(({ seq_id }) => seq_id);
      asked.push(numbers);
      const found = await answer(numbers, asked.length - 1);
      if (found instanceof Error) throw found;
      return found;
    },
  });
  return { ask: sampleMany(connection), asked, cancelled, connection };
}
const never = () => new AbortController().signal;
const bytes = (results: Uint8Array[]) => results.map(([byte]) => byte);

describe("requests of the same moment", () => {
  it("are one request, split if it is long, and its answer has the results in any order", async () => {
    const { ask, asked } = service((numbers) =>
      answerOf(...numbers.map((number, at) => resultOf(at, number)).reverse()),
    );
    const all = Array.from({ length: 262 }, (_, number) => number);
    expect(bytes(await Promise.all(all.map((seq_id) => ask({ seq_id }, never()))))).toEqual(
      all.map((number) => number % 256),
    );
    expect(asked.map(({ length }) => length)).toEqual([256, 6]);
    expect(bytes([await ask({ seq_id: 9 }, never())])).toEqual([9]);
    expect(asked).toHaveLength(3);
  });

  it("are sent again if the answer ended before their result, broke off, or never came", async () => {
    const ids = { request_ids: ["a", "b", "c"] };
    const { ask, asked, connection } = service(
      (_, times) =>
        [
          answerOf(ids, resultOf(1, 11)),
          new Error("reset"),
          new Response(`${JSON.stringify({ request_ids: ["a", "c"] })}\n{"index": 0, "prot`),
          Response.json({ detail: "later" }, { status: 503 }),
          answerOf(resultOf(0, 10), resultOf(1, 12)),
        ].at(times)!,
    );
    const found = await Promise.all([0, 1, 2].map((seq_id) => ask({ seq_id }, never())));
    expect(bytes(found)).toEqual([10, 11, 12]);
    expect(asked).toEqual([
      [0, 1, 2],
      [0, 2],
      [0, 2],
      [0, 2],
      [0, 2],
    ]);
    expect(connection.counts.retries).toBe(2);
    await new Promise(setImmediate);
    expect(connection.waitingFor()).toEqual([]);
  });

  it("fail separately, or together if the service refuses them", async () => {
    const { ask } = service(() =>
      answerOf(resultOf(0, 5), { index: 1, error: "too long", category: "user" }, { index: 2, gone: "died" }),
    );
    const [first, second, third] = await Promise.allSettled([0, 1, 2].map((seq_id) => ask({ seq_id }, never())));
    expect(first!.status).toBe("fulfilled");
    expect(second).toMatchObject({ reason: { message: "Tinker: too long" } });
    expect((third as PromiseRejectedResult).reason).toBeInstanceOf(LostResultError);
    const refusing = service(() => Response.json({ detail: "the session is finished" }, { status: 410 }));
    await expect(Promise.all([0, 1].map((seq_id) => refusing.ask({ seq_id }, never())))).rejects.toThrow(/is finished/);
  });

  it("are cancelled one by one, and waiting ends when all are", async () => {
    let tell = (): void => {};
    const bothCancelled = new Promise<void>((resolve) => {
      tell = resolve;
    });
    const { ask, cancelled, connection } = service(
      () =>
        new Response(
          new ReadableStream({
            start(lines) {
              lines.enqueue(Buffer.from(`${JSON.stringify({ request_ids: ["a", "b"] })}\n`));
              tell();
            },
          }),
        ),
    );
    const [one, two] = [new AbortController(), new AbortController()];
    const asked = [ask({ seq_id: 0 }, one.signal), ask({ seq_id: 1 }, two.signal)];
    const ended = Promise.allSettled(asked);
    await bothCancelled;
    await new Promise(setImmediate);
    one.abort();
    await expect(asked[0]).rejects.toThrow(/aborted/);
    expect(cancelled).toEqual(["a"]);
    expect(connection.waitingFor()).toHaveLength(1);
    two.abort();
    await ended;
    await new Promise(setImmediate);
    expect([cancelled, connection.waitingFor()]).toEqual([["a", "b"], []]);
  });
});
