import type { ChildProcess } from "node:child_process";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { beforeAll, describe, expect, it } from "vitest";
import { makeTinyModel } from "../../base/python.fixture.ts";
import { uniforms } from "../../base/values.ts";
import { readLines } from "../../json-lines.fixture.ts";
import { nightly } from "../../nightly.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { startHone } from "./hone.fixture.ts";

/** Kills of the trainer and of the worker, in turn. Set `HONE_KILLS=20` for a longer test. */
const kills = Number(process.env.HONE_KILLS ?? 2);

const umask = process.umask();
const root = temporaryFolder("cli");
let model: string;

beforeAll(async () => {
  model = await makeTinyModel(join(root, "model"));
});

interface Ended {
  code: number | null;
  signal: NodeJS.Signals | null;
  output: string;
}

/** Runs the command line from its source. */
function hone(
  args: string[],
  onStart: (child: ChildProcess, said: (text: string) => Promise<void>) => void = () => {},
): Promise<Ended> {
  const child = startHone(args);
  let output = "";
  const listeners = new Set<() => void>();
  for (const stream of [child.stdout!, child.stderr!]) {
    stream.setEncoding("utf8").on("data", (text: string) => {
      output += text;
      for (const listener of listeners) listener();
    });
  }
  const said = (text: string) =>
    new Promise<void>((resolve) => {
      const look = () => output.includes(text) && resolve();
      listeners.add(look);
      child.once("close", () => resolve());
      look();
    });
  onStart(child, said);
  return new Promise((resolve) => child.once("close", (code, signal) => resolve({ code, signal, output })));
}

const trainToy = (folder: string, ...more: string[]) => [
  "train",
  "src/apps/cli/toy-experiment.fixture.ts",
  `model.name=${model}`,
  `rllm.trainer.run_dir=${folder}`,
  ...more,
];

/** metrics.jsonl without times, memory and the statistics of an engine. */
function metricsOf(folder: string): Record<string, unknown>[] {
  return readLines<Record<string, unknown>>(join(folder, "metrics.jsonl")).map((line) => {
    const entries = Object.entries(line);
    return Object.fromEntries(entries.filter(([name]) => !/^(time|perf|memory|engine)/.test(name)));
  });
}

/** The process of a trainer's worker. */
function workerOf(trainer: number): number | undefined {
  const children = readFileSync(`/proc/${trainer}/task/${trainer}/children`, "utf8").trim().split(" ").filter(Boolean);
  return children.map(Number).find((child) => readFileSync(`/proc/${child}/cmdline`, "utf8").includes("hone_worker"));
}

