/** Writes a run folder without a run: episodes with text of every kind, metrics, and a journal. */
import { appendFileSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { StoredImage } from "../../images/images.ts";
import { toJson } from "../../tracking/json-lines.ts";

export interface GeneratedRun {
  steps: number;
  /** Tasks of a step, and rollouts of each. */
  tasks?: number;
  rollouts?: number;
  /** Sampled tokens of an episode. */
  tokens?: number;
  /** Images of the first message. */
  images?: readonly StoredImage[];
  /** The last reply of an episode. */
  reply?: (episode: { step: number; task: number; rollout: number }) => string;
}

const words = "sum carry digit answer check maybe wrong sorry column therefore result again number value".split(" ");

/** Deterministic. Rollout 0 of task 0 is the judge's, too; task 1 has equal rewards; the last rollout of task 2 fails. */
export function generateRun(folder: string, options: GeneratedRun): void {
  mkdirSync(join(folder, "episodes"), { recursive: true });
  writeFileSync(
    join(folder, "config.yaml"),
    'model:\n  name: tiny # script\nrllm:\n  backend: local # default\n  sdk:\n    proxy:\n      admin_token: "a-secret" # default\n',
  );
  for (let step = 1; step <= options.steps; step++) generateStep(folder, step, options);
}

/** Adds one more step to a folder. */
export function generateStep(folder: string, step: number, options: Omit<GeneratedRun, "steps">): void {
  const { tasks = 4, rollouts = 4 } = options;
  const lines: string[] = [];
  for (let task = 0; task < tasks; task++) {
    for (let rollout = 0; rollout < rollouts; rollout++) {
      lines.push(`${toJson(generateEpisode({ step, task, rollout }, options))}\n`);
    }
  }
  const name = `step-${String(step).padStart(6, "0")}.jsonl`;
  writeFileSync(join(folder, "episodes", name), lines.join(""));
  const time = new Date(Date.UTC(2026, 0, 1, 0, 0, step)).toISOString();
  const metrics = { "reward/mean": step / 100, "actor/grad_norm": Number.NaN, "time/step": 1, "time/rollout": 0.75 };
  appendFileSync(join(folder, "metrics.jsonl"), `${toJson({ step, epoch: 0, time, ...metrics })}\n`);
}

interface Place {
  step: number;
  task: number;
  rollout: number;
}

function generateEpisode(place: Place, { rollouts = 4, tokens = 20, images = [], reply }: Omit<GeneratedRun, "steps">) {
  const { step, task, rollout } = place;
  const reward = task === 1 ? 1 : rollout / rollouts;
  const text =
    reply?.(place) ??
    words.map((_, index) => words[(step * 7 + task * 3 + rollout + index * 5) % words.length]).join(" ");
  const failed = task === 2 && rollout === rollouts - 1;
  const parts = [...images.map((image) => ({ type: "image", image })), { type: "text", text: `question ${task}` }];
  const question = { role: "user", content: images.length > 0 ? parts : `question ${task}` };
  const turn = (prompt: number[], sampled: number, messages: object[], content: string, toolCalls: object[] = []) => ({
    promptTokens: prompt,
    tokens: Array.from({ length: sampled }, (_, index) => 100 + ((step + index) % 50)),
    logprobs: Float32Array.from({ length: sampled }, (_, index) => -(index % 7) / 3),
    policyVersion: step - 1,
    stopReason: "stop",
    text: content,
    messages,
    reply: { content, toolCalls, problems: [] },
    reward: null,
  });
  const half = Math.max(1, Math.floor(tokens / 2));
  const call = { id: "call_0", name: "add", arguments: { a: 1 }, argumentsText: '{"a": 1}' };
  const first = turn([1, 2, 3], half, [question], "let me add", [call]);
  const answered = [
    question,
    { role: "assistant", content: "let me add", toolCalls: [call] },
    { role: "tool", content: "2", toolCallId: "call_0", name: "add" },
  ];
  const second = turn([...first.promptTokens, ...first.tokens, 4, 5], Math.max(1, tokens - half), answered, text);
  const advantage = task === 1 || failed ? 0 : reward - 0.375;
  const solver = { name: "solver", steps: [first, second], reward: failed ? null : reward, advantage };
  const judge = {
    name: "judge",
    steps: [turn([9], 2, [question], "fine")],
    reward: 0.1,
    scores: { own: 0, kind: 0.2 },
    advantage: 0,
  };
  return {
    id: `arith/${task}:${rollout}`,
    taskId: `arith/${task}`,
    rollout,
    row: { index: task, question: `question ${task}` },
    trajectories: task === 0 && rollout === 0 ? [solver, judge] : [solver],
    termination: failed ? "error" : "env_done",
    correct: failed ? null : reward > 0.5,
    metrics: { length: text.length },
    explanation: failed ? undefined : `expected ${task}`,
    failure: failed
      ? {
          kind: "infrastructure",
          boundary: "environment",
          message: `connection ${step}0${task} refused`,
          stack: "at x",
        }
      : undefined,
    retries: rollout === 1 ? 1 : 0,
    retriedAfter:
      rollout === 1 ? [{ kind: "agent", boundary: "workflow", message: `index ${step} is out of range` }] : undefined,
    seconds: 0.5 + rollout,
  };
}
