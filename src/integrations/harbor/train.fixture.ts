/**
 * A program for runs.e2e.ts: three steps on Harbor tasks. Arguments: the tasks, the run folder, "resume" to continue it, and
 * the gateway's port for containers with a network of their own.
 */
import { characterChat, tabularEngine } from "../../testing/index.ts";
import { train } from "../../trainer/train.ts";
import { harbor, harborTasks } from "./index.ts";
import { bashAgent } from "./make-tasks.fixture.ts";
import { hostName } from "./trial.ts";

const [tasks = "", folder = "", ...options] = process.argv.slice(2);
const port = options.map(Number).find(Number.isInteger);
const reachable =
  port === undefined
    ? {}
    : {
        gateway: { host: "0.0.0.0", port, tunnel: `http://${hostName}:${port}` },
        sdk: { proxy: { admin_token: "a secret of this run" } },
      };

/** Each command is one token, and ends the reply. The model learns which of the two a task pays for. */
const commands = ["echo done > /app/answer.txt", "echo no > /app/answer.txt"];
const { eosId, encode } = characterChat(["\uFFFD", ...commands]);
const [first = 0] = encode(commands[0] ?? "");
const engine = tabularEngine({
  alphabet: ["\uFFFD", ...commands],
  logit: (next, previous) => ((previous >= first ? next === eosId : next >= first) ? 0 : -20),
});

const { exitCode } = await train(
  {
    train: harborTasks(tasks),
    workflow: harbor({
      agent: bashAgent,
      environment: "podman",
      network: port === undefined ? "host" : "bridge",
      agentArgs: { pause: 4 },
    }),
    config: {
      model: { lora_rank: 0 },
      rllm: {
        ...reachable,
        rollout: { n: 2 },
        trainer: { total_batches: 3, save_freq: 1, test_freq: 0, logger: ["console"], plot_every: 0, run_dir: folder },
      },
      training: { learning_rate: 0.3 },
      data: { train_batch_size: 2, max_response_length: 4 },
    },
  },
  { engine: { engine, chat: engine.chat }, ...(options.includes("resume") ? { resume: folder } : {}) },
);
process.exitCode = exitCode;
