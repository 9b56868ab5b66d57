/** Opens a dataset by its name: a file, or a data set of the Hugging Face hub, which is downloaded once. */
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { datasetInfo, getHFHubCachePath, type ListFileEntry, listFiles } from "@huggingface/hub";
import { RunError, UserError } from "../base/errors.ts";
import type { Dataset, FileRow } from "./dataset.ts";
import { concatenate, fileDataset, openJsonl, openParquet } from "./files.ts";
import {
  cachedFile,
  convertedFiles,
  datasetFolder,
  type HubConnection,
  hubConnection,
  hubFailure,
  isUnreachable,
  type Manifest,
  readManifest,
  type SplitChoice,
  snapshotPath,
  splitFiles,
  writeManifest,
} from "./hub-files.ts";

/**
 * The rows of a file or of a dataset on the Hugging Face hub.
 *
 * @param spec a `.jsonl` or `.parquet` file, or `hub:organization/name?config=main&split=train`
 * @example
 * const rows = await openDataset("data/train.jsonl");
 * @throws UserError when the dataset cannot be opened or a row is invalid (`file:line`)
 */
export async function openDataset(spec: string): Promise<Dataset<FileRow>> {
  if (spec.startsWith("hub:")) return openHubSpec(spec);
  const name = basename(spec).replace(/\.[^.]*$/, "");
  if (/\.(jsonl|ndjson)$/i.test(spec)) return fileDataset(name, openJsonl(spec));
  if (/\.parquet$/i.test(spec)) return fileDataset(name, await openParquet(spec));
  throw new UserError(`${spec}: not a dataset; use a .jsonl or .parquet file, or hub:organization/name`, {
    hint: /\.(json|csv|tsv)$/i.test(spec)
      ? "Convert the file to .jsonl: one JSON object per line, one line per task."
      : /^[\w.-]+\/[\w.-]+$/.test(spec)
        ? `For a hub dataset, write "hub:${spec}".`
        : "The file extension selects the format.",
  });
}

// Opens datasets of the Hugging Face hub: downloads the files of a split once, then reads them like local files.

export interface HubOptions {
  /** The dataset's configuration ("subset"); default: the repository's default. */
  config?: string;
  /** Default `train`. */
  split?: string;
  /** Branch, tag or commit; default `main`. */
  revision?: string;
  /** Default: the cache of the hub's own tools (`HF_HUB_CACHE`, `HF_HOME`, else `~/.cache/huggingface/hub`). */
  cacheDir?: string;
  /** Default: `HF_ENDPOINT`, else the public hub. */
  hubUrl?: string;
  /** Default: `HF_TOKEN`. */
  token?: string;
  /** Called for each download; default: writes a line to standard error. */
  onStatus?: (text: string) => void;
  /** Delay before the first retry of a failed download (default 1000); it doubles with each retry. */
  retryDelayMs?: number;
}

/** The branch where the hub stores every public dataset as Parquet, regardless of its original format. */
const convertedRevision = "refs/convert/parquet";

/**
 * Checks the files against the hub on every call and downloads them if they have changed. If the hub cannot be reached,
 * or HF_HUB_OFFLINE is set, it uses the files downloaded last and adds a note to the dataset.
 * @example
 * const train = await hub("openai/gsm8k", { config: "main", split: "train" });
 * @throws UserError when the dataset, configuration or split does not exist or is not accessible
 * @throws RunError when the hub cannot be reached and the split was never downloaded
 */
export async function hub(dataset: string, options: HubOptions = {}): Promise<Dataset<FileRow>> {
  if (!/^[\w.-]+(\/[\w.-]+)?$/.test(dataset)) {
    throw new UserError(`"${dataset}" is not a hub dataset; write organization/name`);
  }
  // The revision also becomes a file name in the cache.
  if (options.revision !== undefined && !/^(?!.*\.\.)\w[\w./-]*$/.test(options.revision)) {
    throw new UserError(`${dataset}: "${options.revision}" is not a branch, tag or commit`);
  }
  const connection = hubConnection(dataset, options);
  const choice: SplitChoice = { config: options.config, split: options.split ?? "train" };
  const folder = datasetFolder(options.cacheDir ?? getHFHubCachePath(), dataset);
  const key = [options.revision ?? "main", choice.config ?? "", choice.split];
  const { manifest, notes } = await fetchOrUseCache(connection, folder, key, options.revision, choice);

  const sources = await Promise.all(
    manifest.files.map((path) => {
      const file = snapshotPath(folder, manifest.commit, path);
      const label = `${dataset}/${path}`;
      return /\.parquet$/i.test(path) ? openParquet(file, label) : openJsonl(file, label);
    }),
  );
  const all = concatenate(sources);
  return fileDataset(`${dataset}/${choice.split}`, { ...all, notes: [...notes, ...all.notes] });
}

