/** Reward models on inference servers, for any backend. */
import { basename } from "node:path";
import { openTokenizer } from "../../chat/tokens/tokenizer.ts";
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import type { EngineHooks } from "../descriptor.ts";
import type { ModelInfo, ScoringPart } from "../engine.ts";
import { modelSource } from "../local/models.ts";
import { type Place, scoringLaunch } from "../servers/process/launch.ts";
import type { ServerProcess } from "../servers/process/server-process.ts";
import { servedScorers } from "../servers/scoring/served-scorers.ts";
import { gpuOptions, isOnGpu } from "./own-server.ts";
import { startVllm, thisMachine } from "./start-servers.ts";

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
