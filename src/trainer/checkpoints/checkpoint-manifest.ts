/** checkpoint.json: describes a checkpoint and lists the files that it must have. */
import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { type FileHandle, open, readdir, stat } from "node:fs/promises";
import { join, sep } from "node:path";
import { UserError } from "../../errors.ts";
import { readInside } from "../../files/regular-file.ts";
import { isObject } from "../../is-object.ts";
import { numbersOf, toJson } from "../../tracking/run-folder/json-lines.ts";

/** The content of a checkpoint in addition to its folders `policy/` and `critic/`. */
export interface CheckpointContent {
  /** Steps done. */
  step: number;
  /** What the run needs to continue; JSON. */
  state: Record<string, unknown>;
  /** Measured at this step. */
  metrics: Readonly<Record<string, number>>;
  /** The value that determines the best checkpoint (higher is better); absent if not measured. */
  score?: number | undefined;
}

interface FileEntry {
  bytes: number;
  /** Absent for large files of checkpoints that earlier versions wrote. */
  sha256?: string;
}

export interface Manifest extends CheckpointContent {
  /** By path within the checkpoint, with forward slashes; without checkpoint.json itself. */
  files: Record<string, FileEntry>;
  /** Whether checkpoint.json has a hash of itself; earlier versions wrote none. */
  hashed: boolean;
}

const manifestFile = "checkpoint.json";
const format = 1;
const maxManifestBytes = 1 << 28;

/** Syncs and describes all files in `folder`, then writes checkpoint.json, whose presence means "complete". */
export async function writeManifest(folder: string, content: CheckpointContent): Promise<void> {
  const entries = await readdir(folder, { withFileTypes: true, recursive: true });
  const files: Record<string, FileEntry> = {};
  for (const entry of entries.filter((one) => one.isFile())) {
    const path = join(entry.parentPath, entry.name);
    await sync(path);
    files[path.slice(folder.length + 1).replaceAll(sep, "/")] = await describe(path);
  }
  for (const entry of entries.filter((one) => one.isDirectory())) await sync(join(entry.parentPath, entry.name));
  const handle = await open(join(folder, manifestFile), "wx");
  try {
    const text = toJson({ format, ...content, files });
    await handle.writeFile(`${text.slice(0, -1)},"sha256":"${hashOf(text)}"}\n`);
    await handle.sync();
  } finally {
    await handle.close();
  }
  await sync(folder);
}

/** @throws UserError if `folder` is not a checkpoint, was written by a newer version, or has a damaged checkpoint.json */
export async function readManifest(folder: string): Promise<Manifest> {
  const text = await readManifestText(folder);
  const parsed = parseManifest(folder, text);
  if (typeof parsed.format === "number" && parsed.format > format) {
    throw new UserError(
      `${folder} was written by a newer version of Hone: its format is ${parsed.format}, but this version supports only ${format}`,
      { hint: "update Hone, or use a checkpoint of this version" },
    );
  }
  const hashed = "sha256" in parsed;
  if (hashed && !hasOwnHash(text)) throw damaged(folder, `the content of ${manifestFile} has changed`);
  const { step, state, metrics, score, files } = parsed as Partial<Manifest>;
  if (typeof step !== "number" || !isObject(state) || !isObject(metrics) || !isObject(files)) {
    throw damaged(folder, `${manifestFile} has no step, state, metrics or files`);
  }
  for (const [name, entry] of Object.entries(files)) {
    if (typeof (entry as FileEntry | null)?.bytes !== "number")
      throw damaged(folder, `${manifestFile} does not describe ${name}`);
  }
  const known = typeof score === "number" ? score : undefined;
  return { step, state, metrics: numbersOf(metrics), score: known, files, hashed };
}

/** Whether the hash at the end of the text is that of the object without it. */
function hasOwnHash(text: string): boolean {
  const [end = "", hash] = /,"sha256":"(\w+)"\}\n$/.exec(text) ?? [];
  return hash !== undefined && hashOf(`${text.slice(0, -end.length)}}`) === hash;
}

async function readManifestText(folder: string): Promise<string> {
  const bytes = readInside(folder, manifestFile, maxManifestBytes);
  if (bytes !== undefined) return bytes.toString("utf8");
  throw new UserError(`${folder} is not a checkpoint: ${manifestFile} is missing`, {
    hint: "name a folder such as runs/latest/checkpoints/step-000010",
  });
}

function parseManifest(folder: string, text: string): Record<string, unknown> {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    throw damaged(folder, `${manifestFile} cannot be read as JSON`);
  }
  if (!isObject(parsed)) throw damaged(folder, `${manifestFile} is not a JSON object`);
  return parsed;
}

/** @throws UserError that names the first file that is missing or has changed */
export async function checkFiles(folder: string, files: Manifest["files"]): Promise<void> {
  for (const [name, { bytes, sha256 }] of Object.entries(files)) {
    const path = join(folder, name);
    const size = await stat(path).then(
      (found) => (found.isFile() ? found.size : null),
      () => null,
    );
    if (size === null) throw damaged(folder, `${name} is missing, or not a file`);
    if (size !== bytes) throw damaged(folder, `${name} has ${size} bytes instead of ${bytes}`);
    if (sha256 !== undefined && (await hashFile(path)) !== sha256)
      throw damaged(folder, `the content of ${name} has changed`);
  }
}

/** Flushes a file, or a folder's list of names, to disk. */
export async function sync(path: string): Promise<void> {
  let handle: FileHandle | undefined;
  try {
    handle = await open(path, "r");
    await handle.sync();
  } catch (error) {
    // Windows and some network file systems cannot sync a folder, or a file opened for reading. Other errors are real.
    if (!["EPERM", "EISDIR", "EINVAL", "ENOTSUP"].includes((error as NodeJS.ErrnoException).code ?? "")) throw error;
  } finally {
    await handle?.close();
  }
}

async function describe(path: string): Promise<FileEntry> {
  const { size: bytes } = await stat(path);
  return { bytes, sha256: await hashFile(path) };
}

/** In pieces, so that a large file neither fills memory nor blocks the event loop. */
async function hashFile(path: string): Promise<string> {
  const sum = createHash("sha256");
  for await (const piece of createReadStream(path, { highWaterMark: 1 << 20 })) sum.update(piece as Buffer);
  return sum.digest("hex");
}

const hashOf = (text: string) => createHash("sha256").update(text).digest("hex");

const damaged = (folder: string, what: string) =>
  new UserError(`the checkpoint ${folder} is damaged: ${what}`, { hint: "use another checkpoint of the run" });
