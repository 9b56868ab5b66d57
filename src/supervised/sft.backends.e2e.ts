/** `hone sft` and `hone dpo` through the command line: through a Tinker service they give the local engine's losses; killed, they continue. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, describe, expect, it } from "vitest";
import { startHone } from "../apps/cli/hone.fixture.ts";
import { makeTinyModel } from "../base/python.fixture.ts";
import { readLines } from "../json-lines.fixture.ts";
import { nightly } from "../nightly.fixture.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";

const root = temporaryFolder("supervised");
const [rows, pairs] = [join(root, "rows.jsonl"), join(root, "pairs.jsonl")];
let model: string;

beforeAll(async () => {
  model = await makeTinyModel(join(root, "model"));
  const lines = (make: (index: number) => object) =>
    Array.from({ length: 10 }, (_, index) => `${JSON.stringify(make(index))}\n`).join("");
  const asked = (index: number) => ({ role: "user", content: `say ${index}` });
  const said = (content: string) => ({ role: "assistant", content });
  writeFileSync(
    rows,
    lines((index) => ({ messages: [asked(index), said(`number ${index}`)] })),
  );
  writeFileSync(
    pairs,
    lines((index) => ({ prompt: [asked(index)], chosen: [said(`${index}`)], rejected: [said("no")] })),
  );
});

/** @param kill ends the program with SIGKILL when it prints this */
async function hone(args: readonly string[], kill?: string): Promise<string> {
  const child = startHone(args);
  let output = "";
  for (const stream of [child.stdout!, child.stderr!]) {
    stream.setEncoding("utf8").on("data", (text: string) => {
      output += text;
      if (kill !== undefined && output.includes(kill)) child.kill("SIGKILL");
    });
  }
  const code = await new Promise<number | null>((resolve) => child.once("close", resolve));
  if (kill === undefined) expect(code, output).toBe(0);
  return output;
}

async function losses(
  command: "sft" | "dpo",
  folder: string,
  more: readonly string[] = [],
  kill?: string,
): Promise<number[]> {
  const settings = [
    `model.name=${model}`,
    "model.lora_rank=4",
    "model.train_unembed=false",
    "training.learning_rate=0.01",
  ];
  const sizes = [
    "data.train_batch_size=4",
    "rllm.trainer.total_epochs=2",
    "rllm.trainer.save_freq=2",
    "local.threads=1",
  ];
  const data = command === "sft" ? rows : pairs;
  await hone([command, data, `rllm.trainer.run_dir=${join(root, folder)}`, ...settings, ...sizes, ...more], kill);
  return lossesOf(folder);
}

const lossesOf = (folder: string) =>
  readLines<Record<string, number>>(join(root, folder, "metrics.jsonl")).map((line) => line["actor/loss"]!);

let whole: number[];

it.each(nightly ? (["sft", "dpo"] as const) : (["sft"] as const))(
  "%s gives the same losses through a Tinker service",
  async (command) => {
    const local = await losses(command, `${command}-local`);
    expect(local).toHaveLength(6);
    if (command === "sft") whole = local;
    expect(local.at(-1)!).toBeLessThan(local[0]!);
    const tinker = await losses(command, `${command}-tinker`, ["rllm/backend=tinker"]);
    for (const [step, loss] of tinker.entries()) expect(Math.abs(loss - local[step]!)).toBeLessThan(2e-4);
  },
);

/** @param whole the losses of an uninterrupted run */
async function continues(command: "sft" | "dpo", folder: string, whole: readonly number[], more: readonly string[]) {
  await losses(command, folder, more, "step 4/6");
  await hone([command, "--resume", join(root, folder)]);
  expect(lossesOf(folder)).toEqual(whole);
}

it("sft, killed and started again, gives the losses of an uninterrupted run", async () => {
  await continues("sft", "killed", whole, []);
});

it.runIf(nightly)("dpo, killed and started again, gives the losses of an uninterrupted run", async () => {
  await continues("dpo", "dpo-killed", lossesOf("dpo-local"), []);
});

/** Two ranks on this machine, which compute in float32. */
const verl = [
  "rllm/backend=verl",
  "trainer.n_gpus_per_node=2",
  "trainer.device=cpu",
  "++actor_rollout_ref.actor.fsdp_config.dtype=float32",
  "actor_rollout_ref.rollout.name=small",
  "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
  "actor_rollout_ref.model.external_lib=hone_on_cpu.small_rollout",
];

describe.runIf(nightly)("on verl", () => {
  // With a small eps, Adam amplifies rounding.
  const whole = ["model.lora_rank=0", "training.weight_decay=0", "training.eps=0.1"];

  it("sft gives the local engine's losses", async () => {
    const local = await losses("sft", "sft-float32", [...whole, "local.dtype=float32"]);
    const found = await losses("sft", "sft-verl", [...whole, ...verl]);
    for (const [step, loss] of found.entries()) expect(Math.abs(loss - local[step]!)).toBeLessThan(1e-5);
  });

  it("sft, killed and started again, gives the losses of an uninterrupted run", async () => {
    await continues("sft", "verl-killed", lossesOf("sft-verl"), [...whole, ...verl]);
  });
});
