/**
 * Caches files of hub datasets on disk, in the layout of the hub's Python tools, so both share their downloads:
 * `datasets--org--name/{blobs/{etag}, snapshots/{commit}/{path}, refs/{revision}}`. Interrupted downloads are resumed.
 */
import { createHash } from "node:crypto";
import { createReadStream, createWriteStream, existsSync } from "node:fs";
import { mkdir, readFile, rename, rm, stat, symlink, writeFile } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import type { ReadableStream } from "node:stream/web";
import { downloadFile, type ListFileEntry } from "@huggingface/hub";
import { RunError, UserError } from "../errors.ts";
import { reasonOf, withRetries } from "../http/retries.ts";
import { type HubConnection, hubFailure, isUnreachable } from "./hub-connection.ts";

/** The files of a split as last seen on the hub, used when the hub cannot be reached. */
export interface Manifest {
  commit: string;
  files: string[];
}

const resumeHint = "Run the command again: the download resumes where it stopped.";

export function datasetFolder(cacheDir: string, dataset: string): string {
  return join(cacheDir, `datasets--${dataset.replaceAll("/", "--")}`);
}

export function snapshotPath(folder: string, commit: string, path: string): string {
  return join(folder, "snapshots", commit, path);
}

/** Downloads a file unless it is cached, and returns its path. */
export async function cachedFile(
  hub: HubConnection,
  folder: string,
  commit: string,
  entry: ListFileEntry,
): Promise<string> {
  const { path } = entry;
  // File names come from the repository and become local paths.
  if (/(^|[/\\])\.\.([/\\]|$)|^[/\\]|\\|:/.test(path))
    throw new UserError(`${hub.dataset}: the file name "${path}" is not safe`);
  const target = snapshotPath(folder, commit, path);
  if (existsSync(target)) return target;
  const digest = expectedDigest(hub, entry);
  const blob = join(folder, "blobs", digest.hex);
  try {
    await mkdir(dirname(blob), { recursive: true });
    await mkdir(dirname(target), { recursive: true });
    if (!existsSync(blob)) await download(hub, commit, entry, blob, digest);
    await symlink(relative(dirname(target), blob), target).catch(() => rename(blob, target));
  } catch (error) {
    throw hubFailure(hub, error, `storing ${path}`);
  }
  return target;
}

interface Digest {
  hex: string;
  /** Large files are identified by their SHA-256, small ones by their git hash. */
  kind: "sha256" | "git";
}

function expectedDigest({ dataset }: HubConnection, { path, lfs, oid }: ListFileEntry): Digest {
  const hex = lfs?.oid ?? oid ?? "";
  if (!/^[0-9a-f]{40}([0-9a-f]{24})?$/.test(hex))
    throw new RunError(`${dataset}: the hub did not return a checksum for ${path}`);
  return { hex, kind: lfs === undefined ? "git" : "sha256" };
}

async function download(
  hub: HubConnection,
  commit: string,
  entry: ListFileEntry,
  blob: string,
  digest: Digest,
): Promise<void> {
  const partial = `${blob}.incomplete`;
  const { path, size } = entry;
  let offset = 0;
  let damaged = 0;

  async function attempt(): Promise<void> {
    offset = await sizeOf(partial);
    if (offset < size) {
      const resuming = offset > 0 ? ` (resuming at ${megabytes(offset)})` : "";
      hub.onStatus(`${hub.dataset}: downloading ${path}, ${megabytes(size)}${resuming}`);
      await appendFrom(hub, commit, path, partial, offset);
    } else if (size === 0) await writeFile(partial, "");
    if ((await sizeOf(partial)) < size) {
      throw new RunError(`${hub.dataset}: the download of ${path} ended early`, { hint: resumeHint });
    }
    if (await matches(partial, size, digest)) return;
    await rm(partial, { force: true });
    damaged++;
    throw new RunError(`${hub.dataset}: the checksum of ${path} does not match the hub's`, { hint: resumeHint });
  }

  await withRetries(attempt, {
    retries: 4,
    pauseSeconds: hub.retryDelayMs / 1000,
    // Not a full disk.
    isTemporary: (error) => damaged < 3 && (isUnreachable(error) || error instanceof RunError),
    hasProgressed: async () => (await sizeOf(partial)) > offset,
    onRetry: (error) =>
      hub.onStatus(`${hub.dataset}: the download of ${path} was interrupted (${reasonOf(error)}); retrying`),
  });
  await rename(partial, blob);
}

async function appendFrom(
  hub: HubConnection,
  revision: string,
  path: string,
  partial: string,
  offset: number,
): Promise<void> {
  const repo = { type: "dataset", name: hub.dataset } as const;
  const remote = await downloadFile({ ...hub.request, repo, path, revision });
  if (remote === null) throw new UserError(`${hub.dataset}: the file ${path} no longer exists on the hub`);
  const rest = offset > 0 ? remote.slice(offset) : remote;
  await pipeline(Readable.fromWeb(rest.stream() as ReadableStream), createWriteStream(partial, { flags: "a" }));
}

async function matches(file: string, size: number, { hex, kind }: Digest): Promise<boolean> {
  if ((await sizeOf(file)) !== size) return false;
  const hash = createHash(kind === "git" ? "sha1" : "sha256");
  if (kind === "git") hash.update(`blob ${size}\0`);
  await pipeline(createReadStream(file), hash);
  return hash.digest("hex") === hex;
}

const sizeOf = (file: string) =>
  stat(file).then(
    ({ size }) => size,
    () => 0,
  );
const megabytes = (bytes: number) => `${(bytes / 1e6).toFixed(1)} MB`;

function manifestFile(folder: string, key: readonly string[]): string {
  return join(folder, "hone", `${encodeURIComponent(key.join("@"))}.json`);
}

/** @param key revision, configuration and split as given by the user */
export async function writeManifest(folder: string, key: readonly string[], manifest: Manifest): Promise<void> {
  const file = manifestFile(folder, key);
  await mkdir(dirname(file), { recursive: true });
  await writeFile(`${file}.new`, JSON.stringify(manifest));
  await rename(`${file}.new`, file);
}

/** Undefined if the split was never downloaded completely. */
export async function readManifest(folder: string, key: readonly string[]): Promise<Manifest | undefined> {
  try {
    const manifest = JSON.parse(await readFile(manifestFile(folder, key), "utf8")) as Manifest;
    return manifest.files.every((path) => existsSync(snapshotPath(folder, manifest.commit, path)))
      ? manifest
      : undefined;
  } catch {
    return undefined;
  }
}
