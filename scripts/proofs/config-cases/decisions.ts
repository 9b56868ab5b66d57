/** Where Hone deliberately differs from the recorded system (docs/decisions/verl-sync.md), as rules that change cases. */
import type { ConfigCase } from "./schema.ts";

interface Decision {
  name: string;
  /** The case as Hone composes it, or undefined if the decision does not apply. */
  decide(recorded: ConfigCase): ConfigCase | undefined;
}

const actor = "actor_rollout_ref.actor";
const rollout = "actor_rollout_ref.rollout";

/** The value of the last override of a key, as typed. */
const given = ({ overrides }: ConfigCase, path: string) =>
  overrides.findLast((text) => text.replace(/^\+*/, "").startsWith(`${path}=`))?.replace(/^[^=]*=/, "");

const decisions: Decision[] = [
  {
    name: "a sampling key set only by verl's name works like every other key",
    decide: (recorded) => {
      if (recorded.error === undefined) return undefined;
      const value = given(recorded, `${rollout}.top_k`) ?? given(recorded, `${rollout}.val_kwargs.top_k`);
      if (value === undefined) return undefined;
      const { error: _, ...rest } = recorded;
      return rest as ConfigCase;
    },
  },
  {
    name: "the reply's length is one value",
    decide: (recorded) => {
      const value = given(recorded, "data.max_response_length");
      const wins = given(recorded, "rllm.data.max_response_length") === undefined;
      if (value === undefined || !wins || given(recorded, `${rollout}.response_length`) !== undefined) return undefined;
      if (recorded.backend !== "verl" || given(recorded, "rllm.rollout.train.max_tokens") !== undefined)
        return undefined;
      const length = Number(value);
      const followers = [`${rollout}.response_length`, "rllm.rollout.train.max_tokens", "rllm.rollout.val.max_tokens"];
      return { ...recorded, changes: { ...recorded.changes, ...fill(followers, length) } };
    },
  },
  {
    name: "clip_ratio alone means both bounds",
    decide: (recorded) => {
      const value = given(recorded, `${actor}.clip_ratio`);
      const low = given(recorded, `${actor}.clip_ratio_low`) ?? given(recorded, "rllm.algorithm.eps_clip");
      if (value === undefined || low !== undefined) return undefined;
      return { ...recorded, changes: { ...recorded.changes, [`${actor}.clip_ratio_low`]: Number(value) } };
    },
  },
  {
    name: "a dict override sets each of its leaves",
    decide: (recorded) => {
      const pairs = [
        ["temperature", "temperature"],
        ["top_p", "top_p"],
        ["top_k", "top_k"],
        ["response_length", "max_tokens"],
      ] as const;
      let decided = recorded;
      for (const [when, prefix] of [
        ["train", rollout],
        ["val", `${rollout}.val_kwargs`],
      ] as const) {
        const dict = given(recorded, `rllm.rollout.${when}`);
        if (!dict?.startsWith("{")) continue;
        for (const [native, common] of pairs) {
          const inDict = new RegExp(`\\b${common}:\\s*([\\d.eE+-]+)`).exec(dict)?.[1];
          const [own, rllm] = [`${prefix}.${native}`, `rllm.rollout.${when}.${common}`];
          const byName = given(recorded, own);
          if (inDict === undefined || byName === undefined || given(recorded, rllm) !== undefined) continue;
          const category = Number(byName) === Number(inDict) ? "deprecated_native" : "conflict";
          decided = {
            ...decided,
            changes: { ...decided.changes, ...fill([own, rllm], Number(inDict)) },
            warnings: [
              ...decided.warnings.filter(({ paths }) => !paths.includes(own)),
              { category, paths: [own, rllm] },
            ],
          };
        }
      }
      return decided === recorded ? undefined : decided;
    },
  },
  {
    name: "a changed weight transfer is reported as a coerced value",
    decide: (recorded) => {
      if (!recorded.warnings.some(({ category }) => category === "ckpt_backend_override")) return undefined;
      const paths = [`${rollout}.checkpoint_engine.backend`, "rllm.async_training.enable"];
      const warnings = recorded.warnings.map((warning) =>
        warning.category === "ckpt_backend_override" ? { category: "coerced", paths } : warning,
      );
      return { ...recorded, warnings };
    },
  },
  {
    name: "data.* is a section of Hone, so its names are not older",
    decide: (recorded) => {
      const warnings = recorded.warnings.filter(
        ({ category, paths }) => category !== "deprecated_native" || !paths[0]?.startsWith("data."),
      );
      return warnings.length === recorded.warnings.length ? undefined : { ...recorded, warnings };
    },
  },
  {
    name: "verl 0.9 has no router_replay",
    decide: (recorded) =>
      given(recorded, `${actor}.router_replay.mode`) === undefined ? undefined : { ...recorded, error: "unknown key" },
  },
];

export function decisionsOn(recorded: ConfigCase): { expected: ConfigCase; decisions: string[] } {
  let expected = recorded;
  const names: string[] = [];
  for (const { name, decide } of decisions) {
    const decided = decide(expected);
    if (decided === undefined) continue;
    expected = decided;
    names.push(name);
  }
  return { expected, decisions: names };
}

const fill = (paths: readonly string[], value: unknown) => Object.fromEntries(paths.map((path) => [path, value]));
