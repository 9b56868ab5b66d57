import { join } from "node:path";
import type { Workflow } from "../agents/types.ts";
import { singleTurn } from "../agents/workflows.ts";
import type { Engine } from "../backends/engine.ts";
import { RunError } from "../base/errors.ts";
import type { ConfigInput } from "../config/schema.ts";
import { generated } from "../data/dataset.ts";
import { readLines } from "../json-lines.fixture.ts";
import { memory, temporaryFolder } from "../temporary-folder.fixture.ts";
import { tabularEngine } from "../testing/index.ts";
import type { Experiment } from "./experiment.ts";

/** Folders for runs; they do not exist yet. */
export function temporaryFolders(name: string) {
  const root = temporaryFolder(name, memory);
  let folders = 0;
  return { root, newFolder: () => join(root, `run-${++folders}`) };
}

export interface ToyRow {
  index: number;
}

const rows = (name: string, size: number) => generated(name, size, (index) => ({ index }));

/** A model that knows three letters learns to answer with "a". Plots are off, because drawing them takes longer than the run. */
export function toy(
  config: ConfigInput = {},
  reward = (text: string) => [...text].filter((letter) => letter === "a").length / 4,
  workflow: Workflow<ToyRow> = singleTurn({ prompt: () => "b", reward: (_row, reply) => reward(reply.text) }),
) {
  const experiment: Experiment<ToyRow> = {
    train: rows("toy", 64),
    validation: rows("toy-validation", 8),
    workflow,
    config: {
      ...config,
      model: { lora_rank: 0 },
      rllm: {
        ...config.rllm,
        rollout: { n: 4, ...config.rllm?.rollout },
        trainer: { total_batches: 6, logger: [], save_freq: 2, test_freq: 3, plot_every: 0, ...config.rllm?.trainer },
      },
      training: { learning_rate: 0.3, ...config.training },
      data: { train_batch_size: 4, max_response_length: 4, ...config.data },
    },
  };
  return experiment;
}

export function openToy(): { engine: Engine; chat: ReturnType<typeof tabularEngine>["chat"] } {
  const engine = tabularEngine({ alphabet: "abc" });
  return { engine, chat: engine.chat };
}

export interface Line {
  step: number;
  kind?: string;
  [name: string]: unknown;
}

/** metrics.jsonl without times and memory. */
export function metricLines(folder: string): Line[] {
  return readLines<Line>(join(folder, "metrics.jsonl")).map((line) => {
    const entries = Object.entries(line);
    return Object.fromEntries(
      entries.filter(([name]) => !/^(time|perf|memory|engine|async\/trainer_idle)/.test(name)),
    ) as Line;
  });
}

/** The toy engine, which counts operations. The operation `killedAt` and all later ones fail, as after a kill. */
export function countOperations(killedAt = Number.POSITIVE_INFINITY) {
  const { engine, chat } = openToy();
  let count = 0;
  const counted = <Part extends object>(part: Part): Part =>
    new Proxy(part, {
      get(target, name) {
        const value = Reflect.get(target, name);
        if (typeof value !== "function") return value;
        return (...args: unknown[]) => {
          if (++count >= killedAt) throw new RunError("killed");
          return Reflect.apply(value, target, args);
        };
      },
    });
  const dying: Engine = {
    ...engine,
    async createPolicy(spec) {
      const { sampler, learner } = await engine.createPolicy(spec);
      return { sampler: counted(sampler), learner: counted(learner) };
    },
  };
  return { toy: { engine: dying, chat }, count: () => count };
}
