/** Each key at another value than its default, on each backend: what --explain says is compared with what a run does. */
import { beforeAll, describe, expect, it, vi } from "vitest";
import { capabilitiesOf } from "../backends/backends.ts";
import { localEngineOptions } from "../backends/local/options.ts";
import { tinkerService } from "../backends/tinker/backend.ts";
import { tinkerEngineOptions } from "../backends/tinker/engine.ts";
import { type ComposedConfig, composeConfig } from "../config/compose.ts";
import type { Config, ConfigInput } from "../config/schema.ts";
import { configKeys, type KeyDescription } from "../config/schema.ts";
import { forwardedKeys, sharedKeys } from "../config/synonyms.ts";
import { checkSettings, effectOf } from "../rules/check.ts";
import { type Experiment, scriptFacts } from "./experiment.ts";
import { openToy, type ToyRow, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";

const reads = new Set<string>();

/** Records the keys that are read. */
function recorded<T extends object>(section: T, prefix = ""): T {
  return new Proxy(section, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name);
      const key = `${prefix}${String(name)}`;
      reads.add(key);
      return typeof value === "object" && value !== null && !configKeys.has(key) ? recorded(value, `${key}.`) : value;
    },
  });
}

vi.mock("../config/compose.ts", async (original) => {
  const real = await original<typeof import("../config/compose.ts")>();
  return {
    ...real,
    composeConfig: (sources?: Parameters<typeof real.composeConfig>[0]) => {
      const composed = real.composeConfig(sources);
      return { ...composed, config: recorded(composed.config) };
    },
  };
});

const { newFolder } = temporaryFolders("truth");

/** Read by composition, by `openChat` or by the trace store, none of which this run needs; every-key.test.ts finds the code. */
const readElsewhere = [
  ...["rllm.on_unsupported", "training.resume_from_tinker_id", "training.default_local_dir"],
  ...["rllm.disable_thinking", "rllm.accumulate_reasoning", "rllm.sdk.store.path", "rllm.gateway.db_path"],
  ...["reasoning_effort", "accumulate_reasoning", "disable_thinking", "renderer_name"].map(
    (name) => `rollout_engine.${name}`,
  ),
];

const candidates: readonly unknown[] = [
  ...[
    0.5,
    1,
    2,
    3,
    7,
    -1,
    0.25,
    true,
    false,
    "other",
    "tinker://run/weights/name",
    "reward:1",
    "http://localhost:1",
    "5.24.0",
  ],
  ...[
    ["token_k1"],
    ["1_2"],
    ["console", "tensorboard"],
    { judge: "rloo" },
    { judge: "gpg" },
    { size: 1 },
    { judge: { model_path: "./judge" } },
    [0.5],
    [1],
    ["http://localhost:1"],
  ],
];

/** A value that the key accepts and that differs from `current` and from values that change nothing, if there is one. */
function otherValue({ schema, options, default: fallback, about }: KeyDescription, current: unknown): unknown {
  const avoided = [current, ...(about.neutral === undefined ? [] : [fallback]), ...(about.neutral ?? [])].map((value) =>
    JSON.stringify(value),
  );
  return [...options, ...options.map((option) => [option]), ...candidates].find(
    (value) => schema.safeParse(value).success && !avoided.includes(JSON.stringify(value)),
  );
}

function valueAt(config: object, key: string): unknown {
  return key.split(".").reduce<unknown>((section, name) => (section as Record<string, unknown>)?.[name], config);
}

/** A copy of the configuration with other values. */
function changed(config: ConfigInput, values: ReadonlyMap<string, unknown>): ConfigInput {
  const copy = structuredClone(config) as Record<string, unknown>;
  for (const [key, value] of values) {
    const names = key.split(".");
    const last = names.pop() ?? "";
    let section = copy;
    for (const name of names) {
      section[name] ??= {};
      section = section[name] as Record<string, unknown>;
    }
    section[last] = value;
  }
  return copy;
}

const twins = new Map(
  [...sharedKeys, ...forwardedKeys].flatMap(([left, right]) => [
    [left, right],
    [right, left],
  ]),
);