/** Opens `hub:organization/name?config=main&split=train&revision=main`. */
async function openHubSpec(spec: string): Promise<Dataset<FileRow>> {
  const [name = "", query = ""] = spec.slice("hub:".length).split("?", 2);
  const options: HubOptions = {};
  for (const [key, value] of new URLSearchParams(query)) {
    if (key !== "config" && key !== "split" && key !== "revision") {
      throw new UserError(`${spec}: unknown parameter "${key}"`, {
        hint: "Use config, split or revision: hub:openai/gsm8k?config=main&split=train",
      });
    }
    options[key] = value;
  }
  return hub(name, options);
}

interface Found {
  manifest: Manifest;
  notes: string[];
}

async function fetchOrUseCache(
  connection: HubConnection,
  folder: string,
  key: readonly string[],
  revision: string | undefined,
  choice: SplitChoice,
): Promise<Found> {
  const { dataset } = connection;
  const cached = await readManifest(folder, key);
  const fromCache = (reason: string): Found | undefined =>
    cached && {
      manifest: cached,
      notes: [`${dataset}: ${reason}; using the files of commit ${cached.commit.slice(0, 8)} from ${folder}`],
    };
  if (/^(1|true|yes|on)$/i.test(process.env.HF_HUB_OFFLINE ?? "")) {
    const found = fromCache("HF_HUB_OFFLINE is set");
    if (found !== undefined) return found;
    throw new RunError(`${dataset}: HF_HUB_OFFLINE is set, but the split ${choice.split} was never downloaded`, {
      hint: 'Unset HF_HUB_OFFLINE, or open a local file: openDataset("train.parquet").',
    });
  }
  try {
    const manifest = await fetchSplit(connection, folder, revision, choice);
    await writeManifest(folder, key, manifest);
    return { manifest, notes: [] };
  } catch (error) {
    const found = isUnreachable(error instanceof RunError ? error.cause : error)
      ? fromCache("the hub cannot be reached")
      : undefined;
    if (found !== undefined) return found;
    throw hubFailure(connection, error, "requesting the dataset");
  }
}

async function fetchSplit(
  connection: HubConnection,
  folder: string,
  revision: string | undefined,
  choice: SplitChoice,
): Promise<Manifest> {
  const { dataset } = connection;
  const own = await listing(connection, folder, revision ?? "main");
  const readme = own.entries.get("README.md");
  const card =
    readme === undefined ? "" : await readFile(await cachedFile(connection, folder, own.commit, readme), "utf8");
  const files = splitFiles(dataset, [...own.entries.keys()], card, choice);
  if (files.length > 0) return downloadAll(connection, folder, own, files);
  if (revision !== undefined) throw notReadable(dataset);

  const converted = await listing(connection, folder, convertedRevision).catch((error: unknown) => {
    throw isUnreachable(error) ? error : notReadable(dataset);
  });
  return downloadAll(connection, folder, converted, convertedFiles(dataset, [...converted.entries.keys()], choice));
}

const notReadable = (dataset: string) =>
  new UserError(`${dataset}: the dataset has no .parquet or .jsonl files for this split`, {
    hint: "Convert the split to .jsonl and open that file.",
  });

interface Listing {
  commit: string;
  entries: Map<string, ListFileEntry>;
}

/** A hub that does not respond within this time counts as unreachable. */
const listingTimeoutMs = 60_000;

async function listing(connection: HubConnection, folder: string, revision: string): Promise<Listing> {
  const { dataset } = connection;
  const request = {
    ...connection.request,
    fetch: ((input, init) =>
      fetch(input, { ...init, signal: AbortSignal.timeout(listingTimeoutMs) })) satisfies typeof fetch,
  };
  const { sha: commit } = await datasetInfo({ ...request, name: dataset, revision, additionalFields: ["sha"] });
  if (!/^[0-9a-f]{40}$/.test(commit)) throw new RunError(`${dataset}: the hub did not return a commit for ${revision}`);
  const entries = new Map<string, ListFileEntry>();
  const repo = { type: "dataset", name: dataset } as const;
  for await (const entry of listFiles({ ...request, repo, recursive: true, revision: commit })) {
    if (entry.type === "file") entries.set(entry.path, entry);
  }
  // The hub's Python tools look up the commit of a branch in this file.
  const reference = join(folder, "refs", revision);
  await mkdir(dirname(reference), { recursive: true });
  await writeFile(reference, commit);
  return { commit, entries };
}

async function downloadAll(
  connection: HubConnection,
  folder: string,
  { commit, entries }: Listing,
  files: string[],
): Promise<Manifest> {
  for (const path of files) {
    const entry = entries.get(path);
    if (entry !== undefined) await cachedFile(connection, folder, commit, entry);
  }
  return { commit, files };
}
