/** `hone eval --harbor`: pi, as users install it, on a data set's name, with a base model and a checkpoint. Only in nightly. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Command } from "commander";
import { expect, test } from "vitest";
import type { Engine } from "../../backends/engine.ts";
import { fromRows } from "../../data/dataset.ts";
import { testEngine } from "../../integrations/containers/host-image.fixture.ts";
import { debianImage, installAgents } from "../../integrations/harbor/agents.fixture.ts";
import { makeTask } from "../../integrations/harbor/make-tasks.fixture.ts";
import { nightly } from "../../nightly.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { characterChat, tabularEngine } from "../../testing/index.ts";
import type { Evaluation } from "../../trainer/evaluate.ts";
import { type Launch, setLaunch } from "../../trainer/experiment.ts";
import { train } from "../../trainer/train.ts";
import { register } from "./eval.ts";

const container = nightly ? await testEngine() : "only in nightly";
const made = typeof container === "string" ? { problem: container } : await debianImage(container);
if (nightly && "problem" in made) console.warn(`NOT RUN: hone eval in containers (${made.problem})`);

const root = temporaryFolder("eval-harbor");
const bash = (word: string) =>
  `<tool_call>{"name":"bash","arguments":{"command":"echo ${word} > /app/answer.txt"}}</tool_call>`;
const [right, wrong, last] = [bash("done"), bash("no"), "It is written."];

const alphabet = ["\uFFFD", right, wrong, last];
const { encode, eosId } = characterChat(alphabet);
const id = (piece: string) => encode(piece)[0];
const ran = id("\uFFFD")!;

/** Each reply is one token. The base model prefers the wrong command; after a command, it says the last sentence. */
function openModel() {
  const { chat, createPolicy, ...engine } = tabularEngine({
    alphabet,
    logit(next, previous) {
      if (previous === id("<|assistant|>")) return next === id(wrong) ? 1 : next === id(right) ? 0 : -30;
      return next === (previous === ran ? id(last) : eosId) ? 0 : -30;
    },
  });
  const policyOf: Engine["createPolicy"] = async (spec) => {
    const policy = await createPolicy(spec);
    const { sampler } = policy;
    // The model knows one token back, so a command in the prompt is moved there.
    const sample: typeof sampler.sample = (requests, options) =>
      sampler.sample(
        requests.map((request) => {
          const acted = request.prompt.some((token) => token === id(right) || token === id(wrong));
          return acted ? { ...request, prompt: Int32Array.of(...request.prompt, ran) } : request;
        }),
        options,
      );
    return { ...policy, sampler: Object.create(sampler, { sample: { value: sample } }) };
  };
  return { engine: { ...engine, createPolicy: policyOf }, chat };
}

const checkpoint = join(root, "trained");

/** The checkpoint's run has a workflow of its own, without containers. */
async function trainCheckpoint(): Promise<void> {
  const { exitCode } = await train(
    {
      train: fromRows("words", [{ word: "done" }]),
      workflow: async (_, { model }) => {
        const { text } = await model.chat([{ role: "user", content: "Write." }]);
        return Number(text.includes("echo done"));
      },
      config: {
        model: { lora_rank: 0 },
        rllm: {
          rollout: { n: 16 },
          trainer: { total_batches: 4, logger: [], save_freq: 4, plot_every: 0, run_dir: checkpoint },
        },
        training: { learning_rate: 2 },
        data: { train_batch_size: 1, max_response_length: 4, max_prompt_length: 100_000 },
      },
    },
    { engine: openModel() },
  );
  expect(exitCode).toBe(0);
}

test.skipIf("problem" in made)(
  "pi on a data set's name: a trained checkpoint against the base model, task by task",
  async () => {
    if ("problem" in made) return;
    await trainCheckpoint();
    const registry = join(root, "registry.json");
    const tasks = ["done", "ready"].map((word) => ({ name: word, path: makeTask(root, made.image, word) }));
    writeFileSync(registry, JSON.stringify([{ name: "words", version: "1.0", description: "", tasks }]));
    const [output, { folder, path }] = [join(root, "results"), installAgents()];
    const harbor = { environment_type: "podman", network: "host", program_folder: folder, program_path: `[${path}]` };
    const settings = Object.entries(harbor).map(([key, value]) => `rllm.remote_runtime.harbor.${key}=${value}`);
    // The engine that is open already takes the place of the model of the settings.
    setLaunch({ engine: openModel() } as Launch);
    const command = new Command();
    register(command);
    const flags = ["--registry", registry, "--agent", "pi", "--base", "--checkpoint", checkpoint, "-o", output];
    const sampling = ["rllm.rollout.val.temperature=0", "training.max_length=200000"];
    await command.parseAsync(["--harbor", "words@1.0", ...flags, ...settings, ...sampling], { from: "user" });

    const { models, comparisons } = JSON.parse(readFileSync(join(output, "summary.json"), "utf8")) as Evaluation;
    expect(models.map(({ tasks, rollouts, reward, unknown }) => [tasks, rollouts, reward?.mean, unknown])).toEqual([
      [2, 2, 0, 0],
      [2, 2, 0.5, 0],
    ]);
    expect(comparisons).toMatchObject([{ against: "base", tasks: 2, wins: 1, losses: 0, ties: 1 }]);
    const trained = join(output, models[1]!.name);
    const rows = readFileSync(join(trained, "tasks.jsonl"), "utf8").trim().split("\n");
    expect(rows.map((row) => JSON.parse(row))).toMatchObject([
      { task: "write-done", reward: 1, calls: 2, reason: "found: done" },
      { task: "write-ready", reward: 0, calls: 2, reason: "found: done" },
    ]);
  },
  900_000,
);
