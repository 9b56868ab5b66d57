import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Mistake } from "../mistakes.ts";
import { flagDescriptions, parseFlags, spellings } from "./parse-flags.ts";

const least = ["--pretrain", "m", "--train_batch_size", "8", "--rollout_batch_size", "4"];

function parse(...args: string[]) {
  const mistakes: Mistake[] = [];
  const positional: string[] = [];
  const { values, given } = parseFlags([...least, ...args], positional, mistakes);
  return { values, given, positional, mistakes: mistakes.map(({ where, message }) => `${where}: ${message}`) };
}

describe("parseFlags", () => {
  it("gives the documented defaults", () => {
    const { values, mistakes } = parse();
    expect(mistakes).toEqual([]);
    expect(values).toMatchObject({
      max_len: 4096,
      prompt_max_len: 2048,
      actor_learning_rate: 5e-7,
      lr_warmup_ratio: 0.03,
      adam_betas: [0.9, 0.95],
      micro_train_batch_size: 1,
      micro_rollout_batch_size: 2,
      advantage_estimator: "group_norm",
      n_samples_per_prompt: 4,
      clip_range_higher: 0.3,
      top_p: 0.9,
      zero_stage: 2,
      engine_type: "vllm",
      enable_engine_sleep: true,
      chunk_size: 4096,
      max_ckpt_mem: 1000,
      remote_rm_url: null,
    });
  });

  it.each([
    [["--max_len", "512"], { max_len: 512 }],
    [["--max_len=512"], { max_len: 512 }],
    [["--max_len", "512", "--max_len", "64"], { max_len: 64 }],
    [["--actor_learning_rate", "1e-6"], { actor_learning_rate: 1e-6 }],
    [["--l2", ".01"], { l2: 0.01 }],
    [["--adam_betas", "0.8", "0.9"], { adam_betas: [0.8, 0.9] }],
    [["--adam_betas", "(0.8, 0.9)"], { adam_betas: [0.8, 0.9] }],
    [["--adam_betas=0.8,0.9"], { adam_betas: [0.8, 0.9] }],
    [["--fsdp", "--bf16"], { fsdp: true, bf16: true }],
    [["--disable_engine_sleep"], { enable_engine_sleep: false }],
    [["--eps_clip", "0.1"], { clip_range: 0.1 }],
    [["--wandb_run_name", "7"], { wandb_run_name: "7" }],
    [["--kl_target", "0"], { kl_target: 0 }],
  ])("%j", (args, expected) => {
    const { values, mistakes } = parse(...args);
    expect(mistakes).toEqual([]);
    expect(values).toMatchObject(expected);
  });

  it.each([
    [["--max_lenn", "5"], "--max_lenn: unknown flag; did you mean --max_len"],
    [["--max-len", "5"], "--max-len: unknown flag; did you mean --max_len"],
    [["--max_len", "many"], '--max_len many: max_len expects integer >= 2, got "many"'],
    [["--max_len"], "--max_len: needs a value"],
    [["--max_len", "--fsdp"], "--max_len: needs a value"],
    [["--adam_betas", "0.9"], "--adam_betas: needs two values"],
    [["--fsdp=true"], "--fsdp=true: does not take a value"],
    [["--zero_stage", "4"], "--zero_stage 4: zero_stage expects"],
    [
      ["--advantage_estimator", "grpo"],
      "--advantage_estimator grpo: advantage_estimator expects group_norm | reinforce",
    ],
    [["--num_episodes", "1.5"], "--num_episodes 1.5: num_episodes expects integer >= 1, got 1.5"],
  ])("%j is a mistake", (args, message) => {
    expect(parse(...args).mistakes).toEqual([expect.stringContaining(message)]);
  });

  it("lists all missing required flags at once", () => {
    const mistakes: Mistake[] = [];
    parseFlags([], [], mistakes);
    expect(mistakes.map(({ where }) => where)).toEqual(["--pretrain", "--train_batch_size", "--rollout_batch_size"]);
  });

  it("separates other words from flags", () => {
    expect(parse("./train.ts", "--fsdp", "rllm.rollout.n=4").positional).toEqual(["./train.ts", "rllm.rollout.n=4"]);
  });

  it("never throws", () => {
    const names = [...spellings.keys(), "x"].map((name) => `--${name}`);
    const word = fc.oneof(fc.constantFrom(...names), fc.string(), fc.double().map(String));
    fc.assert(
      fc.property(fc.array(word), (args) => {
        expect(Array.isArray(parse(...args).mistakes)).toBe(true);
      }),
      { numRuns: 500, seed: 1 },
    );
  });

  it("describes every flag", () => {
    for (const { key, description } of flagDescriptions.values()) expect(description, key).not.toBe("");
  });
});
