/** The answers of a small run whose texts try everything: what an exported report contains, for tests of the page. */
import type { Episode, Message, Turn } from "../src/apps/view/queries/episode.ts";
import type { EpisodeRow } from "../src/apps/view/queries/episodes.ts";
import type { RunSummary } from "../src/apps/view/queries/run.ts";
import type { Answer, Route } from "../src/apps/view/routes.ts";

const hostile = [
  "<script>window.attacked = true</script><img src=x onerror='window.attacked = true'>",
  "\u001b[31mred\u001b[0m \u0007 \u202egnp.exe",
  "👩‍👩‍👧 naïve שלום עולם مرحبا बहुभाषी",
  "broken \ufffd\ufffd UTF-8 \ud800",
].join("\n");

const pieces = ["<script>", "attacked", "</script>", "\n", "\ufffd", "", "👩‍👩‍👧", " שלום", "\u001b[31m", " end"];

const turn: Turn = {
  messages: [
    { role: "system", content: "Answer with a number." },
    { role: "user", content: hostile },
    {
      role: "assistant",
      content: "",
      thinking: "I call a tool.",
      toolCalls: [{ id: "1", name: "add", arguments: '{"a": "<b>1</b>"}' }],
    },
    { role: "tool", name: "add", toolCallId: "1", content: `${"x".repeat(1_000_000)}${hostile}` },
  ],
  continues: null,
  tools: [{ name: "add", description: "Adds <i>two</i> numbers.", parameters: { type: "object" } }],
  reply: {
    text: hostile,
    content: hostile,
    toolCalls: [],
    problems: [{ kind: "malformed_tool_call", message: "not <JSON>" }],
  },
  promptLength: 3,
  prompt: { ids: [1, 2, 3], pieces: ["<s>", "Answer", " <img src=x>"] },
  sampled: {
    ids: pieces.map((_, index) => 100 + index),
    pieces,
    logprobs: pieces.map((_, index) => -index / 2),
    trainerLogprobs: pieces.map((_, index) => -index / 2 + 0.01),
    advantage: pieces.map((_, index) => (index % 2 === 0 ? 0.8 : -0.8)),
    entropy: 0.7,
    mask: pieces.map((_, index) => (index === 9 ? 0 : 1)),
    version: 3,
  },
  stopReason: "length",
  cutOffBy: "max_response_length",
  reward: null,
};

const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const [small, large] = ["a".repeat(64), "b".repeat(64)] as const;
const pictures: Message = {
  role: "user",
  content: "[image 1x1 png][image 9000x900 png]What is it?",
  images: [
    { hash: small, width: 1, height: 1 },
    { hash: large, width: 9000, height: 900 },
  ],
};

const row = (key: string, step: number, rollout: number, reward: number | null): EpisodeRow => ({
  key,
  id: `<b>toy</b>/1:${rollout}`,
  step,
  kind: "train",
  task: "<b>toy</b>/1",
  rollout,
  reward,
  advantage: reward === null ? null : reward - 0.5,
  correct: reward === null ? null : reward === 1,
  termination: reward === null ? "error" : "env_done",
  failure: reward === null ? { kind: "agent", boundary: "workflow", message: hostile } : null,
  tokens: 10,
  turns: 1,
  tools: 1,
  seconds: 0.2,
  retries: 1,
  versions: [2, 3],
  zeroSignal: false,
  trajectories: [{ role: "agent", reward, advantage: 0.3, tokens: 10, turns: 1 }],
  preview: hostile,
});

const rows = [row("t1.0", 1, 0, 1), row("t1.1", 1, 1, 0), row("t2.0", 2, 0, 0.5), row("t2.1", 2, 1, null)];

const summary: RunSummary = {
  id: "toy run",
  state: "live",
  step: 2,
  totalSteps: 10,
  started: 0,
  updated: 0,
  model: "models/<b>tiny</b>",
  backend: "local",
  project: null,
  experiment: "toy",
  episodes: 4,
  reward: 0.5,
  rewards: [0.25, null, 0.5],
  validation: { "val/reward": 0.4 },
};

const episode = (shown: EpisodeRow, previous: string | null, next: string | null): Episode => ({
  ...shown,
  row: { question: hostile },
  explanation: "the answer is <b>wrong</b>",
  trial: {
    commands: [{ command: "pytest -q", exitCode: 1, output: "1 failed" }],
    files: [
      { path: "/app/<b>main</b>.py", change: "changed" },
      { path: "/app/notes.txt", change: "added" },
    ],
    verifier: "found: <nothing>",
  },
  commands: [
    { role: "agent", turn: 1, tool: "bash", command: "ls <app>", output: "main.py\nexit code: 0", exitCode: 0 },
    { role: "side", turn: 1, tool: null, command: "cat x", output: null, exitCode: null },
  ],
  metrics: { "tool calls": 1 },
  retriedAfter: [{ kind: "infrastructure", boundary: "engine", message: "no <answer>" }],
  stack: null,
  detail: [
    {
      ...shown.trajectories[0]!,
      scores: { "<helpful>": 0.25, own: 1 },
      turnList: [
        shown.key === "t1.1" ? { ...turn, messages: [pictures] } : turn,
        { ...turn, messages: [{ role: "user", content: "again" }], continues: 0 },
      ],
    },
  ],
  previous,
  next,
});

const group = {
  step: 1,
  kind: "train" as const,
  task: "<b>toy</b>/1",
  role: "agent",
  size: 2,
  mean: 0.5,
  deviation: 0.5,
};
const run = "toy%20run";
const task = "%3Cb%3Etoy%3C%2Fb%3E%2F1";

