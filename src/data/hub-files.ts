/**
 * The files of a data set on the Hugging Face hub: which belong to a split, the connection with its failures, and the cache on disk,
 * shared with the hub's Python tools.
 */
import { createHash } from "node:crypto";
import { createReadStream, createWriteStream, existsSync } from "node:fs";
import { mkdir, readFile, rename, rm, stat, symlink, writeFile } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import type { ReadableStream } from "node:stream/web";
import { downloadFile, HubApiError, type ListFileEntry } from "@huggingface/hub";
import { parse } from "yaml";
import { HoneError, RunError, UserError } from "../base/errors.ts";
import { isTemporaryStatus, reasonOf, withRetries } from "../base/http.ts";

// Selects the files of a split by the rules of the hub's own tools: the card's `configs` if it lists them, otherwise the names of files
// and folders. Works on names only and reads no files.

export interface SplitChoice {
  /** Undefined for the repository's default configuration. */
  config: string | undefined;
  split: string;
}

interface CardConfig {
  name: string;
  isDefault: boolean;
  /** Glob patterns by split. */
  splits: Map<string, string[]>;
}

const readable = /\.(parquet|jsonl|ndjson)$/i;

/**
 * The split's readable files, sorted; empty if the split is stored in formats that Hone does not read.
 * @param files every path in the repository
 * @param card the text of its README.md
 * @throws UserError when the configuration or the split does not exist
 */
export function splitFiles(dataset: string, files: readonly string[], card: string, choice: SplitChoice): string[] {
  const configs = cardConfigs(card);
  const own = files.filter((file) => readable.test(file));
  if (configs.length === 0) return filesByName(dataset, own, choice);
  const config =
    choice.config === undefined
      ? (configs.find(({ isDefault, name }) => isDefault || name === "default") ??
        (configs.length === 1 ? configs[0] : undefined))
      : configs.find(({ name }) => name === choice.config);
  const names = configs.map(({ name }) => name);
  if (config === undefined) throw noSuch(dataset, "configuration", choice.config, names);
  const patterns = config.splits.get(choice.split);
  if (patterns === undefined) throw noSuch(dataset, "split", choice.split, [...config.splits.keys()]);
  const matches = patterns.map(globPattern);
  const chosen = files.filter((file) => matches.some((pattern) => pattern.test(file)));
  return chosen.every((file) => readable.test(file)) ? chosen.sort() : [];
}

/** The files in the branch where the hub stores every public dataset as Parquet: `{config}/{split}/0000.parquet`. */
export function convertedFiles(dataset: string, files: readonly string[], choice: SplitChoice): string[] {
  const parts = files.filter((file) => file.endsWith(".parquet")).map((file) => file.split("/"));
  const configs = [...new Set(parts.map(([config = ""]) => config))];
  const [only = "default"] = configs.length === 1 ? configs : [];
  const config = choice.config ?? only;
  if (!configs.includes(config)) throw noSuch(dataset, "configuration", choice.config, configs);
  const splits = [...new Set(parts.filter(([name]) => name === config).map(([, split = ""]) => split))];
  if (!splits.includes(choice.split)) throw noSuch(dataset, "split", choice.split, splits);
  return files.filter((file) => file.startsWith(`${config}/${choice.split}/`) && file.endsWith(".parquet")).sort();
}

function noSuch(dataset: string, what: string, given: string | undefined, known: readonly string[]): UserError {
  const message =
    given === undefined
      ? `the dataset ${dataset} has several ${what}s, and none is the default`
      : `the dataset ${dataset} has no ${what} "${given}"`;
  const shown = known.length > 20 ? [...known.slice(0, 20), "..."] : known;
  return new UserError(message, {
    hint: shown.length > 0 ? `Available: ${shown.join(", ")}.` : `No readable ${what} was found.`,
  });
}

/** Words in a path that name a split. */
const splitWords: Readonly<Record<string, readonly string[]>> = {
  train: ["train", "training"],
  validation: ["validation", "valid", "val", "dev"],
  test: ["test", "testing", "eval", "evaluation"],
};

