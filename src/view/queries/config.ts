/** The configuration of a run, with the origin of each value. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { isMap, isScalar, type Node, parseDocument } from "yaml";
import { configKeys } from "../../config/describe.ts";
import { maskUrls } from "../../mask-urls.ts";
import type { ConfigEntry, RunConfig } from "../api.ts";

/** config.yaml does not contain secrets. As a further protection, keys for secrets are masked here. */
export function runConfig(folder: string): RunConfig {
  const file = join(folder, "config.yaml");
  if (!existsSync(file)) return { entries: [] };
  const { contents } = parseDocument(readFileSync(file, "utf8"));
  const entries: ConfigEntry[] = [];
  collect(contents as Node | null, "", entries);
  return { entries };
}

function collect(node: Node | null, key: string, entries: ConfigEntry[]): void {
  if (isMap(node) && node.items.length > 0) {
    for (const { key: name, value } of node.items) {
      const text = String(isScalar(name) ? name.value : name);
      collect(value as Node | null, key === "" ? text : `${key}.${text}`, entries);
    }
    return;
  }
  const described = configKeys.get(key);
  const value: unknown = node === null ? null : node.toJSON();
  const origin = node?.comment?.trim();
  entries.push({
    key,
    value: described?.about.secret === true && !isReference(value) ? "***" : masked(value),
    origin: origin ? maskUrls(origin) : undefined,
    about: described?.description,
  });
}

/** A reference such as an environment variable is shown, because the file does not contain its value. */
const isReference = (value: unknown) => value === null || (typeof value === "string" && /^\$\{[^}]*\}$/.test(value));

/** Logins of URLs. */
function masked(value: unknown): unknown {
  if (typeof value === "string") return maskUrls(value);
  if (Array.isArray(value)) return value.map(masked);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, masked(inner)]));
}

/** `model.name` as text; undefined if it is not set. */
export function configText({ entries }: RunConfig, key: string): string | null {
  const value = entries.find((entry) => entry.key === key)?.value;
  return value === undefined || value === null ? null : String(value);
}
