/**
 * What clients used, in tokens and bytes, by UTC hour, session and base model; nothing here has a price. A file for each
 * day; the hours of today are in memory too. Frozen (docs/guide/serving.md#frozen-calls).
 */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Hono } from "hono";
import { z } from "zod";
import { RunError } from "../../base/errors.ts";
import { makeFolder, writeWhole } from "../../base/files.ts";
import { append } from "../../base/values.ts";
import type { Feature } from "./app.ts";
import { HttpError, readBody } from "./http.ts";
import { sessionOf } from "./live-models.ts";
import type { Service } from "./service.ts";
import { allCheckpoints } from "./sessions.ts";
import type { CheckpointRecord } from "./store.ts";

const kinds = ["training", "sampling_prefill", "sampling_sample", "checkpoint", "storage"] as const;
const entrySchema = z.strictObject({
  /** Start of the hour, ISO 8601. */
  hour: z.string(),
  kind: z.enum(kinds),
  /** Null for storage, which outlives sessions. */
  session: z.string().nullable(),
  baseModel: z.string(),
  /** Tokens, checkpoints, or byte-hours. */
  amount: z.number(),
});
type UsageEntry = z.output<typeof entrySchema>;

const hourMs = 3_600_000;
const hourOf = (time: Date): string => new Date(Math.floor(time.getTime() / hourMs) * hourMs).toISOString();
const dayOf = (hour: string): string => hour.slice(0, 10);

const longestDays = 14;
/** Gigabytes of powers of 1000. */
const gigabyte = 1e9;

const hour = z
  .string()
  .refine((text) => Date.parse(text) % hourMs === 0, "it must be a full hour of UTC, for example 2026-01-31T00:00:00Z")
  .transform((text) => new Date(text));
const windowSchema = z.object({ starting_on: hour, ending_before: hour });

export function usage({ context }: Service): Feature {
  const { store, now, useListeners } = context;
  const records = openRecords(join(store.root, "usage"), now);
  useListeners.push(records.add);
  let metered = now().getTime();

  /** Adds the storage of the time since this was last called. */
  function meterStorage(): void {
    const time = now().getTime();
    const hours = (time - metered) / hourMs;
    metered = time;
    for (const [model, checkpoints] of grouped(allCheckpoints(context), ({ baseModel }) => baseModel)) {
      records.add("storage", null, model, sizeOf(checkpoints).size_bytes * hours);
    }
  }

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

  const api = new Hono()
    .get("/billing/usage/events", (c) => {
      const { starting_on: from, ending_before: to } = readBody(windowSchema, c.req.query());
      if (to <= from || to.getTime() - from.getTime() > longestDays * 24 * hourMs) {
        throw new HttpError(400, `ending_before must come after starting_on, by at most ${longestDays} days`);
      }
      const entries = records
        .between(from, to)
        .sort((left, right) => left.hour.localeCompare(right.hour) || right.amount - left.amount);
      const sessions = entries
        .flatMap(({ session }) => session ?? [])
        .map((id) => [id, { user_metadata: store.sessions.get(id)?.userMetadata ?? null }]);
      return c.json({ data: entries.map(event), sessions: Object.fromEntries(sessions) });
    })
    .get("/billing/usage/checkpoints/current", (c) => {
      const asked = c.req.query("project_id");
      const byProject = grouped(allCheckpoints(context), ({ run }) => projectOf(sessionOf(run)));
      const groups = [...byProject].filter(([project]) => asked === undefined || project === asked);
      return c.json({ data: groups.map(([project_id, checkpoints]) => ({ project_id, ...sizeOf(checkpoints) })) });
    });
  return {
    api,
    sweep() {
      meterStorage();
      records.save();
    },
  };
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
    append(groups, key, checkpoint);
  }
  return groups;
}

function sizeOf(checkpoints: readonly CheckpointRecord[]) {
  // A copy shares the weights of its source.
  const folders = new Map(checkpoints.map(({ data, sizeBytes }) => [data, sizeBytes]));
  const size_bytes = [...folders.values()].reduce((sum, size) => sum + size, 0);
  return { checkpoint_count: checkpoints.length, size_bytes, size_gigabytes: size_bytes / gigabyte };
}

function openRecords(folder: string, now: () => Date) {
  makeFolder(folder, 0o700);
  const days = new Map<string, Map<string, UsageEntry>>();
  const changed = new Set<string>();
  const fileOf = (day: string) => join(folder, `${day}.json`);
  const keyOf = ({ hour, kind, session, baseModel }: UsageEntry) => JSON.stringify([hour, kind, session, baseModel]);

  function entriesOf(day: string): Map<string, UsageEntry> {
    const held = days.get(day);
    if (held) return held;
    const read = existsSync(fileOf(day)) ? readEntries(fileOf(day)) : [];
    return new Map(read.map((entry) => [keyOf(entry), entry]));
  }

  return {
    add(kind: UsageEntry["kind"], session: string | null, baseModel: string, amount: number): void {
      const entry = { hour: hourOf(now()), kind, session, baseModel, amount: 0 };
      const day = dayOf(entry.hour);
      const entries = entriesOf(day);
      days.set(day, entries);
      const key = keyOf(entry);
      const found = entries.get(key) ?? entry;
      found.amount += amount;
      entries.set(key, found);
      changed.add(day);
    },
    /** Entries whose hours begin at `from` or later and before `to`. */
    between(from: Date, to: Date): UsageEntry[] {
      const found: UsageEntry[] = [];
      for (let day = Date.parse(dayOf(from.toISOString())); day < to.getTime(); day += 24 * hourMs) {
        found.push(...entriesOf(dayOf(new Date(day).toISOString())).values());
      }
      return found.filter(({ hour }) => hour >= from.toISOString() && hour < to.toISOString());
    },
    /** Writes what has been added since the last time. */
    save(): void {
      for (const day of changed) writeWhole(fileOf(day), [`${JSON.stringify([...entriesOf(day).values()])}\n`], 0o600);
      changed.clear();
      const today = dayOf(hourOf(now()));
      for (const day of days.keys()) if (day !== today) days.delete(day);
    },
  };
}

function readEntries(file: string): UsageEntry[] {
  try {
    return z.array(entrySchema).parse(JSON.parse(readFileSync(file, "utf8")));
  } catch (cause) {
    throw new RunError(`${file} is not a usage record that this server can read: ${cause}`, {
      hint: "Another version of Hone may have written it. Move it away.",
      cause,
    });
  }
}