function filesByName(dataset: string, readableFiles: readonly string[], { config, split }: SplitChoice): string[] {
  const folders = [
    ...new Set(
      readableFiles
        .map((file) => file.split("/"))
        .filter((parts) => parts.length > 1)
        .map(([folder = ""]) => folder),
    ),
  ];
  const inConfig =
    config === undefined
      ? readableFiles
      : readableFiles.filter((file) => file.split("/").slice(0, -1).includes(config));
  if (inConfig.length === 0 && readableFiles.length > 0) throw noSuch(dataset, "configuration", config, folders);
  const splitOf = (file: string) => {
    // The name of a sharded file begins with its split, which can be any name.
    const sharded = /([^/]+)-\d{5}-of-\d{5}[^/]*$/.exec(file)?.[1];
    if (sharded !== undefined) return sharded;
    const words = file.toLowerCase().split(/[^a-z0-9]+/);
    const named = Object.entries(splitWords).find(([, names]) => names.some((name) => words.includes(name)));
    return named?.[0] ?? "train";
  };
  const chosen = inConfig.filter((file) => splitOf(file) === split);
  if (chosen.length === 0 && inConfig.length > 0)
    throw noSuch(dataset, "split", split, [...new Set(inConfig.map(splitOf))]);
  return chosen.sort();
}

function cardConfigs(card: string): CardConfig[] {
  const header = /^---\r?\n([\s\S]*?)\r?\n---/.exec(card)?.[1];
  if (header === undefined) return [];
  let configs: unknown;
  try {
    configs = (parse(header, { logLevel: "silent" }) as { configs?: unknown } | null)?.configs;
  } catch {
    // A card with invalid YAML is treated like a missing card: splits are found by file names.
    return [];
  }
  if (!Array.isArray(configs)) return [];
  return configs.flatMap((config: { config_name?: unknown; default?: unknown; data_files?: unknown } | null) => {
    const splits = splitPatterns(config?.data_files);
    return splits.size === 0
      ? []
      : [{ name: String(config?.config_name ?? "default"), isDefault: config?.default === true, splits }];
  });
}

/** Reads `data_files`: a pattern, a list of patterns, or a list of `{split, path}` with one or several patterns. */
function splitPatterns(dataFiles: unknown): Map<string, string[]> {
  const splits = new Map<string, string[]>();
  const add = (split: string, path: unknown) => {
    const patterns = [path].flat().filter((pattern): pattern is string => typeof pattern === "string");
    if (patterns.length > 0) splits.set(split, [...(splits.get(split) ?? []), ...patterns]);
  };
  for (const entry of [dataFiles].flat()) {
    if (typeof entry === "string") add("train", entry);
    else if (typeof entry === "object" && entry !== null && "path" in entry) {
      add("split" in entry ? String(entry.split) : "train", entry.path);
    }
  }
  return splits;
}

/** Supports `*`, `**`, `?`, `[...]` and `{a,b}`; the name of a folder matches everything in it. */
function globPattern(glob: string): RegExp {
  const source = glob.replace(/^\.\//, "").replace(/\*\*\/|\*\*|\*|\?|\[[^\]/]+\]|\{[^}]*\}|[\s\S]/g, (part) => {
    if (part === "**/") return "(?:.*/)?";
    if (part === "**") return ".*";
    if (part === "*") return "[^/]*";
    if (part === "?") return "[^/]";
    if (part.length > 1 && part.startsWith("["))
      return `[${part
        .slice(1, -1)
        .replace(/^!/, "^")
        .replace(/[\\\]]/g, "\\$&")}]`;
    if (part.length > 1) return `(?:${part.slice(1, -1).split(",").map(literal).join("|")})`;
    return literal(part);
  });
  try {
    return new RegExp(`^${source}(?:/.*)?$`);
  } catch {
    // An invalid range like [z-a] matches nothing.
    return /^(?!)/;
  }
}

const literal = (text: string) => text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");

// The connection to the hub, and errors for its failures.

export interface HubConnection {
  /** `organization/name` */
  dataset: string;
  /** Parameters of every request to the hub. */
  request: { hubUrl: string } | { hubUrl: string; accessToken: string };
  /** Delay before the first retry; it doubles with each retry. */
  retryDelayMs: number;
  onStatus(text: string): void;
}