describe.each(["local", "tinker"] as const)("on %s", (backend) => {
  const overrides = [`rllm/backend=${backend}`];
  const experiment = toy({ rllm: { trainer: { total_batches: 2 } } });
  const base = changed(experiment.config ?? {}, new Map([["model.lora_rank", 4]]));
  const script = scriptFacts(experiment);
  const settings: { key: string; values: Map<string, unknown>; composed: ComposedConfig; kind: string }[] = [];

  beforeAll(() => {
    const { config } = composeConfig({ input: base, overrides });
    for (const known of configKeys.values()) {
      const other = otherValue(known, valueAt(config, known.key));
      if (known.key === "rllm.backend" || (other === undefined && known.about.neutral !== undefined)) continue;
      const values = new Map([[known.key, other]]);
      const composed = composeConfig({ input: changed(base, values), overrides });
      settings.push({ key: known.key, values, composed, kind: effectOf(composed, known, { script }).kind });
    }
  }, 60_000);
  const keysThat = (kind: string) => settings.filter((one) => one.kind === kind);

  async function run(config: ConfigInput, trained: Experiment<ToyRow> = experiment) {
    const { engine, chat } = openToy();
    const given: Config = composeConfig({ input: config, overrides }).config;
    const { history } = await train(
      { ...trained, config },
      {
        engine: { engine: { ...engine, capabilities: capabilitiesOf(given) }, chat },
        overrides: [...overrides, `rllm.trainer.run_dir=${newFolder()}`],
      },
    );
    return history.map(({ metrics }) =>
      // With one optimizer step, clip_ratio_c adds only this metric, which is 0.
      Object.fromEntries(
        Object.entries(metrics).filter(([name]) => !/^perf|time|seconds|^actor.pg_clipfrac_lower/.test(name)),
      ),
    );
  }

  it("has a value to try for every key", () => {
    expect(settings.filter(({ key, values }) => values.get(key) === undefined).map(({ key }) => key)).toEqual([]);
  });

  it("reads every key that acts", async () => {
    const { config } = composeConfig({ input: base, overrides });
    reads.clear();
    await run(base);
    localEngineOptions(config);
    if (backend === "tinker") {
      tinkerService(config, {});
      tinkerEngineOptions(config, { baseUrl: "http://localhost", apiKey: "" }, {});
    }
    const unread = keysThat("acts").filter(({ key }) => !reads.has(key) && !reads.has(twins.get(key) ?? key));
    expect(unread.map(({ key }) => key).filter((key) => !readElsewhere.includes(key))).toEqual([]);
  });

  it("refuses every key that is refused before anything is opened", () => {
    const refused = [...keysThat("unsupported"), ...keysThat("invalid")];
    expect(refused.length).toBeGreaterThan(10);
    for (const { key, composed } of refused) {
      expect(() => checkSettings(composed, { script }), key).toThrow(key);
    }
  });

  it("warns of every key without an effect, and trains as without it", async () => {
    const unread = keysThat("no effect");
    expect(unread.length).toBeGreaterThan(20);
    for (const { key, composed } of unread) {
      const { warnings } = checkSettings(composed);
      expect(
        warnings.map(({ paths }) => paths.join()),
        key,
      ).toContain(key);
    }
    // Some have no effect only without each other.
    const combined = changed(base, new Map(unread.flatMap(({ values }) => [...values])));
    const composed = composeConfig({ input: combined, overrides });
    const isUnread = (key: string) => effectOf(composed, configKeys.get(key)!, { script }).kind === "no effect";
    const alone = unread.filter(({ key }) => !isUnread(key));
    const together = new Map(unread.flatMap((one) => (alone.includes(one) ? [] : [...one.values])));
    const expected = await run(base);
    for (const values of [together, ...alone.map((one) => one.values)]) {
      expect(await run(changed(base, values)), [...values.keys()].join()).toEqual(expected);
    }
  });

  it("without a validation dataset, trains the same with every setting of validation", async () => {
    const { validation: _, ...unmeasured } = experiment;
    const composed = composeConfig({ input: base, overrides });
    const facts = { script: scriptFacts(unmeasured) };
    const values = new Map<string, unknown>();
    for (const known of configKeys.values()) {
      const effect = effectOf(composed, known, facts);
      if (effect.kind !== "no effect" || !effect.because.includes("requires a validation dataset")) continue;
      values.set(known.key, otherValue(known, valueAt(composed.config, known.key)));
    }
    expect([...values.keys()]).toEqual(expect.arrayContaining(["training.best_metric", "rllm.rollout.n_val"]));
    expect(await run(changed(base, values), unmeasured)).toEqual(await run(base, unmeasured));
  });
});