const answer = <R extends Route>(_route: R, value: Answer<R>): Answer<R> => value;

/** By path and query, exactly as the page asks. */
export const report: Record<string, unknown> = {
  "/api/runs": answer("/api/runs", {
    folder: "runs",
    single: false,
    runs: [summary, { ...summary, id: "other", state: "failed" }],
  }),
  [`/api/runs/${run}/media/${small}`]: `data:image/png;base64,${pixel}`,
  "/api/fields": answer("/api/fields", {
    fields: [{ name: "reward", type: "number", about: "the reward", values: undefined }],
    examples: ['reward<0.2 and text~"sorry"'],
  }),
  [`/api/runs/${run}`]: answer("/api/runs/:run", {
    ...summary,
    problems: [],
    path: "runs/toy run",
    text: ["a model of <b>2</b> layers"],
    steps: [1, 2].map((step) => ({
      step,
      epoch: 0,
      time: 0,
      seconds: 2,
      train: 2,
      validation: 0,
      phases: { rollout: 1.5, update: 0.5 },
    })),
    notes: [{ kind: "health", step: 2, time: 0, text: "the entropy <collapsed>" }],
    doing: "step 3",
    roles: ["agent"],
    cursor: 7,
    hasTokenizer: true,
    end: null,
  }),
  [`/api/runs/${run}/curves?kind=train`]: answer("/api/runs/:run/curves", {
    names: ["actor/entropy", "reward/mean"],
    steps: [1, 2],
    columns: { "reward/mean": [0.5, 0.5], "actor/entropy": ["NaN", 2] },
  }),
  [`/api/runs/${run}/curves?kind=validation`]: answer("/api/runs/:run/curves", {
    names: ["val/reward"],
    steps: [2],
    columns: { "val/reward": [0.4] },
  }),
  [`/api/runs/${run}/config`]: answer("/api/runs/:run/config", {
    entries: [
      {
        key: "training.learning_rate",
        value: 1e-4,
        origin: { kind: "override", text: "command line" },
        about: "Step size.",
      },
      { key: "data.seed", value: 1, origin: { kind: "default", text: "default (config/x.yaml:1)" } },
    ],
  }),
  [`/api/runs/${run}/anatomy?kind=train&step=2`]: answer("/api/runs/:run/anatomy", {
    step: 2,
    kind: "train",
    origin: 0,
    end: 1000,
    phases: [
      { name: "rollout", start: -100, end: 900 },
      { name: "logging", start: 950, end: 1400 },
    ],
    weights: [{ version: 3, at: 500 }],
    rollouts: rows.slice(2).map(({ task, rollout, key, reward }) => ({
      task,
      rollout,
      episode: key,
      start: 0,
      end: 800,
      retries: 0,
      ended: reward === null ? "failed" : "done",
      reward: Number(reward),
      spans: [
        { kind: "model", start: 0, end: 700, attempt: 0, versions: [2, 3], tokens: 10, prompt: 3, role: "agent" },
        { kind: "grader", start: 700, end: 800, attempt: 0 },
      ],
    })),
    slowest: [{ rollout: 0, milliseconds: 800, mostly: "model" }],
    totals: { queued: 0, sample_queue: 0, model: 1400, tool: 0, environment: 0, grader: 200, set_up: 0, agent: 0 },
  }),
  [`/api/runs/${run}/groups?kind=train&step=1`]: answer("/api/runs/:run/groups", {
    groups: [
      { ...group, rewards: [1, 0], zeroSignal: null },
      { ...group, role: "judge", rewards: [1, null], zeroSignal: "all rewards are <equal>" },
    ],
  }),
  [`/api/runs/${run}/group?kind=train&step=1&task=${task}`]: answer("/api/runs/:run/group", {
    step: 1,
    kind: "train",
    task: "<b>toy</b>/1",
    row: { question: hostile },
    groups: [{ ...group, rewards: [1, 0], zeroSignal: "all rewards are <equal>" }],
    members: [
      { ...rows[0]!, explanation: "right", replies: ["the cat"] },
      { ...rows[1]!, explanation: null, replies: ["the <dog>"] },
    ],
    steps: [1, 2],
  }),
  [`/api/runs/${run}/task?kind=train&task=${task}`]: answer("/api/runs/:run/task", {
    task: "<b>toy</b>/1",
    row: { question: hostile },
    steps: [1, 2].map((step) => ({
      step,
      kind: "train" as const,
      mean: 0.5,
      episodes: rows.filter((one) => one.step === step),
    })),
  }),
  [`/api/runs/${run}/episodes?limit=100&order=desc&sort=newest`]: answer("/api/runs/:run/episodes", {
    total: 4,
    offset: 0,
    rows: rows.toReversed(),
  }),
  [`/api/runs/${run}/failures`]: answer("/api/runs/:run/failures", {
    failures: [
      {
        kind: "agent",
        boundary: "workflow",
        message: hostile,
        count: 1,
        steps: [2, 2],
        filter: "boundary=workflow",
        examples: [rows[3]!],
      },
    ],
    retries: [],
    terminations: [
      { termination: "env_done", count: 3 },
      { termination: "error", count: 1 },
    ],
  }),
  [`/api/runs/${run}/search?limit=200&q=cat`]: answer("/api/runs/:run/search", {
    total: 1,
    hits: [{ episode: rows[0]!, snippet: "the <cat> sat", match: [4, 9] }],
  }),
  ...Object.fromEntries(
    rows.map((one, index) => [
      `/api/runs/${run}/episodes/${one.key}`,
      episode(one, rows[index - 1]?.key ?? null, rows[index + 1]?.key ?? null),
    ]),
  ),
};
