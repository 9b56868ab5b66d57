/** `hone gateway`: serves a model, a checkpoint or an inference server through the gateway, without training. */
import { existsSync } from "node:fs";
import { type Command, Option } from "commander";
import { openChat } from "../../backends/backends.ts";
import { serverKey } from "../../backends/local/options.ts";
import { serverSampler } from "../../backends/servers/sampler.ts";
import { UserError } from "../../base/errors.ts";
import { maskUrls, printable } from "../../base/text.ts";
import type { Config } from "../../config/schema.ts";
import { checkRunGateway, openRunGateway, requireGatewayPort } from "../../gateway/run-gateway.ts";
import { policySessions } from "../../gateway/sessions.ts";
import { outColors } from "../../tracking/console-lines.ts";
import { openCheckpoint } from "../../trainer/resume.ts";
import {
  checkpoint,
  composeSupported,
  loadSpanFilter,
  type OpenModel,
  openModel,
  overrides,
  spanFilterHelp,
  wholeNumber,
} from "./options.ts";
import { untilSignal } from "./report-error.ts";

interface GatewayFlags {
  checkpoint?: string;
  port?: number;
  upstream?: string[];
  upstreamKind?: "vllm" | "sglang";
  upstreamModel?: string;
  imageHosts?: string[];
  spanFilter?: string;
}

export function register(command: Command): void {
  command
    .argument(...overrides)
    .addOption(checkpoint())
    .option(
      "--port <number>",
      "the port to listen on; 0 takes a free one; the same as rllm.gateway.port",
      wholeNumber(0, 65_535),
    )
    .option(
      "--upstream <url>",
      "sample on this inference server; model.name is then a folder with the tokenizer; repeat it for several servers of one model; the environment variable VLLM_API_KEY sets their key",
      (url: string, others: string[] = []) => [...others, url],
    )
    .addOption(
      new Option("--upstream-kind <kind>", "the server's software (default: vllm)").choices(["vllm", "sglang"]),
    )
    .option("--upstream-model <name>", "the model's name at the inference server")
    .option(
      "--image-hosts <host...>",
      "fetch images from these hosts if a client sends their address; the same as rllm.gateway.image_hosts",
    )
    .option("--span-filter <file>", spanFilterHelp)
    .addHelpText("after", help)
    .action(gatewayCommand);
}

const help = `
Without --port, the gateway listens on rllm.sdk.proxy.port; its host is
rllm.sdk.proxy.host. An agent's base URL is the address with /v1, or with
/s/NAME/a/0/v1 for a session of its own. POST /v1/traces takes OpenTelemetry's
spans of model calls (OTLP/HTTP in JSON) into the trace store.

Examples:
  hone gateway
  hone gateway --checkpoint runs/latest rllm.sdk.store.path=traces.db
  hone gateway --upstream http://127.0.0.1:8000 \\
    --upstream-model Qwen/Qwen3-0.6B model.name=./qwen3-0.6b`;

/** A model call that takes longer is answered with an error. */
const callTimeoutSeconds = 600;

const warn = (text: string) => process.stderr.write(`${printable(text)}\n`);

async function gatewayCommand(overrides: string[], flags: GatewayFlags): Promise<void> {
  requireUpstream(flags, "--upstream-kind", flags.upstreamKind);
  requireUpstream(flags, "--upstream-model", flags.upstreamModel);
  requireAddresses(flags.upstream);
  const checkpoint = flags.checkpoint === undefined ? undefined : await openCheckpoint(flags.checkpoint);
  const composed = composeSupported(overrides, checkpoint);
  const { config } = composed;
  // Agents must know the port, since Hone does not start them here.
  config.rllm.sdk.proxy.mode = "external";
  if (flags.port !== undefined) config.rllm.gateway.port = flags.port;
  if (flags.imageHosts !== undefined) config.rllm.gateway.image_hosts = flags.imageHosts;
  checkRunGateway(config);
  await requireGatewayPort(config);
  const filterSpans = await loadSpanFilter(flags.spanFilter);
  const { sampler, chat, vision, name, maxLength, close } = await (flags.upstream !== undefined
    ? openUpstream(config, flags)
    : openModel(composed, checkpoint, warn));
  try {
    const { temperature, top_p: topP, top_k: topK, min_p: minP } = config.rllm.rollout.val;
    const { max_prompt_length: maxPromptLength, max_response_length: maxResponseLength } = config.data;
    const gateway = await openRunGateway({
      config,
      folder: undefined,
      chat,
      vision,
      model: name,
      warn,
      alone: {
        callTimeoutSeconds,
        ...(filterSpans === undefined ? {} : { filterSpans }),
        openUnknown: policySessions({
          sampler,
          chat,
          vision,
          defaults: { temperature, topP, topK, minP },
          seed: config.rllm.trainer.seed,
          limits: { maxPromptLength, maxResponseLength, contextWindow: maxLength ?? Number.POSITIVE_INFINITY },
        }),
      },
    });
    const stopped = untilSignal();
    const kept = gateway.store === undefined ? "; calls are not stored (see rllm.sdk.store.path)" : "";
    const origin = maskUrls(gateway.origin);
    process.stdout.write(
      `${name} at ${outColors.bold(`${origin}/v1`)} (OpenAI's clients) and ${origin} (Anthropic's)${kept}. ` +
        `With a session of its own: ${origin}/s/NAME/a/0/v1. Ctrl-C stops it.\n`,
    );
    await stopped;
    await gateway.close();
  } finally {
    await close();
  }
}

function requireUpstream({ upstream }: GatewayFlags, flag: string, value: string | undefined): void {
  if (upstream !== undefined || value === undefined) return;
  throw new UserError(`${flag} ${value} requires --upstream`, { hint: "add --upstream http://127.0.0.1:8000" });
}

function requireAddresses(urls: readonly string[] = []): void {
  for (const url of urls) {
    if (/^https?:$/.test(URL.canParse(url) ? new URL(url).protocol : "")) continue;
    throw new UserError(`--upstream ${url} is not an http address`, { hint: "for example http://127.0.0.1:8000" });
  }
}

async function openUpstream(
  config: Config,
  flags: GatewayFlags,
): Promise<Omit<OpenModel, "maxLength"> & { maxLength: undefined }> {
  const { upstream: urls = [], upstreamKind: kind = "vllm", upstreamModel: model } = flags;
  const { name } = config.model;
  if (!existsSync(name)) {
    throw new UserError(`model.name=${name} is not a folder; --upstream requires a folder with the model's tokenizer`, {
      hint: "name the folder that the inference server serves, e.g. model.name=./qwen3-0.6b",
    });
  }
  const apiKey = serverKey(config);
  const sampler = serverSampler({ url: urls, kind, onNote: warn, model, apiKey });
  const vision = "hone gateway does not send images to inference servers so far";
  return {
    sampler,
    chat: await openChat(name, config, warn),
    vision,
    name: model ?? name,
    maxLength: undefined,
    close: sampler.close,
  };
}
