/**
 * The server's folder: `sessions/*.json`, `checkpoints/*.json` and `data/*`, one folder of weights each. A record is
 * replaced as a whole, and weights are written before the record that names them, so after a
 * kill at any instant, everything that the records name is complete.
 */
import { createHash, randomUUID } from "node:crypto";
import { existsSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import type { z } from "zod";
import { RunError } from "../../errors.ts";
import { makePrivate, writeWhole } from "../../files/durable-files.ts";
import { lockFolder } from "../../files/folder-lock.ts";
import { makeFolder } from "../../files/make-folder.ts";
import { removeLeftovers } from "../../files/temporary-names.ts";
import { formatTinkerPath } from "../../tinker-protocol/tinker-path.ts";
import { type CheckpointRecord, checkpointRecord, type SessionRecord, sessionRecord } from "./records.ts";

/** A name for a file of any text. */
const fileOf = (text: string) => `${createHash("sha256").update(text).digest("hex").slice(0, 40)}.json`;

export type Store = ReturnType<typeof openStore>;

/** @throws UserError when another server uses the folder; RunError when a record cannot be read */
export function openStore(root: string) {
  const folders = {
    sessions: join(root, "sessions"),
    checkpoints: join(root, "checkpoints"),
    data: join(root, "data"),
  };
  for (const folder of Object.values(folders)) makeFolder(folder, 0o700);
  makePrivate(root, 0o700);
  const unlock = lockFolder(root);
  // A record that a killed server was writing, next to the one that it would replace.
  for (const folder of [folders.sessions, folders.checkpoints]) removeLeftovers(folder, () => true);
  const sessions = new Map(readAll(folders.sessions, sessionRecord).map((session) => [session.id, session]));
  const checkpoints = new Map(
    readAll(folders.checkpoints, checkpointRecord).map((checkpoint) => [formatTinkerPath(checkpoint), checkpoint]),
  );
  const folderOf = (data: string) => join(folders.data, data);
  const write = (folder: string, key: string, record: unknown) =>
    writeWhole(join(folder, fileOf(key)), [`${JSON.stringify(record)}\n`], 0o600);
  // Folders that are being written have no record so far.
  const unrecorded = new Set<string>();

  function named(): Set<string> {
    const used = new Set([...checkpoints.values()].map(({ data }) => data));
    for (const session of sessions.values()) {
      for (const { state } of session.models) if (state) used.add(state.data);
      for (const { weights } of session.samplers) {
        if (typeof weights === "object" && "data" in weights) used.add(weights.data);
      }
      for (const { data } of Object.values(session.inflight)) used.add(data);
    }
    for (const data of used) unrecorded.delete(data);
    return used;
  }

  return {
    root,
    sessions,
    /** By tinker path. */
    checkpoints,
    newestSessions: (): SessionRecord[] =>
      [...sessions.values()].sort(
        (left, right) => right.createdAt.localeCompare(left.createdAt) || right.id.localeCompare(left.id),
      ),
    saveSession(session: SessionRecord): void {
      sessions.set(session.id, session);
      write(folders.sessions, session.id, session);
    },
    saveCheckpoint(checkpoint: CheckpointRecord): void {
      const path = formatTinkerPath(checkpoint);
      write(folders.checkpoints, path, checkpoint);
      checkpoints.set(path, checkpoint);
    },
    deleteCheckpoint(path: string): void {
      rmSync(join(folders.checkpoints, fileOf(path)), { force: true });
      checkpoints.delete(path);
    },
    /** The name of a folder that does not exist so far, and its path. */
    newData(): { data: string; folder: string } {
      const data = randomUUID();
      unrecorded.add(data);
      return { data, folder: folderOf(data) };
    },
    /** Nothing will be written there after all. */
    discard: (data: string) => void unrecorded.delete(data),
    folderOf,
    sizeOf: (data: string) => folderSize(folderOf(data)),
    /** Deletes the folders that are neither in a record nor in `alsoUsed`. */
    async collectGarbage(alsoUsed: ReadonlySet<string> = new Set()): Promise<void> {
      const used = named();
      const unused = readdirSync(folders.data).filter(
        // A folder under way is `.{name}.{owner}.partial`, one that is complete `{name}`.
        (entry) => ![used, unrecorded, alsoUsed].some((set) => set.has(entry) || set.has(entry.split(".")[1] ?? "")),
      );
      for (const entry of unused) await rm(join(folders.data, entry), { recursive: true, force: true });
    },
    close: unlock,
  };
}

function readAll<S extends z.ZodType>(folder: string, schema: S): z.output<S>[] {
  return readdirSync(folder)
    .filter((file) => file.endsWith(".json"))
    .map((file) => {
      const path = join(folder, file);
      try {
        return schema.parse(JSON.parse(readFileSync(path, "utf8")));
      } catch (cause) {
        throw new RunError(`${path} is not a record that this server can read: ${cause}`, {
          hint: "Another version of Hone may have written it. Move it away, or choose another --state folder.",
          cause,
        });
      }
    });
}

function folderSize(folder: string): number {
  if (!existsSync(folder)) return 0;
  const stats = readdirSync(folder, { recursive: true, encoding: "utf8" }).map((file) => statSync(join(folder, file)));
  return stats.reduce((total, entry) => total + (entry.isFile() ? entry.size : 0), 0);
}
