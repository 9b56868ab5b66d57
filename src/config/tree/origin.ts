/** The origin of a configuration value. */

import { printable } from "../../printable.ts";
import { isShipped } from "./shipped.ts";

export type Origin =
  | { kind: "default" }
  /** A default of a command-line front end: `text` says which and why. */
  | { kind: "preset"; text: string }
  /** The `config` of the experiment's script. */
  | { kind: "script" }
  /** `config`: the name of the file in a defaults list, e.g. `rllm/backend/verl`. */
  | { kind: "file"; file: string; line: number; column: number; config?: string }
  /** A flag of a command-line front end, as typed. */
  | { kind: "flag"; text: string }
  /** An override, as typed. */
  | { kind: "override"; text: string }
  /** The reference `text` at `at` was replaced by its value; `from`: the origin of that value. */
  | { kind: "reference"; text: string; at: Origin; from?: Origin }
  /** Copied from the key `from`, another name of this key, which `of` set. */
  | { kind: "synced"; how: "synced" | "forwarded"; from: string; of: Origin };

/** The origin in one line: `default`, `gpu.yaml:3:5`, `command line: training.learning_rate=1e-4`. */
export function originText(origin: Origin): string {
  switch (origin.kind) {
    case "default":
      return "default";
    case "preset":
      return origin.text;
    case "script":
      return "the script's config";
    case "file":
      if (isShipped(origin.file)) return `default (${shippedName(origin.file)}:${origin.line})`;
      return `${oneLine(origin.file)}:${origin.line}:${origin.column}`;
    case "flag":
    case "override":
      return `command line: ${oneLine(origin.text)}`;
    case "reference": {
      const of = origin.from === undefined ? "" : originText(origin.from);
      const from = of === "" ? "" : origin.from?.kind === "synced" ? `, ${of}` : `, from ${of}`;
      return `${originText(origin.at)} (${oneLine(origin.text)}${from})`;
    }
    case "synced":
      return `${origin.how} from ${origin.from} (${originText(origin.of)})`;
  }
}

const shippedName = (file: string) =>
  oneLine(file.replaceAll("\\", "/").replace(/^.*\/(?=(config|verl\/trainer)\/)/, ""));

/** What set the value in the end: for a reference or a synchronized key, what set the place or the key that it is from. */
export type OriginKind = Exclude<Origin["kind"], "reference" | "synced">;

export function originKind(origin: Origin): OriginKind {
  switch (origin.kind) {
    case "file":
      return isShipped(origin.file) ? "default" : "file";
    case "reference":
      return originKind(origin.at);
    case "synced":
      return originKind(origin.of);
    default:
      return origin.kind;
  }
}

/** The priority of a layer: 0 shipped defaults, 1 the script's config, 2 files, 3 flags of a front end, 4 overrides. */
export function layerOf(origin: Origin): number {
  switch (origin.kind) {
    case "default":
    case "preset":
      return 0;
    case "script":
      return 1;
    case "file":
      return isShipped(origin.file) ? 0 : 2;
    case "flag":
      return 3;
    case "override":
      return 4;
    case "reference":
      return layerOf(origin.at);
    // The key itself was not set.
    case "synced":
      return 0;
  }
}

/** Escapes control characters and truncates long text for a message or a comment. */
export const oneLine = (text: string, limit = 120): string =>
  printable(text.length > limit ? `${text.slice(0, limit)}...` : text);