describe("hone train", () => {
  const whole = join(root, "whole");
  let seconds = 0;

  it("raises the reward of a real model and leaves a complete run folder", async () => {
    let begun = 0;
    const { code, output } = await hone(
      trainToy(whole),
      (_, said) =>
        void said("run folder").then(() => {
          begun = performance.now();
        }),
    );
    seconds = (performance.now() - begun) / 1000;
    expect(code, output).toBe(0);
    const rewards = metricsOf(whole).flatMap((line) => (line.kind ? [] : [line["reward/mean"] as number]));
    expect(rewards).toHaveLength(8);
    expect(rewards.at(-1)! - rewards[0]!).toBeGreaterThan(0.2);
    expect(readdirSync(whole).sort()).toEqual(
      [
        "checkpoints",
        "config.yaml",
        "episodes",
        "events.jsonl",
        "log.txt",
        "metrics.jsonl",
        "origins.json",
        "plots",
        "tokenizer",
        "worker.log",
      ].sort(),
    );
    expect(output).toContain("The same prompts before and after training:");
  });

  it.skipIf(process.platform !== "linux")(`gives the same metrics after ${kills} kills`, async () => {
    const folder = join(root, "killed");
    const random = uniforms(5);
    for (let kill = 0; kill < kills; kill++) {
      const victim = kill % 2 === 0 ? "trainer" : "worker";
      const ended = await hone(trainToy(folder), async (child, said) => {
        await said("run folder");
        await sleep(random() * seconds * 1000);
        if (child.exitCode !== null) return;
        const pid = victim === "trainer" ? child.pid : workerOf(child.pid!);
        if (pid !== undefined) process.kill(pid, "SIGKILL");
      });
      if (victim === "worker" && ended.code !== 0) {
        expect(ended.code).toBe(1);
        expect(ended.output).toMatch(/SIGKILL/);
      }
    }
    const { code, output } = await hone(trainToy(folder));
    expect(code, output).toBe(0);
    expect(metricsOf(folder)).toEqual(metricsOf(whole));
  });

  it("finishes the step, saves and prints how to continue at Ctrl-C", async () => {
    const folder = join(root, "stopped");
    const ended = await hone(trainToy(folder, "rllm.trainer.total_batches=200"), async (child, said) => {
      await said("step   1/200");
      child.kill("SIGINT");
    });
    expect(ended.code, ended.output).toBe(130);
    expect(ended.output).toMatch(/step (\d+) is saved; to continue, add --resume/);
    const step = Number(/step (\d+) is saved/.exec(ended.output)![1]);
    expect(metricsOf(folder).at(-1)!.step).toBe(step);
    const resumed = await hone([
      "train",
      "src/apps/cli/toy-experiment.fixture.ts",
      "--resume",
      folder,
      `rllm.trainer.total_batches=${step + 1}`,
    ]);
    expect(resumed.code, resumed.output).toBe(0);
    expect(resumed.output).toContain(`continuing after step ${step}`);
  });

  it.runIf(nightly)("trains with a critic, and continues with its weights", async () => {
    const gae = ["rllm.algorithm.adv_estimator=gae", "rllm.critic.learning_rate=3e-3"];
    const [judged, halved] = [join(root, "judged"), join(root, "halved")];
    const unbroken = await hone(trainToy(judged, ...gae));
    expect(unbroken.code, unbroken.output).toBe(0);
    const rewards = metricsOf(judged).flatMap((line) => (line.kind ? [] : [line["reward/mean"] as number]));
    expect(rewards.at(-1)! - rewards[0]!).toBeGreaterThan(0.2);
    await hone(trainToy(halved, ...gae, "rllm.trainer.total_batches=4"));
    const resumed = await hone(trainToy(halved, ...gae));
    expect(resumed.output).toContain("continuing after step 4");
    const last = (folder: string) => metricsOf(folder).findLast((line) => line["critic/vf_loss"] !== undefined)!;
    expect(last(halved)["critic/vf_loss"]).toBe(last(judged)["critic/vf_loss"]);
  });

  it("measures, exports and chats with the checkpoint", async () => {
    const measured = await hone([
      "eval",
      "src/apps/cli/toy-experiment.fixture.ts",
      `model.name=${model}`,
      ...["--checkpoint", whole, "--output", join(root, "measured")],
    ]);
    expect(measured.code, measured.output).toBe(0);
    const last = metricsOf(whole).at(-1)!;
    expect(measured.output).toContain(`reward ${(last["val/reward"] as number).toFixed(3)}`);
    for (const form of ["adapter", "merged"]) {
      const folder = join(root, form);
      const exported = await hone(["export", whole, folder, "--as", form]);
      expect(exported.code, exported.output).toBe(0);
      const weights = form === "adapter" ? "adapter_model.safetensors" : "model.safetensors";
      const tokenizer = ["README.md", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];
      expect(readdirSync(folder)).toEqual(expect.arrayContaining([weights, ...tokenizer]));
      // Exported files are readable by others.
      for (const name of readdirSync(folder)) expect(statSync(join(folder, name)).mode & 0o777).toBe(0o666 & ~umask);
      expect(readFileSync(join(folder, "README.md"), "utf8")).toContain("after 8 training steps");
    }
    const chatted = await hone(["chat", "--checkpoint", whole, "--message", "say 1", "rllm.rollout.val.max_tokens=16"]);
    expect(chatted.code, chatted.output).toBe(0);
    expect(chatted.output.trim()).not.toBe("");
  });
});
