/**
 * Selects the files of a split in a hub repository by the rules of the hub's own tools: the card's `configs` if it lists
 * them, otherwise the names of files and folders. Works on names only and reads no files.
 */
import { parse } from "yaml";
import { UserError } from "../errors.ts";

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
