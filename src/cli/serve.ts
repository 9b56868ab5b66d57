/** `hone serve`: a Tinker-compatible server on this machine's models. */
import { join } from "node:path";
import { setFlagsFromString } from "node:v8";
import type { Engine } from "../backends/engine.ts";
import { openLocalEngine } from "../backends/local/engine.ts";
import type { LocalEngineOptions } from "../backends/local/options.ts";
import { outColors } from "../colors.ts";
import { UserError } from "../errors.ts";
import { namesOf, readServedModel } from "../server/base-models.ts";
import { withFlags } from "../server/flag-names.ts";
import { startServer } from "../server/start-server.ts";
import { showStatus } from "./show-status.ts";

interface ServeOptions {
  model: string[];
  host: string;
  port: string;
  apiKey?: string;
  state: string;
  device: string;
  dtype: string;
  threads: string;
  maxSampleRows: string;
  microBatchTokens: string;
  sessionMinutes: string;
  gapSeconds: string;
  maxIdleModels: string;
  gradientCheckpointing?: boolean;
}

export async function serveCommand(options: ServeOptions): Promise<void> {
  // Left alone, V8 lets its heap grow to several times what a server holds before it looks for what can go.
  setFlagsFromString("--heap-growing-percent=40");
  const apiKey = options.apiKey ?? process.env.HONE_API_KEY ?? null;
  if (apiKey !== null && !/^tml-\S+$/.test(apiKey)) {
    throw new UserError("the API key must begin with tml-: Tinker's clients send no other", {
      hint: "For example --api-key tml-$(openssl rand -hex 16).",
    });
  }
  const { dtype } = options;
  if (dtype !== "auto" && dtype !== "float32" && dtype !== "bfloat16") {
    throw new UserError(`--dtype ${dtype} is none of auto, float32 and bfloat16`);
  }
  const served = options.model.map(readServedModel);
  const status = showStatus();
  const engines: { names: string[]; engine: Engine; reopen: () => Promise<Engine> }[] = [];
  const closeAll = () => Promise.all(engines.map(({ engine }) => engine.close()));
  try {
    for (const model of served) {
      const engineOptions: LocalEngineOptions = {
        model: model.source,
        device: options.device,
        dtype,
        threads: whole("--threads", options.threads, 0),
        maxSampleRows: whole("--max-sample-rows", options.maxSampleRows, 1),
        microBatchTokens: whole("--micro-batch-tokens", options.microBatchTokens, 0),
        gradientCheckpointing: options.gradientCheckpointing ?? false,
        logFile: join(options.state, "worker.log"),
      };
      const entry = {
        names: namesOf(model),
        engine: await openLocalEngine({ ...engineOptions, onStatus: status.say }),
        async reopen() {
          entry.engine = await openLocalEngine(engineOptions);
          return entry.engine;
        },
      };
      engines.push(entry);
    }
    const server = await startServer({
      engines,
      host: options.host,
      port: whole("--port", options.port, 0, 65_535),
      apiKey,
      stateFolder: options.state,
      sessionMinutes: whole("--session-minutes", options.sessionMinutes, 1),
      maxIdleModels: whole("--max-idle-models", options.maxIdleModels, 0),
      gapSeconds: whole("--gap-seconds", options.gapSeconds, 1),
      futures: { phrase: withFlags },
      write: (line) => process.stdout.write(line),
    });
    status.end();
    const names = engines.map(({ names: [name], engine: { model } }) => `${name} (${model.dtype}, ${model.device})`);
    process.stdout.write(`${outColors.bold(`serving ${names.join(", ")} at ${server.url}`)}\n`);
    process.stdout.write(
      outColors.dim(`state in ${options.state}; metrics at ${server.url}/metrics; Ctrl-C ends it\n`),
    );
    process.stdout.write(
      outColors.dim(
        `clients: TINKER_BASE_URL=${server.url} TINKER_API_KEY=${apiKey === null ? "tml-local" : "<the key>"}\n`,
      ),
    );
    await untilSignal();
    process.stdout.write("ending; what training clients did not save is lost\n");
    await server.close();
  } finally {
    status.end();
    await closeAll();
  }
}

function whole(flag: string, text: string, least: number, most = Number.MAX_SAFE_INTEGER): number {
  const value = Number(text);
  if (text !== "" && Number.isInteger(value) && value >= least && value <= most) return value;
  throw new UserError(`${flag} ${text} is no whole number of at least ${least}`);
}

function untilSignal(): Promise<void> {
  return new Promise((resolve) => {
    for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => resolve());
  });
}