/** @throws UserError when the address or the token is invalid */
export function hubConnection(
  dataset: string,
  options: { hubUrl?: string; token?: string; retryDelayMs?: number; onStatus?: (text: string) => void },
): HubConnection {
  const hubUrl = (options.hubUrl ?? (process.env.HF_ENDPOINT || "https://huggingface.co")).replace(/\/+$/, "");
  if (!/^https?:\/\//.test(hubUrl) || !URL.canParse(hubUrl))
    throw new UserError(`HF_ENDPOINT is "${hubUrl}", which is not an http(s) URL`);
  const accessToken = options.token ?? process.env.HF_TOKEN?.trim();
  if (accessToken && !accessToken.startsWith("hf_")) {
    throw new UserError("HF_TOKEN is not a hub access token: those start with hf_", {
      hint: "Unset it for public datasets, or set a token with read access.",
    });
  }
  return {
    dataset,
    request: accessToken ? { hubUrl, accessToken } : { hubUrl },
    retryDelayMs: options.retryDelayMs ?? 1000,
    onStatus: options.onStatus ?? ((text) => void process.stderr.write(`${text}\n`)),
  };
}

/** Whether an error may be fixed by a retry: no connection, a lost connection, or a server error. */
export function isUnreachable(error: unknown): boolean {
  if (error instanceof HubApiError) return isTemporaryStatus(error.statusCode);
  if (error instanceof HoneError) return false;
  // The hub's client aborts a stream with a plain string.
  if (typeof error === "string") return true;
  if (!(error instanceof Error)) return false;
  if (error.name === "TimeoutError") return true;
  const network = /fetch failed|terminated|socket|network|other side closed|premature/i;
  const code = (error as NodeJS.ErrnoException).code ?? (error.cause as NodeJS.ErrnoException | undefined)?.code ?? "";
  return (
    network.test(error.message) ||
    /^(UND_ERR|ECONN|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|EPIPE|ENETUNREACH|EHOSTUNREACH)/.test(code)
  );
}

const localHint =
  'If the hub cannot be reached, copy the split\'s .parquet or .jsonl file here and open it: openDataset("train.parquet").';

/** @param doing the operation that failed: `"listing files"` */
export function hubFailure({ dataset, request }: HubConnection, error: unknown, doing: string): HoneError {
  if (error instanceof HoneError) return error;
  if (isUnreachable(error)) {
    const { hostname } = new URL(request.hubUrl);
    return new RunError(`${dataset}: the hub ${hostname} cannot be reached (${doing}: ${reasonOf(error)})`, {
      hint: localHint,
      cause: error,
    });
  }
  if (error instanceof HubApiError) {
    const { statusCode } = error;
    if (statusCode === 401 || statusCode === 403) {
      return new UserError(
        `${dataset}: the hub denied access (${statusCode}); the dataset is private, gated, or does not exist`,
        {
          hint:
            "accessToken" in request
              ? "Check the name, and that the token in HF_TOKEN may read the dataset; accept a gated dataset's terms on its page."
              : "Check the name. For a private or gated dataset, set HF_TOKEN to a token that may read it.",
          cause: error,
        },
      );
    }
    if (statusCode === 404) {
      return new UserError(`${dataset}: dataset or revision not found on the hub`, {
        hint: "Write the dataset as organization/name, as in the URL of its page.",
        cause: error,
      });
    }
  }
  if ((error as NodeJS.ErrnoException).code === "ENOSPC") {
    return new RunError(`${dataset}: ${doing} failed: the disk is full`, {
      hint: "Free some space, or set HF_HUB_CACHE to a folder on a larger disk.",
      cause: error,
    });
  }
  return new RunError(`${dataset}: ${doing} failed: ${reasonOf(error)}`, { hint: localHint, cause: error });
}

// Caches files of hub datasets on disk, in the layout of the hub's Python tools, so both share their downloads:
// `datasets--org--name/{blobs/{etag}, snapshots/{commit}/{path}, refs/{revision}}`. Interrupted downloads are resumed.

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
