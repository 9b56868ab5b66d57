/** A program for runs.e2e.ts: three steps on Harbor tasks. Arguments: the tasks, the run folder, and "resume" to continue it. */
import { characterChat, tabularEngine } from "../testing/index.ts";
import { train } from "../trainer/train.ts";
import { harbor, harborTasks } from "./index.ts";
import { bashAgent } from "./make-tasks.fixture.ts";

const [tasks = "", folder = "", resumes] = process.argv.slice(2);

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
      network: "host",
      agentArgs: { pause: 4 },
    }),
    config: {
      model: { lora_rank: 0 },
      rllm: {
        rollout: { n: 2 },
        trainer: { total_batches: 3, save_freq: 1, test_freq: 0, logger: ["console"], plot_every: 0, run_dir: folder },
      },
      training: { learning_rate: 0.3 },
      data: { train_batch_size: 2, max_response_length: 4 },
    },
  },
  { engine: { engine, chat: engine.chat }, ...(resumes === undefined ? {} : { resume: folder }) },
);
process.exitCode = exitCode;
