/** What was used, in tokens and bytes; nothing here has a price. */
import { Hono } from "hono";
import { z } from "zod";
import type { ServerContext } from "../context.ts";
import { HttpError } from "../http-error.ts";
import { readBody } from "../read-body.ts";
import type { Service } from "../service.ts";
import { allCheckpoints } from "../state/checkpoints.ts";
import type { CheckpointRecord } from "../state/records.ts";
import type { UsageEntry } from "../state/usage.ts";

const hourMs = 3_600_000;
const longestDays = 14;
/** Gigabytes of powers of 1000. */
const gigabyte = 1e9;

const hour = z
  .string()
  .refine((text) => Date.parse(text) % hourMs === 0, "it must be a full hour of UTC, for example 2026-01-31T00:00:00Z")
  .transform((text) => new Date(text));
const windowSchema = z.object({ starting_on: hour, ending_before: hour });

export function usageRoutes({ context }: Service): Hono {
  const { store, usage } = context;
  const projectOf = (session: string | null) =>
    session === null ? null : (store.sessions.get(session)?.projectId ?? null);

  const event = (entry: UsageEntry) => ({
    bucket_start: entry.hour,
    bucket_end: new Date(Date.parse(entry.hour) + hourMs).toISOString(),
    base_model: entry.baseModel,
    session_id: entry.session,
    project_id: projectOf(entry.session),
    event_info: infoOf(entry),
  });

  return new Hono()
    .get("/billing/usage/events", (c) => {
      const { starting_on: from, ending_before: to } = readBody(windowSchema, c.req.query());
      if (to <= from || to.getTime() - from.getTime() > longestDays * 24 * hourMs) {
        throw new HttpError(400, `ending_before must come after starting_on, by at most ${longestDays} days`);
      }
      const entries = usage
        .between(from, to)
        .sort((left, right) => left.hour.localeCompare(right.hour) || right.amount - left.amount);
      const sessions = entries
        .flatMap(({ session }) => session ?? [])
        .map((id) => [id, { user_metadata: store.sessions.get(id)?.userMetadata ?? null }]);
      return c.json({ data: entries.map(event), sessions: Object.fromEntries(sessions) });
    })
    .get("/billing/usage/checkpoints/current", (c) => {
      const asked = c.req.query("project_id");
      const byProject = grouped(allCheckpoints(context), ({ run }) => projectOf(run.split(":train:")[0]!));
      const groups = [...byProject].filter(([project]) => asked === undefined || project === asked);
      return c.json({ data: groups.map(([project_id, checkpoints]) => ({ project_id, ...sizeOf(checkpoints) })) });
    });
}

function infoOf({ kind, amount }: UsageEntry) {
  switch (kind) {
    case "training":
    case "sampling_sample":
      return { type: kind, token_count: amount };
    case "sampling_prefill":
      return { type: kind, cached: false, token_count: amount };
    case "checkpoint":
      return { type: kind, count: amount };
    case "storage":
      return { type: kind, free: true, gigabyte_hours: amount / gigabyte };
  }
}

function grouped<K>(checkpoints: readonly CheckpointRecord[], keyOf: (checkpoint: CheckpointRecord) => K) {
  const groups = new Map<K, CheckpointRecord[]>();
  for (const checkpoint of checkpoints) {
    const key = keyOf(checkpoint);
    groups.set(key, [...(groups.get(key) ?? []), checkpoint]);
  }
  return groups;
}

function sizeOf(checkpoints: readonly CheckpointRecord[]) {
  // A copy shares the weights of its source.
  const folders = new Map(checkpoints.map(({ data, sizeBytes }) => [data, sizeBytes]));
  const size_bytes = [...folders.values()].reduce((sum, size) => sum + size, 0);
  return { checkpoint_count: checkpoints.length, size_bytes, size_gigabytes: size_bytes / gigabyte };
}

/** Adds the storage of the time since this was last called. */
export function meterStorage(context: ServerContext): () => void {
  let last = context.now().getTime();
  return () => {
    const now = context.now().getTime();
    const hours = (now - last) / hourMs;
    last = now;
    for (const [model, checkpoints] of grouped(allCheckpoints(context), ({ baseModel }) => baseModel)) {
      context.usage.add("storage", null, model, sizeOf(checkpoints).size_bytes * hours);
    }
  };
}
