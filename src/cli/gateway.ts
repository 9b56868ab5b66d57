/** `hone gateway`: a model, a checkpoint or an inference server behind the gateway, without training. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { adapterSpec, openEngine } from "../backends/open-engine.ts";
import type { Chat } from "../chat/chat.ts";
import { openChat } from "../chat/open-chat.ts";
import { outColors } from "../colors.ts";
import { composeConfig } from "../config/compose.ts";
import type { Config } from "../config/schema.ts";
import { UserError } from "../errors.ts";
import { policySessions } from "../gateway/policy-sessions.ts";
import { upstreamPolicy } from "../gateway/upstream/upstream-policy.ts";
import { printable } from "../printable.ts";
import type { SampledPolicy } from "../rollout/sample-queue.ts";
import { openCheckpoint } from "../trainer/open-checkpoint.ts";
import { openRunGateway } from "../trainer/open-gateway.ts";
import { showStatus } from "./show-status.ts";

interface GatewayFlags {
  checkpoint?: string;
  upstream?: string;
  upstreamKind?: string;
  upstreamModel?: string;
}

interface Model {
  policy: SampledPolicy;
  chat: Chat;
  name: string;
  close(): Promise<void>;
}

/** A call may take so long before its client is told that it took too long. */
const callTimeoutSeconds = 600;

const warn = (text: string) => process.stderr.write(`${printable(text)}\n`);

export async function gatewayCommand(overrides: string[], flags: GatewayFlags): Promise<void> {
  const checkpoint = flags.checkpoint === undefined ? undefined : await openCheckpoint(flags.checkpoint);
  const { config } = composeConfig({ input: checkpoint?.config ?? {}, overrides });
  // Nobody tells its agents the port: they must know it.
  config.rllm.sdk.proxy.mode = "external";
  for (const [flag, value] of [
    ["--upstream-kind", flags.upstreamKind],
    ["--upstream-model", flags.upstreamModel],
  ]) {
    if (flags.upstream === undefined && value !== undefined) {
      throw new UserError(`${flag} ${value} requires --upstream`, { hint: "add --upstream http://127.0.0.1:8000" });
    }
  }
  const model = flags.upstream === undefined ? await openOwn(config, checkpoint?.folder) : openUpstream(config, flags);
  try {
    const { temperature, top_p: topP, top_k: topK, min_p: minP } = config.rllm.rollout.val;
    const { policy, chat } = model;
    const gateway = await openRunGateway({
      ...{ config, folder: undefined, chat, model: model.name },
      warn,
      alone: {
        callTimeoutSeconds,
        openUnknown: policySessions({
          ...{ policy, chat, defaults: { temperature, topP, topK, minP }, seed: config.rllm.trainer.seed },
          limits: {
            maxPromptLength: config.data.max_prompt_length,
            maxResponseLength: config.data.max_response_length,
          },
        }),
      },
    });
    const stopped = new Promise((resolve) => {
      process.once("SIGINT", resolve);
      process.once("SIGTERM", resolve);
    });
    const kept = gateway.store === undefined ? "; calls are not stored (see rllm.sdk.store.path)" : "";
    process.stdout.write(
      `${model.name} at ${outColors.bold(`${gateway.origin}/s/NAME/a/0/v1`)}${kept}. Ctrl-C stops it.\n`,
    );
    await stopped;
    await gateway.close();
  } finally {
    await model.close();
  }
}

async function openOwn(config: Config, checkpoint: string | undefined): Promise<Model> {
  const status = showStatus();
  const engine = await openEngine(config, { onStatus: status.say });
  try {
    const adapter = checkpoint === undefined ? { kind: "none" as const } : adapterSpec(config);
    const policy = await engine.createPolicy({ adapter });
    if (checkpoint !== undefined) await policy.loadState(join(checkpoint, "policy"), { optimizer: false });
    const chat = openChat(engine.model.directory, config, warn);
    return { policy, chat, name: engine.model.name, close: () => engine.close() };
  } catch (error) {
    await engine.close();
    throw error;
  } finally {
    status.end();
  }
}

function openUpstream(config: Config, flags: GatewayFlags): Model {
  const { upstream: url = "", upstreamKind: kind = "vllm", upstreamModel: model } = flags;
  if (kind !== "vllm" && kind !== "sglang") throw new UserError(`--upstream-kind ${kind} is neither vllm nor sglang`);
  if (!/^https?:$/.test(URL.canParse(url) ? new URL(url).protocol : "")) {
    throw new UserError(`--upstream ${url} is not an http address`, { hint: "for example http://127.0.0.1:8000" });
  }
  const { name } = config.model;
  if (!existsSync(name)) {
    throw new UserError(`model.name=${name} is no folder; with --upstream it holds the model's tokenizer`, {
      hint: "name the folder that the inference server serves, e.g. model.name=./qwen3-0.6b",
    });
  }
  const policy = upstreamPolicy({ url, kind, ...(model === undefined ? {} : { model }) });
  return { policy, chat: openChat(name, config, warn), name: model ?? name, close: policy.close };
}
