// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
// Slow: thousands of random files.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { UserError } from "../base/errors.ts";
import { nightly } from "../nightly.fixture.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { fieldNames } from "./check.ts";
import { type ConfigSources, composeConfig } from "./compose.ts";
import { type ConfigInput, configKeys, configSchema } from "./schema.ts";
import { originText, valueAt } from "./tree.ts";

const folder = temporaryFolder("config");

let files = 0;
function yaml(text: string | Uint8Array): string {
  const file = join(folder, `${files++}.yaml`);
  writeFileSync(file, text);
  return file;
}

/** The message of the UserError that composing throws, without the test's folder. */
function complaint(sources: ConfigSources): string {
  try {
    composeConfig(sources);
  } catch (error) {
    expect(error).toBeInstanceOf(UserError);
    return (error as UserError).message.replaceAll(/\S*\/\d+\.yaml/g, "f.yaml");
  }
  throw new Error("no error was thrown");
}

/** The values in config/rllm/backend/local.yaml, and the resolved references of the schema's defaults. */
const ofTheBackend: ConfigInput = {
  rllm: {
    algorithm: { rollout_correction: { bypass_mode: false } },
    episode_logging: { episode_log_dir: "logs/rllm-training/default" },
  },
  model: { name: "smollm2-135m-instruct", train_unembed: false },
};

const overridden = (key: string, ...overrides: string[]) => valueAt(composeConfig({ overrides }).config, key);

describe("layers", () => {
  test("without layers, the defaults of the schema and the backend apply", () => {
    const { config, origins } = composeConfig();
    expect(config).toEqual(configSchema.parse(ofTheBackend));
    expect([...origins.keys()].sort()).toEqual([...configKeys.keys()].sort());
    expect(origins.get("training.beta1")).toEqual({ kind: "default" });
    expect(originText(origins.get("rllm.backend")!)).toBe("default (config/rllm/backend/local.yaml:4)");
  });

  test("later layers win, and each value has its origin", () => {
    const first = yaml("training:\n  beta1: 0.3\n  beta2: 0.3\n  eps: 0.3\n");
    const second = yaml("training: {beta2: 0.4, eps: 0.4}\n");
    const { config, origins } = composeConfig({
      input: { training: { weight_decay: 0.2, beta1: 0.2, beta2: 0.2, eps: 0.2 } },
      files: [first, second],
      overrides: ["training.eps=0.5"],
    });
    expect(config.training).toMatchObject({ weight_decay: 0.2, beta1: 0.3, beta2: 0.4, eps: 0.5, max_grad_norm: 1 });
    const from = (key: string) => originText(origins.get(key)!);
    expect(from("training.weight_decay")).toBe("the script's config");
    expect(from("training.beta1")).toBe(`${first}:2:3`);
    expect(from("training.beta2")).toBe(`${second}:1:12`);
    expect(from("training.eps")).toBe("command line: training.eps=0.5");
  });

  test("empty files, empty sections and undefined members change nothing", () => {
    const none = ["", "# only a comment\n", "---\n", "rllm:\n", "rllm:\n  trainer:\n", "rllm: null\n", "\ufeff{}"];
    const { config } = composeConfig({ files: none.map(yaml), input: { model: undefined } as unknown as ConfigInput });
    expect(config).toEqual(configSchema.parse(ofTheBackend));
  });
});

