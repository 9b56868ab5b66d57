/** A policy trained by a Tinker service: the interface of ../engine.ts spoken over its protocol. */

import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { mkdir, rename, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { z } from "zod";
import { RunError, UserError } from "../../errors.ts";
import type { Sequence, TokenOutputs } from "../../trajectories/types.ts";
import { checkLossValue } from "../check-loss-value.ts";
import type { AdapterSpec, Policy } from "../engine.ts";
import { isTinkerPath } from "../tinker-path.ts";
import { chunksOf, gatherOutputs, type Planned, planDatums, toDatum } from "./datums.ts";
import { type Sampler, sample } from "./sample.ts";
import type { TinkerSession } from "./session.ts";
import { type DatumOutput, decodeForwardBackwardOutput, encodeForwardBackwardRequest } from "./wire/training.ts";

export interface TinkerModel {
  /** As the service names it. */
  name: string;
  eosTokenIds: readonly number[];
}

/** What a saved policy is here: the name of a checkpoint that the service holds. */
const savedSchema = z.strictObject({ path: z.string(), version: z.int(), model: z.string() });

/** Tinker's scale of LoRA is 32 / rank. */
const tinkerAlpha = 32;

/** @param overlap send the optimizer's step without waiting for the gradient's answer */
export async function createTinkerPolicy(
  session: TinkerSession,
  model: TinkerModel,
  adapter: AdapterSpec & { kind: "lora" },
  overlap: boolean,
): Promise<Policy> {
  const { connection } = session;
  if (adapter.alpha !== tinkerAlpha && !session.isHone) {
    throw new UserError(
      `model.lora_alpha is ${adapter.alpha}: Tinker's scale is ${tinkerAlpha} / rank and cannot be changed`,
      {
        hint: `model.lora_alpha=${tinkerAlpha}`,
      },
    );
  }
  const made = await connection.run("create_model", "create_model", {
    type: "create_model",
    session_id: session.id,
    model_seq_id: session.nextModel(),
    base_model: model.name,
    lora_config: {
      rank: adapter.rank,
      seed: adapter.seed,
      ...(session.isHone ? { alpha: adapter.alpha } : {}),
      train_attn: adapter.targets.includes("attn"),
      train_mlp: adapter.targets.includes("mlp"),
      train_unembed: adapter.targets.includes("unembed"),
    },
  });
  let id = String((made as Record<string, unknown>).model_id);
  let seq = 1;
  let version = 0;
  // A fresh adapter changes nothing, so until the first publish the base model is what it samples as.
  let sampler: Promise<Sampler> | undefined;
  let gradient = false;
  let underWay: Promise<unknown>[] = [];

  const operation = (kind: string, fields: Record<string, unknown> = {}) =>
    connection.run(kind, kind, { type: kind, ...fields, model_id: id, seq_id: seq++ }) as Promise<
      Record<string, unknown>
    >;

  /** Sends the parts of one call, so that the service has all before it begins; the answers come later. */
  async function crossEntropy(
    sequences: readonly Sequence[],
    plan: readonly Planned[],
    weights: readonly ArrayLike<number>[],
    forwardOnly: boolean,
  ): Promise<{ answers: Promise<DatumOutput[]> }> {
    const datums = plan.map((planned, index) => toDatum(sequences[planned.sequence]!, planned, weights[index]!));
    const kind = forwardOnly ? "forward" : "forward_backward";
    const requests = chunksOf(datums).map((data) =>
      encodeForwardBackwardRequest({
        ...{ modelId: id, seqId: seq++, data, forwardOnly, lossFn: "cross_entropy" },
        lossConfig: session.isHone ? { weighted_only: 1 } : {},
      }),
    );
    const accepted = await Promise.all(requests.map((request) => connection.post("forward_backward", request)));
    const answers = Promise.all(accepted.map((answer) => connection.collect(kind, answer)));
    const decode = (part: unknown) => decodeForwardBackwardOutput(part as Uint8Array).outputs;
    return { answers: answers.then((results) => results.flatMap(decode)) };
  }

  async function forward(sequences: readonly Sequence[]): Promise<{ plan: Planned[]; outputs: TokenOutputs }> {
    const plan = planDatums(sequences);
    if (plan.length === 0) return { plan, outputs: gatherOutputs(sequences.length, plan, []) };
    const ones = plan.map(({ places }) => new Float32Array(places.length).fill(1));
    const { answers } = await crossEntropy(sequences, plan, ones, true);
    return { plan, outputs: gatherOutputs(sequences.length, plan, await answers) };
  }

  async function newSampler(fields: Record<string, unknown> | null, ofVersion: number): Promise<Sampler> {
    const number = session.nextSampler();
    const answer = fields
      ? await operation("save_weights_for_sampler", { sampling_session_seq_id: number, ...fields })
      : await connection.post("create_sampling_session", {
          type: "create_sampling_session",
          session_id: session.id,
          sampling_session_seq_id: number,
          base_model: model.name,
        });
    let requests = 0;
    return { id: String(answer.sampling_session_id), version: ofVersion, next: () => requests++ };
  }

  function refuseOutputs(outputs: { entropy?: boolean; values?: boolean }): void {
    if (!outputs.entropy && !outputs.values) return;
    throw new UserError("Tinker gives log-probabilities only, no entropies and no values", {
      hint: "Leave the entropy bonus and critics off, or train with rllm.backend=local.",
    });
  }

  return {
    get version() {
      return version;
    },
    async *sample(requests, options = {}) {
      sampler ??= newSampler(null, 0);
      yield* sample(session, await sampler, requests, model.eosTokenIds, options);
    },
    async forward(sequences, outputs) {
      refuseOutputs(outputs);
      return (await forward(sequences)).outputs;
    },
    /** Any loss: a forward, then cross entropy weighted by the negated gradient, whose gradient is the loss's. */
    async forwardBackward(sequences, loss) {
      refuseOutputs(loss.outputs);
      const { plan, outputs } = await forward(sequences);
      const value = loss.evaluate(outputs, Int32Array.from(sequences.keys()));
      checkLossValue(loss.name, value, outputs);
      const weights = plan.map(({ sequence }) =>
        value.gradient.logprobs
          .subarray(outputs.offsets[sequence]!, outputs.offsets[sequence + 1]!)
          .map((slope) => -slope),
      );
      const informative = plan.flatMap((_, index) => (weights[index]!.some((weight) => weight !== 0) ? [index] : []));
      if (informative.length > 0) {
        const parts = informative.map((index) => [plan[index]!, weights[index]!] as const);
        const { answers } = await crossEntropy(
          sequences,
          parts.map(([planned]) => planned),
          parts.map(([, weight]) => weight),
          false,
        );
        gradient = true;
        // A failure that nobody waits for here is told by the step.
        answers.catch(() => {});
        if (overlap) underWay.push(answers);
        else await answers;
      }
      return { loss: value.loss, metrics: value.metrics, outputs };
    },
    async optimStep(adam) {
      const before = underWay;
      underWay = [];
      const step = operation("optim_step", {
        adam_params: {
          learning_rate: adam.learningRate,
          beta1: adam.beta1,
          beta2: adam.beta2,
          eps: adam.eps,
          weight_decay: adam.weightDecay,
          grad_clip_norm: adam.maxGradNorm,
        },
      });
      step.catch(() => {});
      await Promise.all(before);
      gradient = false;
      try {
        const { metrics } = await step;
        const norm = (metrics as Record<string, unknown> | undefined)?.grad_norm;
        // The hosted service tells no norm that is documented.
        return { gradNorm: typeof norm === "number" ? norm : Number.NaN, applied: true };
      } catch (error) {
        const norm = error instanceof Error ? /the gradient's norm is (\S+):/.exec(error.message)?.[1] : undefined;
        if (norm === undefined) throw error;
        return { gradNorm: Number(norm), applied: false };
      }
    },
    async publish() {
      const made = await newSampler({}, version + 1);
      sampler = Promise.resolve(made);
      version++;
      return version;
    },
    async zeroGrad() {
      await Promise.allSettled(underWay);
      underWay = [];
      if (!gradient) return;
      if (!session.isHone) {
        throw new RunError("Tinker cannot drop a gradient that was added up", {
          hint: "Go on from the last checkpoint with --resume.",
        });
      }
      await operation("zero_grad");
      gradient = false;
    },
    async saveState(dir) {
      if (existsSync(dir)) throw new UserError(`${dir} exists already`);
      const { path } = await operation("save_weights", { path: `hone-${version}-${seq}`, overwrite: false });
      const partial = `${dir}.partial-${process.pid}`;
      mkdirSync(partial, { recursive: true });
      writeFileSync(join(partial, "tinker.json"), `${JSON.stringify({ path, version, model: model.name }, null, 2)}\n`);
      renameSync(partial, dir);
    },
    async loadState(dir, { optimizer }) {
      const saved = readSaved(dir, model.name);
      // A new model of the service: one that has run already may not be loaded into there.
      const number = session.nextModel();
      const loaded = await connection.run("load_weights", "load_weights", {
        type: "load_weights",
        session_id: session.id,
        model_seq_id: number,
        path: saved.path,
        optimizer,
      });
      id = String((loaded as Record<string, unknown>).model_id ?? `${session.id}:train:${number}`);
      seq = 1;
      gradient = false;
      underWay = [];
      version = saved.version;
      sampler = Promise.resolve(await newSampler({}, version));
    },
    async export(dir, as) {
      if (as !== "adapter") {
        throw new UserError("Tinker exports adapters only", {
          hint: "--as adapter; merge it into the base model with PEFT.",
        });
      }
      if (existsSync(dir)) throw new UserError(`${dir} exists already`);
      const { path } = await operation("save_weights_external", { path: `hone-export-${seq}` });
      const { run, name } = parts(String(path));
      const { urls } = await connection.get(
        `training_runs/${run}/checkpoints/external_weights/${name}/external_weights_urls`,
      );
      const partial = `${dir}.partial-${process.pid}`;
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
}

/** The base model as it is: samples, and forwards by the log-probabilities of prompts. */
export function createBasePolicy(session: TinkerSession, model: TinkerModel): Policy {
  const never = async (): Promise<never> => {
    throw new UserError(
      "this policy is the base model as it is (adapter none): it cannot be trained, saved or exported",
    );
  };
  let sampler: Promise<Sampler> | undefined;
  const open = async (): Promise<Sampler> => {
    const answer = await session.connection.post("create_sampling_session", {
      type: "create_sampling_session",
      session_id: session.id,
      sampling_session_seq_id: session.nextSampler(),
      base_model: model.name,
    });
    let requests = 0;
    return { id: String(answer.sampling_session_id), version: 0, next: () => requests++ };
  };
  return {
    version: 0,
    async *sample(requests, options = {}) {
      sampler ??= open();
      yield* sample(session, await sampler, requests, model.eosTokenIds, options);
    },
    async forward(sequences, outputs) {
      if (outputs.entropy || outputs.values)
        throw new UserError("Tinker gives log-probabilities only, no entropies and no values");
      if (sequences.some(({ targets }) => targets))
        throw new UserError("the base model of Tinker scores no chosen tokens");
      sampler ??= open();
      const plan = planDatums(sequences);
      const params = {
        maxTokens: 1,
        temperature: 1,
        topP: 1,
        topK: -1,
        minP: 0,
        stopIds: [],
        stopStrings: [],
        seed: 0,
      };
      const requests = plan.map(({ sequence }) => ({
        prompt: sequences[sequence]!.tokens,
        params,
        promptLogprobs: true,
      }));
      const answers: DatumOutput[] = [];
      for await (const { request, promptLogprobs } of sample(session, await sampler, requests, model.eosTokenIds, {})) {
        if (!promptLogprobs) throw new RunError("the Tinker service gave no log-probabilities of a prompt");
        answers[request] = { logprobs: promptLogprobs.subarray(1), trailingShape: [] };
      }
      return gatherOutputs(sequences.length, plan, answers);
    },
    forwardBackward: never,
    optimStep: never,
    publish: never,
    zeroGrad: never,
    saveState: never,
    loadState: never,
    export: never,
    async close() {},
  };
}

/** What a folder of `saveState` says, or a path of the service itself: `tinker://{run}/weights/{name}`. */
function readSaved(dir: string, model: string): z.output<typeof savedSchema> {
  if (isTinkerPath(dir)) return { path: dir, version: 0, model };
  const file = join(dir, "tinker.json");
  if (!existsSync(file)) {
    throw new UserError(`${dir} holds no checkpoint of a Tinker service`, {
      hint: "It is another engine's; train on with the rllm.backend that made it.",
    });
  }
  const parsed = savedSchema.safeParse(JSON.parse(readFileSync(file, "utf8")));
  if (!parsed.success) throw new UserError(`${file}: ${z.prettifyError(parsed.error)}`);
  if (parsed.data.model !== model)
    throw new UserError(`${file} is of the model ${parsed.data.model}, this run of ${model}`);
  return parsed.data;
}

/** `tinker://{run}/{kind}/{name}` */
function parts(path: string): { run: string; name: string } {
  const [run = "", , name = ""] = path.slice("tinker://".length).split("/");
  return { run, name };
}
