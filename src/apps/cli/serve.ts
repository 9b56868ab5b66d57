/** `hone serve`: a Tinker-compatible server on this machine's models. */
import { join } from "node:path";
import { setFlagsFromString } from "node:v8";
import { type Command, Option } from "commander";
import type { Engine } from "../../backends/engine.ts";
import { openLocalEngine } from "../../backends/local/engine.ts";
import type { LocalEngineOptions } from "../../backends/local/options.ts";
import { UserError } from "../../base/errors.ts";
import { memoryStore } from "../../images/images.ts";
import { addressRules } from "../../images/load-image.ts";
import { outColors } from "../../tracking/console-lines.ts";
import { namesOf, readServedModel } from "../server/base-models.ts";
import { features } from "../server/features.ts";
import { withFlags } from "../server/http.ts";
import { requireKey, startServer } from "../server/server.ts";
import { wholeNumber } from "./options.ts";
import { showStatus, untilSignal } from "./report-error.ts";

interface ServeFlags {
  model: string[];
  host: string;
  port: number;
  apiKey?: string;
  state: string;
  device: string;
  dtype: "auto" | "float32" | "bfloat16";
  threads: number;
  maxSampleRows: number;
  microBatchTokens: number;
  gradientCheckpointing?: boolean;
  maxIdleModels: number;
  sessionMinutes: number;
  gapSeconds: number;
  imageHosts: string[];
}

export function register(command: Command): void {
  command
    .option(
      "--model <name=source...>",
      "models to serve, as name=source or source: an alias, a Hugging Face directory, a .gguf file or a hub id",
      ["smollm2-135m-instruct"],
    )
    .option("--host <address>", "the address to listen on; other machines need an --api-key", "127.0.0.1")
    .option("--port <number>", "the port to listen on; 0 takes a free one", wholeNumber(0, 65_535), 8000)
    .addOption(new Option("--api-key <key>", "the key that clients must send, tml-...").env("HONE_API_KEY"))
    .option("--state <folder>", "where sessions and checkpoints are stored and continued from", ".hone/serve")
    .option("--device <name>", "auto, cpu, cuda, cuda:N or mps", "auto")
    .addOption(new Option("--dtype <name>", "data type").choices(["auto", "float32", "bfloat16"]).default("auto"))
    .option("--threads <number>", "threads of the tensor library; 0 is one per core", wholeNumber(0), 0)
    .option("--max-sample-rows <number>", "sequences sampled at the same time on each model", wholeNumber(1), 256)
    .option("--micro-batch-tokens <number>", "tokens per forward-backward; 0 chooses by memory", wholeNumber(0), 0)
    .option("--gradient-checkpointing", "recompute activations in the backward pass: less memory, more time")
    .option("--max-idle-models <number>", "idle models to keep in memory; others wait on disk", wholeNumber(0), 8)
    .option(
      "--session-minutes <number>",
      "close the models of a client that sends no request for this long",
      wholeNumber(1),
      60,
    )
    .option("--gap-seconds <number>", "wait this long for a missing training request, then skip it", wholeNumber(1), 30)
    .option(
      "--image-hosts <host...>",
      "fetch images from these hosts if a client sends their address: names, *.example.com, *, and IP addresses or networks that are not public; default: none",
      [],
    )
    .addHelpText("after", help)
    .allowExcessArguments()
    .action((flags: ServeFlags) => {
      const [first] = command.args;
      if (first === undefined) return serveCommand(flags);
      throw new UserError(`hone serve takes options only, not ${JSON.stringify(first)}`, {
        hint: `a model is named by --model ${command.args.join(" ")}`,
      });
    });
}

const help = `
Examples:
  hone serve
  hone serve --model ./my-model --port 8001
  hone serve --model Qwen/Qwen3-0.6B=./qwen3-0.6b \\
    --model small=smollm2-135m-instruct
  hone serve --host 0.0.0.0 --api-key tml-0123456789

A client in Python:
  pip install tinker
  TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local \\
    python my_training.py`;

async function serveCommand(flags: ServeFlags): Promise<void> {
  // By default V8 lets its heap grow to several times the live data before it collects garbage.
  setFlagsFromString("--heap-growing-percent=40");
  const { apiKey = null } = flags;
  if (apiKey !== null && !/^tml-\S+$/.test(apiKey)) {
    throw new UserError("the API key must begin with tml-, because Tinker's clients send only such keys", {
      hint: "for example --api-key tml-$(openssl rand -hex 16)",
    });
  }
  requireKey({ host: flags.host, apiKey });
  const imageHosts = addressRules(flags.imageHosts);
  const served = flags.model.map(readServedModel);
  const status = showStatus();
  const engines: { names: string[]; engine: Engine; reopen: () => Promise<Engine> }[] = [];
  const closeAll = () => Promise.all(engines.map(({ engine }) => engine.close()));
  try {
    for (const model of served) {
      const engineOptions: LocalEngineOptions = {
        model: model.source,
        device: flags.device,
        dtype: flags.dtype,
        threads: flags.threads,
        maxSampleRows: flags.maxSampleRows,
        microBatchTokens: flags.microBatchTokens,
        gradientCheckpointing: flags.gradientCheckpointing ?? false,
        logFile: join(flags.state, "worker.log"),
        // An engine that is opened again finds the images of waiting requests.
        media: memoryStore(),
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
      features,
      host: flags.host,
      port: flags.port,
      apiKey,
      stateFolder: flags.state,
      sessionMinutes: flags.sessionMinutes,
      maxIdleModels: flags.maxIdleModels,
      gapSeconds: flags.gapSeconds,
      imageHosts,
      futures: { phrase: withFlags },
      write: (line) => process.stdout.write(line),
    });
    status.end();
    const names = engines.map(({ names: [name], engine: { model } }) => `${name} (${model.dtype}, ${model.device})`);
    process.stdout.write(`${outColors.bold(`serving ${names.join(", ")} at ${server.url}`)}\n`);
    process.stdout.write(
      outColors.dim(`state in ${flags.state}; metrics at ${server.url}/metrics; Ctrl-C stops the server\n`),
    );
    process.stdout.write(
      outColors.dim(
        `clients: TINKER_BASE_URL=${server.url} TINKER_API_KEY=${apiKey === null ? "tml-local" : "<the key>"}\n`,
      ),
    );
    await untilSignal();
    process.stdout.write("stopping; training state that clients did not save is lost\n");
    await server.close();
  } finally {
    status.end();
    await closeAll();
  }
}