describe("overrides", () => {
  test.each<[string, string, unknown]>([
    ["training.learning_rate", "training.learning_rate=1e-4", 1e-4],
    ["training.learning_rate", "+training.learning_rate=1", 1],
    ["training.learning_rate", "++training.learning_rate=.5", 0.5],
    ["rllm.trainer.logger", "rllm.trainer.logger=[console,wandb]", ["console", "wandb"]],
    ["rllm.trainer.logger", "rllm.trainer.logger=[]", []],
    ["rllm.trainer.val_only", "rllm.trainer.val_only=True", true],
    ["rllm.trainer.run_dir", "rllm.trainer.run_dir=null", null],
    ["rllm.trainer.run_dir", "rllm.trainer.run_dir=", ""],
    ["rllm.trainer.run_dir", "rllm.trainer.run_dir='null'", "null"],
    ["rllm.trainer.experiment_name", "rllm.trainer.experiment_name=007", "007"],
    ["rllm.trainer.experiment_name", "rllm.trainer.experiment_name=1.50", "1.50"],
    ["rllm.trainer.experiment_name", "rllm.trainer.experiment_name=yes", "yes"],
    ["rllm.rollout.n_val", "rllm={rollout: {n: 2, n_val: 3}}", 3],
  ])("%s of %s", (key, override, value) => {
    expect(overridden(key, override)).toEqual(value);
  });

  test("later overrides win; ~key restores the default of a key or a section", () => {
    expect(overridden("training.eps", "training.eps=1", "training.eps=2")).toBe(2);
    expect(overridden("training.eps", "training.eps=1", "~training.eps")).toBe(1e-8);
    expect(overridden("training.eps", "~training.eps", "training.eps=1")).toBe(1);
    const input = { training: { eps: 3, beta1: 0.5 }, model: { lora_rank: 4 } };
    const { config, origins } = composeConfig({ input, overrides: ["~training"] });
    expect(config).toMatchObject({ training: { eps: 1e-8, beta1: 0.9 }, model: { lora_rank: 4 } });
    expect(origins.get("training.eps")).toBeUndefined();
    expect(overridden("model.name", "~model.name")).toBe("smollm2-135m-instruct");
  });

  test.each([
    ["training.learning_rate", "an override has the form key=value, e.g. training.learning_rate=1e-4"],
    ["=3", "the key before = is missing"],
    ["~training.epps", "unknown key training.epps; did you mean training.eps?"],
    ["learning_rate=1", "unknown key learning_rate; did you mean rllm.critic.learning_rate or training.learning_rate?"],
    ["training.lr=1", "unknown key training.lr; did you mean training.learning_rate?"],
    ["training.lerning_rate=1", "unknown key training.lerning_rate; did you mean training.learning_rate?"],
    [
      "trainer.total_epochs=1",
      "unknown key trainer.total_epochs: it is verl's name for rllm.trainer.total_epochs; set that key instead",
    ],
    [
      "actor_rollout_ref.actor.kl_loss_coef=0.1",
      "unknown key actor_rollout_ref.actor.kl_loss_coef: it is verl's name for rllm.algorithm.kl_beta; set that key instead",
    ],
    ["actor_rollout_ref.actor.fsdp_config.param_offload=true", "(verl's own sections require rllm/backend=verl)"],
    ["rllm.trainer.epochs=1", "unknown key rllm.trainer.epochs; did you mean rllm.trainer.total_epochs"],
    ["sampling.temperature=1", "or sampling.train.temperature?"],
    ["sampling.zzzzzzzz=1", "unknown key sampling.zzzzzzzz; sampling has train, val"],
    ["__proto__.polluted=1", "unknown key __proto__"],
    ["constructor=1", "unknown key constructor"],
    ["training.eps.x=1", 'training.eps expects number > 0, got {"x":1}'],
    ["training=3", "training must be a section with keys, not 3"],
    ["training.learning_rate=fast", 'training.learning_rate expects number >= 0, got "fast"'],
    ["training.learning_rate=-1", "training.learning_rate expects number >= 0, got -1"],
    ["training.learning_rate=null", "training.learning_rate expects number >= 0, got null"],
    ["rllm.rollout.n=2.5", "rllm.rollout.n expects integer >= 1, got 2.5"],
    ["training.lr_schedule=linaer", 'expects constant | linear | cosine, got "linaer"; did you mean linear?'],
    [
      "rllm.trainer.logger=console",
      'expects list of console | tensorboard | wandb | mlflow | trackio, got "console"; write [console]',
    ],
    [
      "rllm.trainer.logger=[wanb]",
      'expects list of console | tensorboard | wandb | mlflow | trackio, got ["wanb"]; did you mean wandb?',
    ],
    ["model.name=", "model.name expects non-empty text, got empty text"],
  ])("%s is refused", (override, expected) => {
    const message = complaint({ overrides: [override] });
    expect(message.startsWith(`${override}: `)).toBe(true);
    expect(message).toContain(expected);
  });
});

