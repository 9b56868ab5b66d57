/** Which commands `hone` has and how they are called. Each command's work is loaded when it runs. */
import { readFileSync } from "node:fs";
import { Command } from "commander";

const version = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")).version as string;

const overridesHelp = `
Overrides are key=value pairs of the configuration; \`hone config\` lists every key with its meaning.
  rllm.trainer.total_batches=20  training.learning_rate=1e-3  rllm.trainer.logger=[console,tensorboard]`;

/** @param flagsHelp what `hone lightrft --help` says of its flags; loaded where it is asked for */
export function program(flagsHelp: string): Command {
  const hone = new Command("hone")
    .description("Reinforcement-learning post-training of language models and agents, from TypeScript.")
    .version(version)
    .showHelpAfterError("(add --help for usage)")
    .configureHelp({ sortSubcommands: false })
    .addHelpText(
      "after",
      `
Examples:
  hone train ./train.ts                 train a model on your own tasks; \`hone <command> --help\` tells the rest
  hone train ./train.ts --resume runs/latest
  hone view                             look into the newest run
  hone doctor                           what is wrong here, and the command that mends it`,
    );

  hone
    .command("train")
    .description("Train a model with the experiment of a TypeScript file.")
    .argument("<script>", "a file that exports an experiment by default, or calls train() itself")
    .argument("[overrides...]", "key=value pairs of the configuration")
    .option("-c, --config <file...>", "YAML files, later ones win; overrides win over them")
    .option("--resume <folder>", "continue the run in this folder, e.g. runs/latest")
    .option("--checkpoint <folder>", "start from the weights of this checkpoint")
    .option("--dry-run", "print the resolved configuration and the arithmetic of the run, then stop")
    .option("-m, --multirun", "one run for each combination of the overrides' values: a=1,2 b=range(1,4)")
    .option("--cfg <what>", "job: print the configuration as YAML, references unresolved, and stop")
    .option("--resolve", "with --cfg: print what references stand for")
    .option("--config-path <folder>", "look for named configurations here first (-cp); from the script's folder")
    .option("--config-name <name>", "the configuration to begin with instead of unified (-cn)")
    .option("--config-dir <folder>", "look for named configurations here too (-cd)")
    .addHelpText(
      "after",
      `${overridesHelp}
  rllm/backend=verl            picks an option of a config group
  +key=value  ++key=value      adds a key; adds or changes it
  ~key                         removes a key
  'key=\${other.key}'           refers to another key (quoted for the shell)

Examples:
  hone train ./train.ts
  hone train ./train.ts model.name=./my-model training.learning_rate=5e-5
  hone train ./train.ts --config gpu.yaml rllm.rollout.n=16
  hone train ./train.ts --resume runs/latest
  hone train ./train.ts rllm/backend=verl --cfg job
  hone train ./train.ts -m training.learning_rate=1e-4,1e-5 rllm.rollout.n=4,8`,
    )
    .action(async (script: string, overrides: string[], options) => {
      await (await import("./train.ts")).trainCommand(script, overrides, options);
    });

  hone
    .command("eval")
    .description("Measure models and checkpoints on an experiment's validation tasks, and compare them.")
    .argument("<script>", "the experiment's TypeScript file")
    .argument("[overrides...]", "key=value pairs of the configuration")
    .option("-c, --config <file...>", "YAML files")
    .option(
      "--checkpoint <folder>",
      "a run folder, a checkpoint in it, or RUN/best; give it again to compare with the first",
      (path: string, others: string[] = []) => [...others, path],
    )
    .option("--base", "measure the base model first; alone without --checkpoint")
    .option("-o, --output <folder>", "where the results go; default: runs/eval-{experiment}-{date}")
    .option("--json", "print the summary as JSON; progress goes to standard error")
    .addHelpText(
      "after",
      `
The results are summary.json with means, standard errors and paired comparisons, and for each model tasks.jsonl with
every rollout's row, reply, reward and reason, in a folder that hone view reads. A checkpoint is measured with the
settings of its run, the base model with those of the first; key=value pairs given here win.
Exit codes: 0 measured, 1 the run failed or a model has no known reward, 2 a mistake in the call, 130 stopped.

Examples:
  hone eval ./train.ts
  hone eval ./train.ts --checkpoint runs/latest --base
  hone eval ./train.ts --checkpoint runs/a --checkpoint runs/b
  hone eval ./train.ts --checkpoint runs/latest/checkpoints/step-000010 rllm.rollout.n_val=4 --json`,
    )
    .action(async (script: string, overrides: string[], options) => {
      await (await import("./train.ts")).evalCommand(script, overrides, options);
    });

  hone
    .command("lightrft")
    .description("Train as a LightRFT command line says.")
    .argument("[words...]", "the experiment's script, LightRFT's flags, and key=value pairs, which win over the flags")
    .allowUnknownOption()
    .option("--strict", "what would be warned of is a mistake")
    .option("--dry-run", "print the configuration that the flags make, then stop")
    .addHelpText(
      "after",
      `
${flagsHelp}

Examples:
  hone lightrft ./train.ts --pretrain Qwen/Qwen2.5-0.5B-Instruct --train_batch_size 64 --rollout_batch_size 16
  hone lightrft ./train.ts --pretrain ./my-model --train_batch_size 128 --rollout_batch_size 16 \\
    --n_samples_per_prompt 8 --advantage_estimator gspo --save_path runs/gspo local.sampler.type=own
  hone lightrft --pretrain ./my-model --train_batch_size 64 --rollout_batch_size 16 --dry-run`,
    )
    .action(async (words: string[], options) => {
      await (await import("./lightrft.ts")).lightRftCommand(words, options);
    });

  hone
    .command("view")
    .description("Look into a run: its rewards, its episodes turn by turn, every token by what it counted for.")
    .argument("[run]", "a run folder", "runs/latest")
    .option("--step <number>", "print the episodes of this step instead of walking through the run")
    .option("--validation", "those of its validation")
    .option("--episode <id>", "print this episode, of --step or of the last one")
    .option("--color <by>", "advantage, logprob or mask", "advantage")
    .addHelpText(
      "after",
      `
In a terminal: arrows and enter walk from steps to episodes to turns, c changes the colours, q ends.

Examples:
  hone view
  hone view runs/latest --step 10
  hone view runs/latest --step 10 --episode larger-number/3:0 --color logprob`,
    )
    .action(async (run: string, options) => {
      await (await import("./view.ts")).viewCommand(run, options);
    });

  hone
    .command("chat")
    .description("Talk to a model or a checkpoint.")
    .argument("[overrides...]", "key=value pairs of the configuration")
    .option("--checkpoint <folder>", "a run folder, a checkpoint in it, or RUN/best")
    .option("--message <text>", "answer this one message and stop")
    .option("--system <text>", "a system message")
    .addHelpText(
      "after",
      `
Examples:
  hone chat
  hone chat --checkpoint runs/latest
  hone chat model.name=./my-model --message "Which number is larger, 12 or 31?"

A reply has at most 2,048 tokens, whatever the run's own limit is; rllm.rollout.val.max_tokens=64 changes that.`,
    )
    .action(async (overrides: string[], options) => {
      await (await import("./chat.ts")).chatCommand(overrides, options);
    });

  hone
    .command("serve")
    .description("Serve models to Tinker's clients: train and sample from any process, with the official SDK.")
    .option(
      "--model <name=source...>",
      "what to serve, as name=source or just source: an alias, a Hugging Face directory, a .gguf file or a hub id",
      ["smollm2-135m-instruct"],
    )
    .option("--host <address>", "where to listen; other machines can only reach it with an --api-key", "127.0.0.1")
    .option("--port <number>", "0 takes any that is free", "8000")
    .option("--api-key <key>", "tml-...: what clients must send (or the environment variable HONE_API_KEY)")
    .option(
      "--state <folder>",
      "sessions and checkpoints; a server that is started again goes on from here",
      ".hone/serve",
    )
    .option("--device <name>", "auto, cpu, cuda, cuda:N or mps", "auto")
    .option("--dtype <name>", "auto, float32 or bfloat16", "auto")
    .option("--threads <number>", "of the tensor library; 0 is one per core", "0")
    .option("--max-sample-rows <number>", "sequences sampled at the same time, on each model", "256")
    .option("--micro-batch-tokens <number>", "packed tokens per forward-backward; 0 picks by memory", "0")
    .option("--gradient-checkpointing", "compute activations again in the backward pass: less memory, more time")
    .option(
      "--max-idle-models <number>",
      "models kept in memory that no request comes for; others wait on disk until they are used again",
      "8",
    )
    .option("--session-minutes <number>", "close the models of a client that was not heard of for so long", "60")
    .option(
      "--gap-seconds <number>",
      "how long the server waits for a missing training request before it skips it",
      "30",
    )
    .addHelpText(
      "after",
      `
Examples:
  hone serve
  hone serve --model ./my-model --port 8001
  hone serve --model Qwen/Qwen3-0.6B=./qwen3-0.6b --model small=smollm2-135m-instruct
  hone serve --host 0.0.0.0 --api-key tml-0123456789

A client, in Python:
  pip install tinker
  TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local python my_training.py`,
    )
    .action(async (options) => {
      await (await import("./serve.ts")).serveCommand(options);
    });

  hone
    .command("export")
    .description("Write a checkpoint's weights as files that other programs load.")
    .argument("<checkpoint>", "a run folder, a checkpoint in it, or RUN/best")
    .argument("<folder>", "where to write; must not exist")
    .option("--as <form>", "adapter (PEFT) or merged (a Hugging Face model directory)", "adapter")
    .addHelpText(
      "after",
      `
Examples:
  hone export runs/latest my-adapter
  hone export runs/latest/checkpoints/step-000010 my-model --as merged`,
    )
    .action(async (checkpoint: string, folder: string, options) => {
      await (await import("./export.ts")).exportCommand(checkpoint, folder, options);
    });

  hone
    .command("doctor")
    .description("Check versions, devices and memory, push one batch through everything, say what is wrong.")
    .argument("[overrides...]", "key=value pairs of the configuration, e.g. model.name=./my-model")
    .addHelpText("after", "\nExamples:\n  hone doctor\n  hone doctor model.name=./my-model local.dtype=float32")
    .action(async (overrides: string[]) => {
      await (await import("./doctor.ts")).doctorCommand(overrides);
    });

  hone
    .command("gateway")
    .description("Answer OpenAI's and Anthropic's clients with a model, and keep every call with its tokens.")
    .argument("[overrides...]", "key=value pairs of the configuration")
    .option("--checkpoint <folder>", "a run folder, a checkpoint in it, or RUN/best")
    .option("--upstream <url>", "sample on this inference server; model.name is then a folder with the tokenizer")
    .option("--upstream-kind <kind>", "vllm or sglang; default vllm")
    .option("--upstream-model <name>", "the model's name at the inference server")
    .addHelpText(
      "after",
      `
The address is rllm.sdk.proxy.host and port; agents put /s/NAME/a/0/v1 behind it, each under a NAME of its own.

Examples:
  hone gateway
  hone gateway --checkpoint runs/latest rllm.sdk.store.path=traces.db
  hone gateway --upstream http://127.0.0.1:8000 --upstream-model Qwen/Qwen3-0.6B model.name=./qwen3-0.6b`,
    )
    .action(async (overrides: string[], options) => {
      await (await import("./gateway.ts")).gatewayCommand(overrides, options);
    });

  const traces = hone
    .command("traces")
    .description("Show and export what agents asked of the model through the gateway.");
  const traceCommand = (name: string, description: string) =>
    traces
      .command(name)
      .description(description)
      .option("--store <file>", "the trace database; default ~/.rllm/traces.db");
  const filtered = (command: Command) =>
    command
      .option("--project <name>", "a project, or one run of it as project/run")
      .option("--session <name>", "one session")
      .option("--since <time>", "a date, or how long ago: 30m, 2h, 7d")
      .option("--min-reward <number>", "sessions whose reward is known and at least this")
      .option("--limit <count>", "the newest so many sessions");
  filtered(
    traceCommand("list", "List sessions with their calls and rewards; the newest 50 unless --limit says otherwise."),
  )
    .option("--json", "one JSON object a line")
    .action(async (options) => (await import("./traces.ts")).listCommand(options));
  traceCommand("show", "Show the conversations of a session, or one call.")
    .argument("<name>", "a session, SESSION#ATTEMPT, or the id of a call")
    .option("--json", "one JSON object a line, with tokens and log-probabilities")
    .action(async (name: string, options) => (await import("./traces.ts")).showCommand(name, options));
  filtered(traceCommand("export", "Write traces as JSON lines: everything, or what can be trained on."))
    .option("--as <form>", "jsonl (calls with tokens), sft (conversations) or rows (tasks for a dataset)", "jsonl")
    .option("-o, --output <file>", "where to write; default: the terminal")
    .addHelpText(
      "after",
      `
Examples:
  hone traces export --as sft --min-reward 1 -o good.jsonl
  hone traces export --as rows --since 7d --project support -o tasks.jsonl`,
    )
    .action(async (options) => (await import("./traces.ts")).exportCommand(options));

  const config = hone
    .command("config")
    .description("Print the composed configuration, or explain its keys.")
    .argument("[overrides...]", "key=value pairs of the configuration; rllm/backend=tinker chooses a backend")
    .option("-c, --config <file...>", "YAML files, later ones win; overrides win over them")
    .option("--format <form>", "yaml or json", "yaml")
    .option("--explain [key]", "each value with its type, meaning, origin and effect on this backend")
    .option("--schema", "the same as hone config schema")
    .addHelpText(
      "after",
      `
The configuration goes to standard output. What is worth a warning goes to standard error, a line each:
  warning[deprecated_native]  a backend's older name of a key was set
  warning[conflict]           two names of one key were set to different values; the line says which wins
  warning[coerced]            a value was changed because of another one
  warning[unsupported]        this backend does not support a setting; a run would stop here

Examples:
  hone config
  hone config training.learning_rate=1e-4 --format json
  hone config --explain training.learning_rate
  hone config rllm/backend=verl rllm.algorithm.kl_beta=0.01 --explain actor_rollout_ref.actor.use_kl_loss
  hone config diff runs/latest "rllm/backend=tinker"
  hone config schema > hone.schema.json
  hone config lightrft --pretrain ./my-model --train_batch_size 64 --rollout_batch_size 16 > train.yaml`,
    )
    .action(async (overrides: string[], options) => {
      await (await import("./config.ts")).configCommand(overrides, options);
    });

  config
    .command("diff")
    .description("Compare two configurations: the keys that differ, with both values and where they come from.")
    .argument("<left>", 'a YAML file, a run folder, or overrides in one word: "rllm/backend=tinker data.seed=1"')
    .argument("<right>", "the same")
    .option("--format <form>", "yaml or json", "yaml")
    .addHelpText(
      "after",
      `
Examples:
  hone config diff cpu.yaml gpu.yaml
  hone config diff runs/larger-number-1 runs/latest
  hone config diff rllm/backend=local rllm/backend=tinker`,
    )
    .action(async (left: string, right: string, _, command: Command) => {
      await (await import("./config.ts")).diffCommand(left, right, command.optsWithGlobals());
    });

  config
    .command("schema")
    .description("Print the JSON Schema from which editors complete and check YAML files.")
    .addHelpText(
      "after",
      `
Examples:
  hone config schema > hone.schema.json

Then begin a YAML file with:
  # yaml-language-server: $schema=./hone.schema.json`,
    )
    .action(async () => {
      await (await import("./config.ts")).schemaCommand();
    });

  config
    .command("lightrft")
    .description("Print LightRFT's flags as a configuration to keep.")
    .argument("[flags...]", "as hone lightrft takes them, and key=value pairs")
    .option("--format <form>", "yaml or json", "yaml")
    .option("--strict", "make warnings of the rules mistakes")
    .allowUnknownOption()
    .addHelpText(
      "after",
      `
Examples:
  hone config lightrft --pretrain ./my-model --train_batch_size 64 --rollout_batch_size 16 > train.yaml`,
    )
    .action(async (words: string[], _, command: Command) => {
      await (await import("./config.ts")).lightRftConfigCommand(words, command.optsWithGlobals());
    });

  return hone;
}
