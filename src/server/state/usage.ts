/** What clients used, by UTC hour, session and base model. A file for each day; the hours of today are in memory too. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { RunError } from "../../errors.ts";
import { writeWhole } from "../../files/durable-files.ts";
import { makeFolder } from "../../files/make-folder.ts";

const kinds = ["training", "sampling_prefill", "sampling_sample", "checkpoint", "storage"] as const;
type UsageKind = (typeof kinds)[number];

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
export type UsageEntry = z.output<typeof entrySchema>;

const hourMs = 3_600_000;
const hourOf = (time: Date): string => new Date(Math.floor(time.getTime() / hourMs) * hourMs).toISOString();
const dayOf = (hour: string): string => hour.slice(0, 10);

export type Usage = ReturnType<typeof openUsage>;

export function openUsage(folder: string, now: () => Date) {
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
    add(kind: UsageKind, session: string | null, baseModel: string, amount: number): void {
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
    /** Of the hours that begin at `from` or later and before `to`. */
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
