/** Collecting results: polls that are held open for a while. */
import { Hono } from "hono";
import { z } from "zod";
import { jsonBody, readBody } from "../bodies.ts";
import { clipped } from "../http-error.ts";
import type { FutureResult } from "../queue/futures.ts";
import { completionTarget } from "../sampling/completions.ts";
import type { Service } from "../service.ts";

const manySchema = z.looseObject({
  target: z.looseObject({ sampling_session_id: z.string(), cloned_sampler_id: z.int().min(0).default(0) }),
  prev_cursor: z.int().min(0).default(0),
  timeout: z.number().min(0).nullish(),
});

/** How often an open poll checks whether its operation is delayed. */
const lookMs = 5_000;

export function futureRoutes({ context, sessions, completions, samplers }: Service): Hono {
  const { futures, pollMs } = context;

  /** Why an operation is waiting, as text for its client; null if nothing unusual delays it. */
  function pauseOf(request: string): string | null {
    const [, id = "", seq] = /^(.+):(\d+)@/.exec(request) ?? [];
    const gap = sessions.liveModel(id)?.sequencer.gap;
    if (!gap || Number(seq) <= gap.missing) return null;
    const seconds = Math.max(0, Math.ceil((gap.until - performance.now()) / 1000));
    return `request ${gap.missing} of ${id} has not arrived: its client failed before sending it, or it is still on its way. The server waits up to ${seconds} s more (hone serve --gap-seconds), then skips it`;
  }

  /** The client knows that the operation was lost with an earlier start of the server, and does not send it again. */
  function forget(request: string): void {
    const [, id = "", seq] = /^(.+:train:\d+):(\d+)@/.exec(request) ?? [];
    if (!request.endsWith(`@${context.boot}`)) sessions.findModel(id)?.sequencer.lose(Number(seq));
  }

  /** Ends early if the operation is delayed, so that its client sees why. */
  async function poll(id: string, signal: AbortSignal): Promise<FutureResult | "unknown" | { pause: string | null }> {
    for (let left = pollMs; ; left -= lookMs) {
      const result = await futures.collect(id, Math.min(left, lookMs), signal);
      if (result !== "pending") return result;
      const pause = pauseOf(id);
      if (pause !== null || left <= lookMs || signal.aborted) return { pause };
    }
  }

  return new Hono()
    .post("/retrieve_future", async (c) => {
      const { request_id: id } = await jsonBody(c);
      const result = await poll(String(id), c.req.raw.signal);
      if (typeof result === "object" && "pause" in result) {
        const body = { type: "try_again", request_id: String(id) };
        if (result.pause === null) return c.json({ ...body, queue_state: "active" }, 408);
        // With 200 the official client logs a line; with 408 it is silent.
        return c.json({ ...body, queue_state: "paused_capacity", queue_state_reason: result.pause });
      }
      if (result === "unknown" || result.kind === "gone") {
        // After a 410 a sampling client sends the request again, and a training client reports it.
        if (result === "unknown") forget(String(id));
        const ofThisBoot = String(id).endsWith(`@${context.boot}`);
        const forgotten = ofThisBoot ? "it was collected long ago" : "the server was restarted since";
        const why = result === "unknown" ? forgotten : result.why;
        return c.json({ detail: `the result of ${clipped(String(id))} is gone: ${why}` }, 410);
      }
      if (result.kind !== "protobuf") return c.json(result.body);
      return c.body(Uint8Array.from(result.body).buffer, 200, { "content-type": "application/x-protobuf" });
    })
    .post("/retrieve_futures", async (c) => {
      const { target, prev_cursor, timeout } = readBody(manySchema, await jsonBody(c));
      samplers.require(target.sampling_session_id);
      const waitMs = timeout === null || timeout === undefined ? pollMs : Math.min(pollMs, timeout * 1000);
      const name = completionTarget(target.sampling_session_id, BigInt(target.cloned_sampler_id));
      return c.json(await completions.read(name, prev_cursor, waitMs, c.req.raw.signal));
    })
    .post("/cancel_future", async (c) => {
      futures.cancel(String((await jsonBody(c)).request_id));
      return c.json({});
    });
}
