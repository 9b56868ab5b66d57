/** A policy at a Tinker service: training, publishing, saving and loading. */
import { existsSync, readFileSync } from "node:fs";
import { mkdir, rename, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { z } from "zod";
import type { Loss, Outputs } from "../../algorithms/types.ts";
import { RunError, UserError } from "../../base/errors.ts";
import { temporaryName } from "../../base/files.ts";
import type { Sequence } from "../../trajectories/types.ts";
import type { AdamParams, AdapterSpec, Learner, Policy, Published, StepResult } from "../engine.ts";
import { plainParams } from "../engine-parts.ts";
import { samplerTeacher } from "../teachers.ts";
import type { TinkerSession } from "./connection.ts";
import { isTinkerPath, NonFiniteGradientError, parseTinkerPath } from "./handshake.ts";
import type { DatumOutput } from "./messages.ts";
import { createTinkerSampler, type TinkerModel } from "./sampler.ts";
import { type AcceptedBackward, gatherOutputs, planDatums, type RemoteModel, remoteTraining } from "./training.ts";

// A saved policy: a folder with the name of a checkpoint that the service stores.

export const stateFile = "tinker.json";

const savedSchema = z.strictObject({ path: z.string(), version: z.int(), model: z.string() });
type SavedState = z.output<typeof savedSchema>;

/** Moves checkpoints out of a service that does not outlive its client. */
export interface StateTransfer {
  /** Moves a checkpoint into an existing folder. */
  moveOut(path: string, folder: string): Promise<void>;
  /** Copies it back temporarily. Returns the function that removes it again. */
  copyBack(folder: string, path: string, adapter: AdapterSpec & { kind: "lora" }): Promise<() => Promise<void>>;
}

/** Undefined if the folder does not have this file. */
function findState(folder: string): SavedState | undefined {
  const file = join(folder, stateFile);
  if (!existsSync(file)) return undefined;
  const parsed = savedSchema.safeParse(JSON.parse(readFileSync(file, "utf8")));
  if (!parsed.success) throw new UserError(`${file}: ${z.prettifyError(parsed.error)}`);
  return parsed.data;
}

/** Reads a folder of `saveState`, or a path of the service itself: `tinker://{run}/weights/{name}`. */
function readState(folder: string, model: string): SavedState {
  if (isTinkerPath(folder)) return { path: folder, version: 0, model };
  const saved = findState(folder);
  if (saved === undefined) {
    throw new UserError(`${folder} is not a checkpoint of a Tinker service`, {
      hint: "Another engine wrote it: use the rllm.backend of that run.",
    });
  }
  if (saved.model !== model)
    throw new UserError(`${folder} belongs to the model ${saved.model}, but this run trains ${model}`);
  return saved;
}

/** Where the service lists `tinker://{run}/{kind}/{name}`. */
function addressOf(path: string): string {
  const { run, kind, name } = parseTinkerPath(path);
  return `training_runs/${run}/checkpoints/${kind}/${name}`;
}

// A Tinker service as a learner: the interface of ../engine.ts spoken over its protocol.

/** Tinker's scale of LoRA is 32 / rank. */
const tinkerAlpha = 32;

function refuseOutputs(outputs: Outputs): void {
  if (!outputs.entropy && !outputs.values) return;
  throw new UserError("Tinker returns only log-probabilities; it does not return entropies or values", {
    hint: "Turn off the entropy bonus and critics, or train with rllm/backend=local.",
  });
}

export interface PolicyOptions {
  /** With `trainStep`: the optimizer's step is sent without waiting for the gradient's answer. */
  overlap?: boolean;
  /** For a service that does not outlive its client. */
  states?: StateTransfer;
}

export async function createTinkerPolicy(
  session: TinkerSession,
  model: TinkerModel,
  adapter: AdapterSpec & { kind: "lora" },
  { overlap, states }: PolicyOptions,
): Promise<Policy> {
  const { connection, capabilities } = session;
  if (adapter.alpha !== tinkerAlpha && !capabilities.adapterAlpha) {
    throw new UserError(
      `model.lora_alpha is ${adapter.alpha}: Tinker's scale is ${tinkerAlpha} / rank and cannot be changed`,
      { hint: `model.lora_alpha=${tinkerAlpha}` },
    );
  }
  const made = await connection.run("create_model", {
    type: "create_model",
    session_id: session.id,
    model_seq_id: session.nextModel(),
    base_model: model.name,
    lora_config: {
      rank: adapter.rank,
      seed: adapter.seed,
      alpha: capabilities.adapterAlpha ? adapter.alpha : undefined,
      train_attn: adapter.targets.includes("attn"),
      train_mlp: adapter.targets.includes("mlp"),
      train_unembed: adapter.targets.includes("unembed"),
    },
  });
  let seq = 1;
  const remote: RemoteModel = { id: String(made.model_id), nextSeq: () => seq++ };
  const training = remoteTraining(session, remote);
  let version = 0;
  let gradient = false;

  const operation = (kind: string, fields: Record<string, unknown> = {}) =>
    connection.run(kind, { type: kind, ...fields, model_id: remote.id, seq_id: remote.nextSeq() });

  async function startBackward(sequences: readonly Sequence[], loss: Loss): Promise<AcceptedBackward> {
    refuseOutputs(loss.outputs);
    const accepted = await training.backward(sequences, loss);
    if (accepted.adds) gradient = true;
    return accepted;
  }

  /** Freezes the weights as a sampling session. */
  async function publish(as: number): Promise<Published> {
    const answer = await operation("save_weights_for_sampler", { sampling_session_seq_id: session.nextSampler() });
    version = as;
    return { kind: "engine", version, id: String(answer.sampling_session_id) };
  }

  async function optimStep(adam: AdamParams): Promise<StepResult> {
    gradient = false;
    try {
      const { metrics } = await operation("optim_step", {
        adam_params: {
          learning_rate: adam.learningRate,
          beta1: adam.beta1,
          beta2: adam.beta2,
          eps: adam.eps,
          weight_decay: adam.weightDecay,
          grad_clip_norm: adam.maxGradNorm,
        },
      });
      const norm = (metrics as Record<string, unknown> | undefined)?.grad_norm;
      // The hosted service does not document a norm.
      return { gradNorm: typeof norm === "number" ? norm : Number.NaN, applied: true };
    } catch (error) {
      if (error instanceof NonFiniteGradientError) return { gradNorm: error.gradNorm, applied: false };
      throw error;
    }
  }

  const learner: Learner = {
    async forward(sequences, outputs) {
      refuseOutputs(outputs);
      return training.forward(sequences);
    },
    async forwardBackward(sequences, loss) {
      return (await startBackward(sequences, loss)).result;
    },
    optimStep,
    publish: () => publish(version + 1),
    async zeroGrad() {
      if (!gradient) return;
      if (!capabilities.zeroGrad) {
        throw new RunError("Tinker cannot discard an accumulated gradient", {
          hint: "Continue from the last checkpoint with --resume.",
        });
      }
      await operation("zero_grad");
      gradient = false;
    },
    async saveState(dir) {
      if (existsSync(dir)) throw new UserError(`${dir} already exists`);
      const { path } = await operation("save_weights", { path: `hone-${version}-${seq}`, overwrite: false });
      const partial = temporaryName(dir);
      const saved: SavedState = { path: String(path), version, model: model.name };
      try {
        await mkdir(partial, { recursive: true });
        await states?.moveOut(saved.path, partial);
        await writeFile(join(partial, stateFile), `${JSON.stringify(saved, null, 2)}\n`);
        await rename(partial, dir);
      } finally {
        await rm(partial, { recursive: true, force: true });
      }
    },
    async loadState(dir, { optimizer }) {
      const saved = readState(dir, model.name);
      // A state that this process stores itself is checked when it is loaded.
      if (!states)
        requireSameAdapter(saved.path, adapter, await connection.post("weights_info", { tinker_path: saved.path }));
      const removeCopy = await states?.copyBack(dir, saved.path, adapter);
      try {
        // Creates a new model: the service may refuse to load into one that has already run.
        const number = session.nextModel();
        const loaded = await connection.run("load_weights", {
          type: "load_weights",
          session_id: session.id,
          model_seq_id: number,
          path: saved.path,
          optimizer,
        });
        remote.id = String(loaded.model_id ?? `${session.id}:train:${number}`);
      } finally {
        await removeCopy?.();
      }
      seq = 1;
      gradient = false;
      return publish(saved.version);
    },
    async export(dir, as) {
      if (as !== "adapter") {
        throw new UserError("Tinker exports only adapters", {
          hint: "Use --as adapter, and merge it into the base model with PEFT.",
        });
      }
      if (existsSync(dir)) throw new UserError(`${dir} already exists`);
      // The files are fetched now, so the service does not have to keep them.
      const { path } = await operation("save_weights_external", { path: `hone-export-${seq}`, ttl_seconds: 3600 });
      const { urls } = await connection.get(`${addressOf(String(path))}/external_weights_urls`);
      const partial = temporaryName(dir);
      try {
        for (const [file, url] of Object.entries(urls as Record<string, string>)) {
          await mkdir(dirname(join(partial, file)), { recursive: true });
          await writeFile(join(partial, file), await connection.download(url));
        }
        await rename(partial, dir);
      } finally {
        await rm(partial, { recursive: true, force: true });
      }
    },
    async close() {},
  };
  if (overlap) {
    learner.trainStep = async (sequences, loss, adam) => {
      const { result } = await startBackward(sequences, loss);
      const [ended, step] = await Promise.allSettled([result, optimStep(adam)]);
      if (ended.status === "rejected") throw ended.reason;
      if (step.status === "rejected") throw step.reason;
      return { result: ended.value, step: step.value };
    };
  }
  if (!states) {
    learner.forgetState = async (dir) => {
      const saved = findState(dir);
      if (saved === undefined) return;
      await connection.remove(addressOf(saved.path));
      session.counts.deletedCheckpoints++;
    };
  }
  // A fresh adapter changes nothing: until the first publish, samples come from the base model.
  return { sampler: createTinkerSampler(session, model), learner };
}

/** @throws UserError when the configured adapter differs from the checkpoint's, which the service would restore */
function requireSameAdapter(
  path: string,
  adapter: AdapterSpec & { kind: "lora" },
  info: Record<string, unknown>,
): void {
  const own: Record<string, unknown> = {
    lora_rank: adapter.rank,
    // Only a service that has it reports it.
    lora_alpha: adapter.alpha,
    train_attn: adapter.targets.includes("attn"),
    train_mlp: adapter.targets.includes("mlp"),
    train_unembed: adapter.targets.includes("unembed"),
  };
  const different = Object.entries(own).flatMap(([name, ours]) => {
    const theirs = info[name] ?? ours;
    return theirs === ours ? [] : [[`model.${name}`, theirs, ours] as const];
  });
  const [first] = different;
  if (!first) return;
  const [key, theirs, ours] = first;
  throw new UserError(`${path} has a different adapter: its ${key} is ${theirs}, this run's is ${ours}`, {
    hint: `Continue with ${different.map(([name, value]) => `${name}=${value}`).join(" ")}.`,
  });
}

/** The base model as it is: samples, and forwards by the log-probabilities of prompts. */
export function createBasePolicy(session: TinkerSession, model: TinkerModel): Policy {
  const never = async (): Promise<never> => {
    throw new UserError("this policy is the base model (adapter none): it cannot be trained, saved or exported");
  };
  const sampler = createTinkerSampler(session, model);
  const learner: Learner = {
    async forward(sequences, outputs) {
      refuseOutputs(outputs);
      if (sequences.some(({ targets }) => targets))
        throw new UserError("Tinker cannot score given tokens with the base model");
      const plan = planDatums(sequences);
      const requests = plan.map(({ tokens, media }) => ({
        prompt: tokens,
        ...(media ? { media } : {}),
        params: plainParams,
        promptLogprobs: true,
      }));
      const answers: DatumOutput[] = [];
      for await (const { request, promptLogprobs } of sampler.sample(requests)) {
        if (!promptLogprobs) throw new RunError("the Tinker service did not return the log-probabilities of a prompt");
        answers[request] = { logprobs: promptLogprobs.subarray(1), trailingShape: [] };
      }
      return gatherOutputs(sequences.length, plan, answers);
    },
    mostLikely: (sequences, count) => samplerTeacher(sampler, {}).mostLikely!(sequences, count),
    forwardBackward: never,
    optimStep: never,
    publish: never,
    zeroGrad: never,
    saveState: never,
    loadState: never,
    export: never,
    async close() {},
  };
  return { sampler, learner };
}