describe("YAML files", () => {
  test.each([
    [
      "training:\n  lerning_rate: 1\n",
      "f.yaml:2:3: unknown key training.lerning_rate; did you mean training.learning_rate?",
    ],
    ["training:\n  eps: x\n", 'f.yaml:2:3: training.eps expects number > 0, got "x"'],
    ["training:\n  eps:\n", "f.yaml:2:3: training.eps expects number > 0, got null"],
    ["training:\n  eps: 1\n  eps: 2\n", "f.yaml:3:3: this key appears twice in its section"],
    ["training:\n\teps: 1\n", "f.yaml:2:1: this line is indented with a tab; YAML allows only spaces"],
    ["training:\n  eps: *t\n", "f.yaml:2:8: "],
    ["training:\n  eps: !!float 1\n", "f.yaml:2:8: tags (!...) are not supported"],
    ["model:\n  name: !!str 1\n", "f.yaml:2:9: tags (!...) are not supported"],
    ["a: 1\n---\nb: 2\n", "f.yaml:2:1: a second document (---) starts here; a file may contain only one"],
    ["- a\n- b\n", 'f.yaml:1:1: a configuration must be a section with keys, not ["a","b"]'],
    ["just text\n", 'f.yaml:1:1: a configuration must be a section with keys, not "just text"'],
    ["training: [1]\n", "f.yaml:1:1: training must be a section with keys, not [1]"],
    [
      "training.eps: 1\n",
      "f.yaml:1:1: unknown key training.eps; nest the sections instead, one line each: training: eps:",
    ],
    ["? [a]\n: 1\n", "f.yaml:1:3: a key must be a plain name"],
    ["a: [1\n", "f.yaml:2:1: "],
    ["__proto__:\n  eps: 1\n", "f.yaml:1:1: unknown key __proto__"],
  ])("%j is located", (text, expected) => {
    expect(complaint({ files: [yaml(text)] })).toContain(expected);
  });

  test("all mistakes of all layers are listed at once", () => {
    const file = yaml("training:\n  epps: 1\n  beta1: 2\nmodell:\n  name: x\n");
    expect(complaint({ files: [file], overrides: ["a=1"], input: { data: { sufle: 1 } } as ConfigInput })).toBe(
      [
        "5 mistakes in the configuration:",
        "the script's config: unknown key data.sufle; did you mean data.shuffle?",
        "f.yaml:2:3: unknown key training.epps; did you mean training.eps?",
        "f.yaml:3:3: training.beta1 expects number >= 0 and < 1, got 2",
        "f.yaml:4:1: unknown key modell; did you mean model?",
        "a=1: unknown key a; the configuration has tinker_base_url, fuse_forward_backward_and_optim_step, rllm, model, training, sft, dpo, validation, sampling, rollout_engine, data, distillation, local",
      ].join("\n  "),
    );
    const many = yaml(Array.from({ length: 40 }, (_, index) => `key${index}: 1\n`).join(""));
    expect(complaint({ files: [many] })).toMatch(/^40 mistakes[\s\S]*\n {2}\.\.\. and 10 more$/);
  });

  test("files that cannot be read", () => {
    expect(complaint({ files: ["/nowhere/f.yaml"] })).toBe("/nowhere/f.yaml: file not found");
    expect(complaint({ files: [folder] })).toBe(`${folder}: is a folder, not a YAML file`);
    expect(complaint({ files: [yaml(new Uint8Array([0xff, 0xfe, 0x00]))] })).toBe("f.yaml: is not UTF-8 text");
    expect(complaint({ files: [yaml("#".repeat(1_000_001))] })).toContain("has 1000001 bytes");
  });

  test("nesting that is too deep is an error with a location", () => {
    expect(complaint({ files: [yaml("[".repeat(100_000))] })).toMatch(/^(f\.yaml|\d+ mistakes)/);
    expect(complaint({ files: [yaml("{a: ".repeat(20_000))] })).toMatch(/^(f\.yaml|\d+ mistakes)/);
  });
});

describe("references", () => {
  test.each<[string, string, unknown]>([
    ["training.beta1", "training.beta1=${training.beta2}", 0.95],
    ["rllm.trainer.run_dir", "rllm.trainer.run_dir=${rllm.trainer.seed}", "0"],
    [
      "rllm.trainer.run_dir",
      "rllm.trainer.run_dir=logs/${rllm.trainer.project_name}/${rllm.rollout.n}",
      "logs/rllm-training/8",
    ],
    ["rllm.trainer.run_dir", "rllm.trainer.run_dir=\\${a}", "${a}"],
    ["rllm.trainer.run_dir", "rllm.trainer.run_dir=a\\b$c", "a\\b$c"],
  ])("%s of %s", (key, override, value) => {
    expect(overridden(key, override)).toEqual(value);
  });

  test("chains of references are resolved across layers", () => {
    const file = yaml('rllm:\n  trainer:\n    run_dir: "${rllm.trainer.experiment_name}"\n');
    const { config, origins } = composeConfig({
      input: { rllm: { trainer: { experiment_name: "x-${model.name}" } } },
      files: [file],
      overrides: ["model.name=m"],
    });
    expect(config.rllm.trainer.run_dir).toBe("x-m");
    expect(originText(origins.get("rllm.trainer.run_dir")!)).toContain(`${file}:3:5 (`);
  });

  test.each([
    ["model.name=${model.nam}", "model.nam} refers to a key that does not exist; did you mean model.name"],
    ["model.name=${model.name}", "model.name refers to itself: model.name -> model.name"],
    [
      "rllm.trainer.logger=['${training.resume_mode}']",
      'expects list of console | tensorboard | wandb | mlflow | trackio, got ["auto"]',
    ],
    ["model.name=${model.name", "is not understood"],
    ["training.beta1=${rllm.trainer.seed}1x", 'training.beta1 expects number >= 0 and < 1, got "01x"'],
    ["training.beta1=${training.max_length}", "training.beta1 expects number >= 0 and < 1, got 32768"],
  ])("%s is refused", (override, expected) => {
    expect(complaint({ overrides: [override] })).toContain(expected);
  });

  test("references that grow exponentially are refused", () => {
    const times = (key: string) => `\${${key}}`.repeat(100);
    const overrides = [
      `rllm.trainer.run_dir=${times("model.name")}`,
      `model.name=${times("local.device")}`,
      `local.device=${times("training.best_metric")}`,
    ];
    expect(complaint({ overrides })).toContain("becomes longer than 100000 characters");
  });
});

