/** The configuration of a run, with the origin of each value. */
import { lstatSync } from "node:fs";
import { join } from "node:path";
import { isMap, isScalar, type Node, parseDocument } from "yaml";
import { configKeys } from "../../config/describe.ts";
import type { OriginKind } from "../../config/tree/origin.ts";
import { UserError } from "../../errors.ts";
import { readInside } from "../../files/regular-file.ts";
import { maskUrls, maskUrlsIn } from "../../mask-urls.ts";
import { own } from "../../own.ts";
import { isShallow } from "../../tracking/run-folder/json-lines.ts";
import { type ChosenOrigins, readOrigins } from "../../tracking/run-folder/run-folder.ts";
import { type FileProblem, unreadable } from "../index/problems.ts";
import { optional } from "./json.ts";

const configFile = "config.yaml";
/** A run's configuration has 15 kB, and parsing YAML is slow. */
const maxBytes = 250_000;
/** The most characters of a value in the list of runs. */
const maxText = 1000;

export type RunConfig = ReturnType<typeof runConfig>;

/**
 * The entries are in the order of config.yaml, which does not contain secrets. As a further protection, keys for secrets
 * are masked here.
 * @throws UserError if the file cannot be read
 */
export function runConfig(folder: string) {
  const text = readInside(folder, configFile, maxBytes)?.toString("utf8");
  const entries: ConfigEntry[] = [];
  if (text === undefined) return { entries };
  const origins = readOrigins(folder);
  try {
    // The time to find keys that occur twice is quadratic.
    const { contents } = parseDocument(text, { logLevel: "silent", uniqueKeys: false });
    collect(contents as Node | null, "", origins, entries);
    if (!isShallow(entries)) throw new Error("it is nested too deeply");
  } catch (cause) {
    // The parser recurses, so nesting thousands of levels deep overflows the stack.
    throw new UserError(`${configFile} cannot be read: ${(cause as Error).message}`, { cause });
  }
  return { entries };
}

/** What a list shows of the configuration of each run folder, until its file changes: a list is read often. */
const heads = new Map<string, { mark: string; head: ReturnType<typeof readHead> }>();

export function configHead(folder: string) {
  const stat = lstatSync(join(folder, configFile), { throwIfNoEntry: false });
  const mark = `${stat?.ino} ${stat?.size} ${stat?.ctimeMs}`;
  const known = heads.get(folder);
  if (known?.mark === mark) return known.head;
  const head = readHead(folder);
  heads.set(folder, { mark, head });
  return head;
}

function readHead(folder: string) {
  let config: RunConfig = { entries: [] };
  let problem: FileProblem | undefined;
  try {
    config = runConfig(folder);
  } catch (error) {
    problem = unreadable(configFile, error);
  }
  return {
    model: configText(config, "model.name"),
    backend: configText(config, "rllm.backend"),
    project: configText(config, "rllm.trainer.project_name"),
    experiment: configText(config, "rllm.trainer.experiment_name"),
    problem,
  };
}

function collect(node: Node | null, key: string, origins: ChosenOrigins | undefined, entries: ConfigEntry[]): void {
  if (isMap(node) && node.items.length > 0) {
    for (const { key: name, value } of node.items) {
      const text = String(isScalar(name) ? name.value : name);
      collect(value as Node | null, key === "" ? text : `${key}.${text}`, origins, entries);
    }
    return;
  }
  entries.push(toEntry(node, key, origins));
}

export type ConfigEntry = ReturnType<typeof toEntry>;

function toEntry(node: Node | null, key: string, origins: ChosenOrigins | undefined) {
  const described = configKeys.get(key);
  const value: unknown = node === null ? null : node.toJSON();
  const text = node?.comment?.trim();
  return {
    /** E.g. `training.learning_rate`. */
    key,
    value: described?.about.secret === true && !isReference(value) ? "***" : maskUrlsIn(value),
    ...optional({
      /** Where it was set, e.g. `train.yaml:3:5`; absent if not recorded. */
      origin: text ? { kind: kindOf(key, text, origins), text: maskUrls(text) } : undefined,
      /** The key's description in the reference. */
      about: described?.description,
    }),
  };
}

/** Earlier versions recorded only the text of an origin, which begins with "default" for a default. */
function kindOf(key: string, text: string, origins: ChosenOrigins | undefined): OriginKind | "unknown" {
  if (origins !== undefined) return own(origins, key) ?? "default";
  return /^(?:(?:synced|forwarded) from \S+ \()?default\b/.test(text) ? "default" : "unknown";
}

/** A reference such as an environment variable is shown, because the file does not contain its value. */
const isReference = (value: unknown) => value === null || (typeof value === "string" && /^\$\{[^}]*\}$/.test(value));

/** Null if it is not set. */
function configText({ entries }: RunConfig, key: string): string | null {
  const value = entries.find((entry) => entry.key === key)?.value;
  return value === undefined || value === null ? null : String(value).slice(0, maxText);
}
