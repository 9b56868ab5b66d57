/** `hone doctor`: checks the machine, trains on one batch, and reports each finding with the command that fixes it. */
import { statfsSync } from "node:fs";
import { availableParallelism, freemem, loadavg, totalmem } from "node:os";
import type { Command } from "commander";
import { policyLoss } from "../../algorithms/policy-loss.ts";
import { samplerMismatch } from "../../algorithms/sampler-mismatch.ts";
import type { Engine, Learner, Sample, Sampler } from "../../backends/engine.ts";
import { adapterSpec, openEngine } from "../../backends/open-engine.ts";
import { checkTemplate, describeTemplate } from "../../chat/check-template.ts";
import { openChat } from "../../chat/open-chat.ts";
import type { Chat } from "../../chat/types.ts";
import { outColors } from "../../colors.ts";
import type { Config } from "../../config/schema.ts";
import { formatBytes } from "../../files/durable-files.ts";
import { describeIsolation, openSandbox } from "../../rewards/sandbox/index.ts";
import { policyLossOptions } from "../../trainer/loss-options.ts";
import { adamParams } from "../../trainer/update-options.ts";
import { toBatch } from "../../trajectories/to-batch.ts";
import { composeSupported } from "../compose-supported.ts";
import { overrides } from "../options.ts";
import { showStatus } from "../show-status.ts";

const replies = 8;

export function register(command: Command): void {
  command
    .argument(...overrides)
    .addHelpText("after", "\nExamples:\n  hone doctor\n  hone doctor model.name=./my-model local.dtype=float32")
    .action(doctorCommand);
}

async function doctorCommand(overrides: string[]): Promise<void> {
  const { config } = composeSupported(overrides);
  let wrong = 0;
  const say = (name: string, detail: string) =>
    process.stdout.write(`${outColors.green("ok")}    ${name.padEnd(10)} ${detail}\n`);
  const complain = (name: string, detail: string, fix: string) => {
    wrong++;
    process.stdout.write(
      `${outColors.red("wrong")} ${name.padEnd(10)} ${detail}\n      ${outColors.cyan("fix:")} ${fix}\n`,
    );
  };

  say("node", `${process.version} on ${process.platform} ${process.arch}`);
  say("processor", processor(availableParallelism(), loadavg()[0]!, config.local.threads));
  say("memory", `${formatBytes(freemem())} free of ${formatBytes(totalmem())}`);
  const disk = statfsSync(".");
  const free = disk.bavail * disk.bsize;
  if (free > 2e9) say("disk", `${formatBytes(free)} free here`);
  else complain("disk", `only ${formatBytes(free)} free here`, "free some space, or run in a folder on another disk");

  const sandbox = await openSandbox({ atLeast: "process" }).catch((error: Error) => error);
  say("sandbox", sandbox instanceof Error ? `not available: ${sandbox.message}` : describeIsolation(sandbox.isolation));

  const status = showStatus();
  const start = performance.now();
  const engine = await openEngine(config, { onStatus: status.say }).finally(status.end);
  try {
    const seconds = ((performance.now() - start) / 1000).toFixed(1);
    for (const [name, version] of Object.entries(engine.versions)) say(name, version);
    const { name, architecture, parameters, dtype, device, attention, attentionReason } = engine.model;
    say(
      "model",
      `${name}: ${architecture}, ${(parameters / 1e6).toFixed(1)}M parameters, ${dtype} on ${device}, ready in ${seconds} s`,
    );
    if (attention === "packed") say("attention", "packed sequences, shared prompts computed once");
    else say("attention", `padded, slower: ${attentionReason}`);
    await oneBatch(engine, config, say, complain);
  } finally {
    await engine.close();
  }
  process.stdout.write(
    wrong === 0 ? "\nall checks passed\n" : `\n${wrong} ${wrong === 1 ? "check" : "checks"} failed\n`,
  );
  process.exitCode = wrong === 0 ? 0 : 1;
}

/** Recommends fewer threads on a busy machine: one thread without a core delays all the others. */
function processor(cores: number, busy: number, threads: number): string {
  const text = `${cores} ${cores === 1 ? "core" : "cores"}, load ${busy.toFixed(1)} over the last minute`;
  const fewer = Math.max(1, Math.floor(cores - busy));
  if (busy < 0.75 || (threads || cores) <= fewer) return text;
  return `${text}; local.threads=${fewer} is faster while other programs run`;
}

type Say = (name: string, detail: string) => void;

