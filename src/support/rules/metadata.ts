/** Rules that the schema's metadata states: the backends of a key, what is not supported yet, and the names that exist. */
import { splitEstimatorMap } from "../../algorithms/advantages/estimate-advantages.ts";
import type { Rule, ScriptFacts } from "../../backends/rule.ts";
import { configKeys } from "../../config/describe.ts";
import { type About, isModulePath } from "../../config/schema/about.ts";
import type { Config } from "../../config/schema.ts";
import { nearest } from "../../nearest.ts";

type EstimatorMap = Config["rllm"]["algorithm"]["estimator_map"];
type NamesIn = (value: unknown) => readonly unknown[];

const algorithm = "rllm.algorithm";
const lossesOf = (script: ScriptFacts) => Object.keys(script.losses);
const estimatorsOf = (script: ScriptFacts) => Object.keys(script.estimators);

const ownNames: Readonly<Record<string, (script: ScriptFacts) => string[]>> = {
  [`${algorithm}.adv_estimator`]: estimatorsOf,
  [`${algorithm}.loss_fn`]: lossesOf,
};

const split = (value: unknown) => splitEstimatorMap((value ?? {}) as EstimatorMap);

export const metadataRules: readonly Rule[] = [
  ...[...configKeys.values()].flatMap(({ key, about }) => rulesAbout(key, about)),
  named(`${algorithm}.estimator_map`, `${algorithm}.adv_estimator`, (value) => Object.values(split(value).byRole)),
  named(`${algorithm}.estimator_map`, `${algorithm}.loss_fn`, (value) => Object.values(split(value).lossByRole)),
  named(`${algorithm}.loss_fn_map`, `${algorithm}.loss_fn`, (value) => Object.values(value ?? {})),
];

function rulesAbout(key: string, { backends, instead, later, options }: About): Rule[] {
  const rules: Rule[] = [];
  if (backends !== undefined) {
    const hint = instead === undefined ? {} : { hint: `use ${instead}` };
    const isMet: Rule["isMet"] = ({ backend }) => backends.includes(backend);
    rules.push({ outcome: "unsupported", keys: [key], isMet, byEngine: true, ...hint });
  }
  if (later !== undefined) {
    rules.push({ outcome: "unsupported", keys: [key], isMet: () => false, because: () => later, byEngine: true });
  }
  if (options !== undefined) rules.push(named(key, key, (value) => [value].flat()));
  return rules;
}

/** The names in a key's values are those that are built in for `like`, and those of the script. */
function named(key: string, like: string, namesIn: NamesIn): Rule {
  const { options = [], orModule = false } = configKeys.get(like)?.about ?? {};
  const known = (script: ScriptFacts | undefined) => [...options, ...(script ? (ownNames[like]?.(script) ?? []) : [])];
  const unknown = (value: unknown, names: readonly string[]) =>
    namesIn(value).find(
      (name): name is string => typeof name === "string" && !names.includes(name) && !(orModule && isModulePath(name)),
    );
  return {
    outcome: "invalid",
    keys: [key],
    isMet: ({ script, registered }, value) => unknown(value, [...known(script), ...registered]) === undefined,
    because({ script, registered }, value) {
      const names = [...known(script), ...registered];
      const name = unknown(value, names)!;
      const near = nearest(name, names, 2);
      const help = near.length > 0 ? `did you mean ${near.join(" or ")}?` : `built in: ${options.join(", ")}`;
      const which = value === name ? "the name" : `the name ${name}`;
      return `${which} is neither built in nor registered; ${help}`;
    },
  };
}
