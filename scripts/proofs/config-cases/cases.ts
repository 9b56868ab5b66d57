/** Compares the compositions of Hone with recorded ones. */
import { isDeepStrictEqual } from "node:util";
import { UserError } from "../../../src/base/errors.ts";
import { type ComposedConfig, composeConfig } from "../../../src/config/compose.ts";
import { sharedKeys } from "../../../src/config/synonyms.ts";
import { olderVerlNames } from "../../../src/config/verl-keys.ts";
import { decisionsOn } from "./decisions.ts";
import type { ConfigCase } from "./schema.ts";

export interface CaseResult {
  id: string;
  /** One line per difference; empty if Hone agrees. */
  differences: string[];
  /** The names of the decisions that made Hone differ from the recorded system. */
  decisions: string[];
}

/** Composes one case by the code behind `hone config` and compares final values and warnings. */
export function evaluateCase(recorded: ConfigCase): CaseResult {
  const { expected, decisions } = decisionsOn(recorded);
  const result = (differences: string[]): CaseResult => ({ id: recorded.id, differences, decisions });
  let composed: ComposedConfig;
  try {
    composed = composeConfig({ overrides: expected.overrides });
  } catch (error) {
    if (!(error instanceof UserError)) throw error;
    return result(expected.error === undefined ? [`is refused: ${error.message}`] : []);
  }
  if (expected.error !== undefined) return result(["composes, but was recorded to fail"]);
  return result([...valueDifferences(expected, composed), ...warningDifferences(expected, composed)]);
}

function valueDifferences({ changes, removed, backend, overrides }: ConfigCase, { tree }: ComposedConfig): string[] {
  const listed = Object.entries(changes).flatMap(([path, recorded]) => {
    const wanted = recorded === "<absent>" ? undefined : recorded;
    const found = valueAt(tree, path);
    return isDeepStrictEqual(found, wanted) ? [] : [`${path} is ${shown(found)}, recorded ${shown(wanted)}`];
  });
  const kept = removed.filter((path) => valueAt(tree, path) !== undefined).map((path) => `${path} is still there`);
  const before = defaultTree(backend);
  // A value set on the command line differs from Hone's default where the recorded system has another default.
  const asked = new Set(overrides.flatMap(pathsOf));
  const unlisted = watched.filter(
    (path) =>
      !isDeepStrictEqual(valueAt(before, path), valueAt(tree, path)) &&
      !asked.has(path) &&
      !Object.hasOwn(changes, path) &&
      !removed.includes(path),
  );
  return [
    ...listed,
    ...kept,
    ...unlisted.map((path) => `${path} becomes ${shown(valueAt(tree, path))}, recorded unchanged`),
  ];
}

const totals = ["trainer.total_training_steps", "rllm.trainer.total_batches"] as const;

/** The keys that a recording covers: keys with two names and the keys derived from them. */
const watched = [
  ...[...olderVerlNames, totals].flat(),
  ...["train_batch_size", "max_prompt_length", "max_response_length"].flatMap((name) => [
    `data.${name}`,
    `rllm.data.${name}`,
  ]),
  "rllm.algorithm.eps_clip",
  "rllm.algorithm.lr_schedule",
  "actor_rollout_ref.hybrid_engine",
  ...["use_kl_loss", "clip_ratio", "clip_ratio_low"].map((name) => `actor_rollout_ref.actor.${name}`),
  ...["enable_rollout_routing_replay", "checkpoint_engine.backend"].map((name) => `actor_rollout_ref.rollout.${name}`),
];

/** The path that an override sets and the other name of it. */
function pathsOf(override: string): string[] {
  const path = override.replace(/^[+~]*/, "").replace(/=.*$/s, "");
  const twins = [...olderVerlNames, ...sharedKeys, totals];
  return [path, ...twins.flatMap(([left, right]) => (left === path ? [right!] : right === path ? [left!] : []))];
}

const defaults = new Map<string, Record<string, unknown>>();

function defaultTree(backend: string): Record<string, unknown> {
  const known = defaults.get(backend) ?? composeConfig({ overrides: [`rllm/backend=${backend}`] }).tree;
  defaults.set(backend, known);
  return known;
}

function warningDifferences({ warnings, backend }: ConfigCase, composed: ComposedConfig): string[] {
  const wanted = warnings.map((warning) => `${warning.category} ${warning.paths.join(" ")}`);
  const found = composed.warnings.map(({ category, paths }) => `${category} ${paths.join(" ")}`);
  const missing = wanted.filter((line) => !found.includes(line)).map((line) => `does not warn: ${line}`);
  // Hone reports coerced values, and warns about conflicts on Tinker, too (docs/decisions/verl-sync.md).
  const more = found.filter((line) => !wanted.includes(line) && !/^coerced /.test(line) && backend === "verl");
  return [...missing, ...more.map((line) => `warns: ${line}`)];
}

function valueAt(tree: unknown, path: string): unknown {
  return path
    .split(".")
    .reduce<unknown>((section, name) => (section as Record<string, unknown> | undefined | null)?.[name], tree);
}

const shown = (value: unknown) => (value === undefined ? "absent" : JSON.stringify(value));