async function oneBatch(
  engine: Engine,
  config: Config,
  say: Say,
  complain: (name: string, detail: string, fix: string) => void,
): Promise<void> {
  const chat = openChat(engine.model.directory, config, (line) => say("chat", line));
  const findings = describeTemplate(checkTemplate(chat), chat);
  if (findings.length === 0) say("chat", "the template keeps earlier turns unchanged");
  for (const finding of findings) say("chat", finding);
  const { sampler, learner } = await engine.createPolicy({ adapter: adapterSpec(config) });
  const prompt = chat.render([{ role: "user", content: "Name three colors." }]);
  const time = stopwatch();
  const samples = await collect(sampler, prompt);
  const tokens = samples.reduce((sum, { tokens }) => sum + tokens.length, 0);
  say(
    "sampling",
    `${replies} replies, ${tokens} tokens in ${time()}; the first: ${JSON.stringify(preview(chat, samples[0]!))}`,
  );

  const batch = batchOf(prompt, samples, config);
  const { result, gradNorm } = await trainOnce(learner, batch, config);
  say(
    "training",
    `${batch.totals.tokens} tokens forward and backward in ${time()}, gradient norm ${gradNorm.toPrecision(3)}`,
  );

  const mismatch = samplerMismatch(result.outputs.logprobs, batch.samplerLogprobs)["rollout/logprob_diff_mean"]!;
  const allowed = engine.model.dtype === "float32" ? 1e-3 : 0.1;
  const detail = `sampler and trainer differ by ${mismatch.toExponential(1)} nats per token`;
  if (mismatch <= allowed) say("agreement", detail);
  else
    complain(
      "agreement",
      `${detail}, more than ${allowed}`,
      "add local.dtype=float32; if the difference remains, please report it with the model's name",
    );

  await sampler.load(await learner.publish());
  const moved = (await learner.forward(batch.sequences, {})).logprobs.some(
    (logprob, index) => logprob !== result.outputs.logprobs[index],
  );
  if (moved) say("update", `an optimizer step changed the policy, published in ${time()}`);
  else
    complain(
      "update",
      "an optimizer step did not change the policy",
      "raise model.lora_rank or check model.train_attn and model.train_mlp",
    );
}

async function collect(sampler: Sampler, prompt: Int32Array): Promise<Sample[]> {
  const params = { maxTokens: 24, temperature: 1, topP: 1, topK: -1, minP: 0, stopIds: [], stopStrings: [] };
  const requests = Array.from({ length: replies }, (_, seed) => ({ prompt, params: { ...params, seed } }));
  const samples: Sample[] = [];
  for await (const sample of sampler.sample(requests)) samples.push(sample);
  return samples;
}

/** The replies as a batch with artificial advantages: +1 for half of them, -1 for the others. */
function batchOf(prompt: Int32Array, samples: readonly Sample[], config: Config) {
  const members = samples.map(({ tokens, logprobs, stopReason, policyVersion }, index) => {
    const step = {
      promptTokens: prompt,
      tokens,
      logprobs,
      stopReason,
      policyVersion,
      text: "",
      messages: [],
      reward: null,
    };
    const trajectory = { name: "doctor", steps: [step], reward: index % 2 };
    const episode = {
      id: `doctor:${index}`,
      taskId: "doctor",
      rollout: index,
      trajectories: [trajectory],
      termination: "env_done" as const,
      correct: null,
      metrics: {},
      retries: 0,
      seconds: 0,
    };
    return { episode, trajectory, reward: index % 2 };
  });
  const groups = [{ id: "doctor:doctor", taskId: "doctor", role: "doctor", members }];
  return toBatch(groups, [members.map(({ reward }) => reward * 2 - 1)], { maxLength: config.training.max_length })
    .batch;
}

async function trainOnce(learner: Learner, batch: ReturnType<typeof batchOf>, config: Config) {
  // The built-in loss: an experiment's own is not loaded here.
  const algorithm = { ...config.rllm.algorithm, loss_fn: null, loss_fn_map: {}, estimator_map: {} };
  const options = { ...policyLossOptions({ ...config, rllm: { ...config.rllm, algorithm } }), klBeta: 0 };
  const result = await learner.forwardBackward(batch.sequences, policyLoss(batch, options));
  const { gradNorm } = await learner.optimStep({ ...adamParams(config, 1, 1), learningRate: 1e-3 });
  return { result, gradNorm };
}

function preview(chat: Chat, { tokens }: Sample): string {
  return chat.decode(tokens, { skipSpecial: true }).trim().slice(0, 60);
}

/** @returns a function that formats the seconds since its last call */
function stopwatch(): () => string {
  let last = performance.now();
  return () => {
    const now = performance.now();
    const text = `${((now - last) / 1000).toFixed(1)} s`;
    last = now;
    return text;
  };
}
