/** The file of a run's index, in the user's cache: the run folder is never written to. */
import { createHash } from "node:crypto";
import {
  accessSync,
  closeSync,
  constants,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  realpathSync,
  rmSync,
  statSync,
  utimesSync,
} from "node:fs";
import { homedir, tmpdir } from "node:os";
import { dirname, join } from "node:path";
import Database from "libsql";
import { makeFolder } from "../../files/make-folder.ts";
import { printable } from "../../printable.ts";
import { schema, schemaVersion } from "./schema.ts";

export type IndexDatabase = Database.Database;

/** `$XDG_CACHE_HOME/hone/view`; a temporary folder, with one line on stderr, if that cannot be written. */
export function defaultCache(): string {
  try {
    const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "hone", "view");
    makeFolder(cache, 0o700);
    accessSync(cache, constants.W_OK);
    return cache;
  } catch (error) {
    const cache = temporaryCache();
    process.stderr.write(`the viewer's index is in ${cache}: ${printable((error as Error).message)}\n`);
    return cache;
  }
}

/** A folder that belongs to this user, because other users can write to the folder of temporary files, too. */
function temporaryCache(): string {
  const folder = join(tmpdir(), `hone-view-${process.getuid?.() ?? "user"}`);
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const { uid, mode } = lstatSync(folder);
  const isMine = uid === (process.getuid?.() ?? uid) && (mode & 0o777) === 0o700;
  return isMine ? folder : mkdtempSync(join(tmpdir(), "hone-view-"));
}

const unusedDays = 30;

/** @param cache the folder of all indexes */
export function databaseFile(run: string, cache: string): string {
  const name = createHash("sha256").update(realpathSync(run)).digest("hex").slice(0, 32);
  return join(cache, `${name}.db`);
}

/** Opens an index, or begins a new one if it is missing, damaged or of another version. */
export function openDatabase(file: string): IndexDatabase {
  makeFolder(dirname(file), 0o700);
  try {
    return open(file);
  } catch {
    removeDatabase(file);
    return open(file);
  }
}

function open(file: string): IndexDatabase {
  closeSync(openSync(file, "a", 0o600));
  const now = new Date();
  utimesSync(file, now, now);
  const database = new Database(file);
  try {
    database.exec("PRAGMA busy_timeout = 10000");
    database.exec("PRAGMA journal_mode = WAL");
    // What a power failure loses is indexed again.
    database.exec("PRAGMA synchronous = OFF");
    database.exec("PRAGMA cache_size = -40000");
    database.exec("BEGIN IMMEDIATE");
    const { user_version: version } = database.prepare("PRAGMA user_version").get() as { user_version: number };
    if (version === 0) database.exec(schema);
    database.exec("COMMIT");
    if (version !== 0 && version !== schemaVersion) throw new Error("another version");
    return database;
  } catch (error) {
    database.close();
    throw error;
  }
}

/** Removes an index with its log and shared memory. */
export function removeDatabase(file: string): void {
  for (const suffix of ["", "-wal", "-shm"]) rmSync(`${file}${suffix}`, { force: true });
}

/** Removes indexes that were not opened for a month. */
export function removeUnused(cache: string, now = Date.now()): void {
  makeFolder(cache, 0o700);
  for (const name of readdirSync(cache).filter((each) => each.endsWith(".db"))) {
    const file = join(cache, name);
    const age = now - (statSync(file, { throwIfNoEntry: false })?.mtimeMs ?? now);
    if (age > unusedDays * 86_400_000) removeDatabase(file);
  }
}
