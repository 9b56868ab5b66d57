import { describe, expect, it } from "vitest";
import { UserError } from "../../base/errors.ts";
import { configKeys } from "../schema.ts";
import { readLightRft } from "./compose.ts";
import { flagTable, keysOf } from "./flags.ts";

const least = ["--pretrain", "m", "--save_path", "runs/x"];

function read(flags: Record<string, number>, environment: NodeJS.ProcessEnv = {}, words: string[] = []) {
  const batches = { train_batch_size: 16, rollout_batch_size: 4, n_samples_per_prompt: 4, ...flags };
  const args = Object.entries(batches).flatMap(([name, value]) => [`--${name}`, String(value)]);
  return readLightRft([...least, ...args, ...words], { environment }).settings.warnings.map(({ text }) => text);
}

describe("the documented rules", () => {
  it("has no warnings for valid settings", () => expect(read({})).toEqual([]));

  it.each([
    [{ train_batch_size: 4 }, "each rollout trains 16 samples in 4 optimizer steps"],
    [{ train_batch_size: 6 }, "each rollout trains 16 samples in 3 optimizer steps of about 5"],
    [{ train_batch_size: 32 }, "each rollout is one optimizer step of 16 samples"],
    [{ actor_learning_rate: 1e-5 }, "a critic usually needs a higher learning rate"],
    [{ kl_target: 0.1 }, "--kl_target 0.1 is outside the range 0.001 to 0.01"],
  ])("warns of %j", (flags, text) => expect(read(flags)).toEqual([expect.stringContaining(text)]));

  it.each([
    [
      { train_batch_size: 15, micro_train_batch_size: 2 },
      {},
      "not divisible by --micro_train_batch_size 2 x 1 processes",
    ],
    [
      { rollout_batch_size: 6, train_batch_size: 24 },
      { WORLD_SIZE: "4" },
      "6 prompts are not divisible by 4 processes (WORLD_SIZE)",
    ],
    [{ engine_tp_size: 4 }, { WORLD_SIZE: "2" }, "2 processes (WORLD_SIZE) cannot be divided into groups of 4"],
    [{ sp_size: 3 }, { WORLD_SIZE: "2" }, "2 processes (WORLD_SIZE) cannot be divided into groups of 3"],
    [{ n_samples_per_prompt: 1, train_batch_size: 4 }, {}, "group_norm compares the samples of a prompt"],
    [{}, { WORLD_SIZE: "two" }, "WORLD_SIZE=two: is not a number of processes"],
  ])("refuses %j with %j", (flags, environment, text) => {
    expect(() => read(flags, environment)).toThrow(UserError);
    expect(() => read(flags, environment)).toThrow(text);
  });

  it("uses the minimum number of processes that the flags allow if it is not set", () => {
    expect(read({ engine_tp_size: 4, sp_size: 2 })).toEqual([]);
  });

  it("reads the number of processes from local.processes", () => {
    expect(() => read({ engine_tp_size: 4 }, { WORLD_SIZE: "4" }, ["local.processes=6"])).toThrow(
      "6 processes (local.processes)",
    );
  });

  it("treats warnings as mistakes when strict", () => {
    const args = [...least, "--train_batch_size", "4", "--rollout_batch_size", "4"];
    expect(() => readLightRft(args, { environment: {}, strict: true })).toThrow("16 samples in 4 optimizer steps");
  });
});

describe("the table of flags", () => {
  it.each(flagTable)("--%s sets keys of Hone, or says why it sets none", (name, { noEffect }) => {
    const keys = keysOf(name);
    expect(keys.filter((key) => !configKeys.has(key))).toEqual([]);
    if (keys.length === 0) expect(noEffect).toMatch(/^\S/);
  });

  it("begins with a section", () => expect(flagTable[0]![1].section).toBeDefined());
});