describe("any input gives a configuration or a UserError", () => {
  const answers = (sources: ConfigSources) => {
    try {
      composeConfig(sources);
    } catch (error) {
      if (!(error instanceof UserError)) throw error;
      expect(error.message).not.toMatch(/\n\s+at |\[object|undefined/);
    }
  };
  const runs = nightly ? 5_000 : 300;
  const key = fc.oneof(fc.constantFrom(...configKeys.keys(), "rllm", "training", "~model", "+data"), fc.string());
  const value = fc.oneof(
    fc.string(),
    fc.string({ unit: "binary" }),
    fc.json(),
    fc.constantFrom(
      "1e-4",
      "[a,b]",
      "{a: 1}",
      "null",
      "~",
      "${model.name}",
      "${rllm.trainer.run_dir}",
      "'",
      '"\\',
      "1e999",
    ),
  );
  test("random overrides", () => {
    const override = fc.oneof(
      fc.tuple(key, value).map(([left, right]) => `${left}=${right}`),
      key,
      fc.string({ unit: "binary" }),
    );
    fc.assert(
      fc.property(fc.array(override, { maxLength: 4 }), (overrides) => answers({ overrides })),
      { numRuns: runs },
    );
  });

  test("random and damaged YAML", () => {
    const sound = 'rllm:\n  trainer: {logger: [console], seed: 3}\ntraining:\n  eps: "1"\n  beta1: ${training.beta2}\n';
    const character = fc.constantFrom(..."\t\n :-[]{}&*!|>'\"%@`#,?~$\u0000\u2028\ud83d", "---", "...", "<<");
    const damage = fc.array(fc.tuple(fc.nat(sound.length), fc.nat(3), character), { minLength: 1, maxLength: 4 });
    const damaged = damage.map((cuts) =>
      cuts.reduce((text, [at, length, put]) => text.slice(0, at) + put + text.slice(at + length), sound),
    );
    const file = join(folder, "fuzz.yaml");
    fc.assert(
      fc.property(fc.oneof(damaged, fc.string({ unit: "binary" }), fc.json()), (text) => {
        writeFileSync(file, text);
        answers({ files: [file] });
      }),
      { numRuns: runs },
    );
  });

  test("random objects of a script", () => {
    const member = fc.anything({ withBigInt: true, withDate: true, withMap: true, withNullPrototype: true });
    const input = fc.oneof(
      member,
      fc.dictionary(fc.constantFrom("rllm", "training", "model", "__proto__"), member),
      fc.record({ training: fc.dictionary(fc.constantFrom("eps", "beta1", "lr_schedule"), member) }),
    );
    fc.assert(
      fc.property(input, (given) => answers({ input: given as ConfigInput })),
      { numRuns: runs },
    );
    const cycle: Record<string, unknown> = {};
    cycle.rllm = cycle;
    answers({ input: cycle as ConfigInput });
  });
});

test.each([
  ["num_generations", "it is the name in TRL for rllm.rollout.n"],
  ["max_completion_length", "data.max_response_length"],
  ["gradient_accumulation_steps", "training.num_minibatches"],
  ["loss_type", "rllm.algorithm.loss_fn"],
  ["bf16", "local.dtype=bfloat16"],
  ["per_device_train_batch_size", "data.train_batch_size"],
  ["grpo.beta", "rllm.algorithm.kl_beta"],
  ["epsilon", "rllm.algorithm.eps_clip"],
  ["scale_rewards", "rllm.algorithm.norm_adv_by_std_in_grpo"],
  ["use_vllm", "local.sampler.type=vllm"],
  ["groups_per_batch", "the name in the Tinker cookbook for data.train_batch_size"],
  ["clip_range", "the name in LightRFT for rllm.algorithm.eps_clip"],
  ["n_samples_per_prompt", "the name in OpenRLHF for rllm.rollout.n"],
  ["actor_rollout_ref.model.path", "verl's name for model.name"],
  ["training.beta", "or training.beta1"],
])("the name of another system is answered before names of similar spelling: %s", (name, answer) => {
  expect(() => composeConfig({ overrides: [`${name}=1`] })).toThrow(answer);
});

test("every name of another system stands for keys of Hone", () => {
  for (const [theirs, ours] of fieldNames) {
    const [key = ""] = /^[\w.]+/.exec(ours) ?? [];
    expect(configKeys.has(key), `${theirs}: ${ours}`).toBe(true);
    expect(configKeys.has(theirs)).toBe(false);
  }
});
