/**
 * The viewer's JSON API: what `hone view` serves and the page in `web/` shows. Types only, without imports, so that the
 * page can use this file.
 *
 * All routes are under `/api`. `:run` is the name of a run's folder (`Run.id`), `:episode` is `EpisodeRow.key`; both are
 * safe in a path. Errors are `ApiError` with status 400 (a mistake in the query), 401 (no token), 404 or 500. A run is
 * indexed while it is viewed: answers hold what is indexed so far, and `RunSummary.indexing` says how much is missing.
 *
 * Images of messages are files: `/api/runs/:run/media/:hash` (see `MessageImage`).
 *
 * Off loopback a token is required: `?token=` on the first page sets a cookie, so the page itself sends nothing.
 */

/** Every `GET` route, with its query parameters and its answer. */
export interface Routes {
  "/api/runs": { query: Record<never, string>; answer: RunList };
  "/api/runs/:run": { query: Record<never, string>; answer: RunDetail };
  "/api/runs/:run/config": { query: Record<never, string>; answer: RunConfig };
  "/api/runs/:run/curves": { query: CurvesQuery; answer: Curves };
  "/api/runs/:run/anatomy": { query: AnatomyQuery; answer: Anatomy };
  "/api/runs/:run/episodes": { query: EpisodesQuery; answer: EpisodeList };
  "/api/runs/:run/episodes/:episode": { query: Record<never, string>; answer: Episode };
  "/api/runs/:run/groups": { query: GroupsQuery; answer: GroupList };
  "/api/runs/:run/group": { query: GroupQuery; answer: Group };
  "/api/runs/:run/task": { query: TaskQuery; answer: TaskHistory };
  "/api/runs/:run/failures": { query: FailuresQuery; answer: Failures };
  "/api/runs/:run/search": { query: SearchQuery; answer: SearchResults };
  "/api/runs/:run/journal": { query: JournalQuery; answer: JournalPage };
  "/api/fields": { query: Record<never, string>; answer: FilterFields };
}

/** JSON has no NaN and no infinities. */
export type JsonNumber = number | "NaN" | "Infinity" | "-Infinity";

/** Milliseconds since 1970. */
export type Milliseconds = number;

export interface ApiError {
  /** One sentence. */
  error: string;
  hint?: string;
  /** In a filter: the mistake's position, counted in UTF-16 code units from 0, and its length. */
  at?: number;
  length?: number;
}

// Runs

export interface RunList {
  /** The folder that is viewed, for people. */
  folder: string;
  /** It is one run, not a folder of runs. */
  single: boolean;
  /** The newest first. */
  runs: RunSummary[];
}

/**
 * - `live`: a process holds the run's folder
 * - `done`, `stopped`, `failed`: it has ended like this
 * - `interrupted`: its process is gone, and it did not say how it ended
 */
export type RunState = "live" | "done" | "stopped" | "failed" | "interrupted";

export interface RunSummary {
  /** The folder's name. */
  id: string;
  state: RunState;
  /** Steps done, and planned if known. */
  step: number;
  totalSteps: number | null;
  started: Milliseconds | null;
  /** Of the last record. */
  updated: Milliseconds | null;
  model: string | null;
  backend: string | null;
  /** `rllm.trainer.project_name` and `experiment_name`. */
  project: string | null;
  experiment: string | null;
  /** Indexed so far. */
  episodes: number;
  /** `reward/mean` of the last step, and of each step for a small chart (at most 60 values, the last is the newest). */
  reward: JsonNumber | null;
  rewards: (JsonNumber | null)[];
  /** Metrics of the last validation, e.g. `val/reward`. */
  validation: Record<string, JsonNumber>;
  /** Share of the episode files that is indexed, from 0 to 1; absent: everything is. */
  indexing?: number;
  /** Why the folder cannot be read completely. */
  problem?: string;
}

export interface RunDetail extends RunSummary {
  /** Absolute path on the server's machine. */
  path: string;
  /** Sentences about the model and what a step consists of. */
  text: string[];
  /** Steps that were done; not their metrics, which `curves` has. */
  steps: StepSummary[];
  /** Sentences of the health rules, and warnings. */
  notes: Note[];
  /** What the run is doing now, if it is live. */
  doing: string | null;
  /** Roles of the run's trajectories. */
  roles: string[];
  /** The last sequence number of the journal: pass it to `/api/events` to miss nothing. */
  cursor: number;
  /** The tokenizer is in the run folder, so tokens have texts. */
  hasTokenizer: boolean;
  /** Why the run ended, and lines to read at its end. */
  end: { reason: "done" | "stopped" | "failed"; text?: string; report: string[] } | null;
}

export interface StepSummary {
  step: number;
  epoch: number | null;
  /** When it ended. */
  time: Milliseconds | null;
  seconds: number | null;
  /** Episodes that are indexed, by kind. */
  train: number;
  validation: number;
  /** `rollout`, `update`, `publish`, `buffer_wait`, ...: seconds of each phase. */
  phases: Record<string, JsonNumber>;
}

export interface Note {
  kind: "health" | "warning";
  step: number | null;
  time: Milliseconds;
  text: string;
}

export interface RunConfig {
  /** In the order of config.yaml. Secrets are not in the file. */
  entries: ConfigEntry[];
}

export interface ConfigEntry {
  /** `training.learning_rate` */
  key: string;
  value: unknown;
  /** Where it was set, e.g. `train.yaml:3:5`, `command line`; absent: not recorded. */
  origin?: string;
  /** The key's description in the reference. */
  about?: string;
}

// Curves

export interface CurvesQuery {
  /** Names, joined by commas; default: all. */
  names?: string;
  kind?: "train" | "validation";
}

export interface Curves {
  /** All names of this kind, sorted. */
  names: string[];
  /** `[S]` */
  steps: number[];
  /** `[S]` by name; null where a step has no such value. */
  columns: Record<string, (JsonNumber | null)[]>;
}

// The anatomy of a step

export interface AnatomyQuery {
  step: string;
  kind?: "train" | "validation";
}

export interface Anatomy {
  step: number;
  kind: "train" | "validation";
  /** Zero of all times below, which are milliseconds from here. */
  origin: Milliseconds;
  end: Milliseconds;
  /** What the trainer did: rollout, update, publish, buffer_wait, ... */
  phases: { name: string; start: number; end: number | null }[];
  /** When samplers began to use new weights. */
  weights: { version: number; at: number }[];
  /** In the order of tasks. */
  lanes: Lane[];
  /** The lanes that ended last, and what each waited for most. */
  slowest: { lane: number; milliseconds: number; mostly: SpanKind }[];
  /** The whole time of all lanes by kind of span. */
  totals: Record<SpanKind, number>;
}

/**
 * `agent`: the rollout's own code, between everything else. `queued`: before its first attempt began. `sample_queue`: a
 * model call waits for those of other rollouts, until an engine call begins.
 */
export type SpanKind = "queued" | "sample_queue" | "model" | "tool" | "environment" | "grader" | "set_up" | "agent";

export interface Lane {
  task: string;
  rollout: number;
  /** Once its step has ended. */
  episode: string | null;
  start: number;
  /** Null: it is still running, or the run was killed. */
  end: number | null;
  /** Failed attempts so far, and how it ended. */
  retries: number;
  ended: "done" | "failed" | null;
  reward: number | null;
  /** Spans of model calls made side by side overlap. */
  spans: Span[];
}

export interface Span {
  kind: SpanKind;
  start: number;
  end: number | null;
  /** The attempt, from 0. */
  attempt: number;
  /** The name of another stage of the rollout's own code, e.g. `search`, or of the tools that the reply called. */
  stage?: string;
  /** Of a model call. */
  call?: number;
  role?: string;
  prompt?: number;
  tokens?: number;
  /** Versions of the weights that sampled the first and the last token. */
  versions?: [first: number, last: number];
  /** The call failed. */
  failed?: true;
}

// Episodes

export interface EpisodesQuery {
  /** The filter language; see `/api/fields`. An episode matches if one of its trajectories does. */
  filter?: string;
  sort?: SortColumn;
  order?: "asc" | "desc";
  /** Default 100, at most 1000. */
  limit?: string;
  offset?: string;
}

/** `newest` is the default: by step, then place in its file; `order` is `desc` by default for it. */
export type SortColumn =
  | "newest"
  | "step"
  | "task"
  | "reward"
  | "advantage"
  | "termination"
  | "tokens"
  | "turns"
  | "seconds"
  | "version";

export interface EpisodeList {
  /** That match. */
  total: number;
  offset: number;
  rows: EpisodeRow[];
}

export interface EpisodeRow {
  /** `t12.5`: the sixth episode of training step 12; `v10.0`: the first of the validation after step 10. */
  key: string;
  /** `"{task}:{rollout}"` */
  id: string;
  step: number;
  kind: "train" | "validation";
  task: string;
  rollout: number;
  /** Of the first trajectory. `null`: unknown, never 0. */
  reward: JsonNumber | null;
  /** Of the first trajectory; the mean over its tokens if they differ. Null: not trained on, or a validation. */
  advantage: JsonNumber | null;
  correct: boolean | null;
  termination: string;
  failure: { kind: string; boundary: string; message: string } | null;
  /** Sampled tokens, model calls and tool calls. */
  tokens: number;
  turns: number;
  tools: number;
  seconds: number;
  retries: number;
  /** Oldest and newest weights that sampled its tokens; null: none did. */
  versions: [oldest: number, newest: number] | null;
  /** All rewards of its group are equal, so no advantage. Null: no group, or a validation. */
  zeroSignal: boolean | null;
  trajectories: TrajectoryRow[];
  /** Start of the last reply, in one line. */
  preview: string;
}

export interface TrajectoryRow {
  role: string;
  /** Tells several of one role apart. */
  instance?: number;
  reward: JsonNumber | null;
  advantage: JsonNumber | null;
  tokens: number;
  turns: number;
}

export interface Episode extends EpisodeRow {
  /** The task's row. */
  row: unknown;
  explanation: string | null;
  metrics: Record<string, JsonNumber>;
  retriedAfter: { kind: string; boundary: string; message: string }[];
  stack: string | null;
  detail: TrajectoryDetail[];
  /** Neighbors in the same file, for [ and ]. */
  previous: string | null;
  next: string | null;
}

export interface TrajectoryDetail extends TrajectoryRow {
  /** The scores that the reward sums, by reward model; `own` is the workflow's. Empty without reward models. */
  scores: Record<string, JsonNumber>;
  turnList: Turn[];
}

/** One model call. */
export interface Turn {
  /** The messages that the prompt adds to those of turn `continues`. */
  messages: Message[];
  /** The earlier turn of this trajectory whose tokens this prompt continues; null: it starts anew. */
  continues: number | null;
  /** Why it starts anew, e.g. `history_rewritten`; absent for the first turn. */
  starts?: string;
  /** Tools offered, where they differ from those of the turn before. */
  tools?: { name: string; description?: string; parameters?: unknown }[];
  reply: Reply;
  /** Tokens of the whole prompt, and those after the tokens of turn `continues`. */
  promptLength: number;
  prompt: PromptTokens;
  sampled: SampledTokens;
  stopReason: "stop" | "length" | "aborted";
  cutOffBy?: string;
  reward: JsonNumber | null;
  /** The sampler's log-probabilities are of the distribution after temperature and filters. */
  processed?: true;
}

/** The file is at `/api/runs/:run/media/:hash`. */
export interface MessageImage {
  hash: string;
  width: number;
  height: number;
}

export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  /** Images are "[image 64x48 png]". */
  content: string;
  /** In the order of the content; absent: none. */
  images?: MessageImage[];
  /** Of a tool's message. */
  name?: string;
  toolCallId?: string;
  /** Of an assistant. */
  thinking?: string;
  toolCalls?: ToolCall[];
}

export interface ToolCall {
  id: string;
  name: string;
  /** As the model wrote them, or as JSON. */
  arguments: string;
}

export interface Reply {
  /** The whole reply, without special tokens. */
  text: string;
  content: string;
  thinking?: string;
  toolCalls: ToolCall[];
  problems: { kind: string; message: string }[];
}

export interface PromptTokens {
  /** `[P]` */
  ids: number[];
  /** `[P]` texts; joined they are the decoded text. Absent without a tokenizer. */
  pieces?: string[];
}

/** Arrays of length `[T]`. Absent: not recorded. One number: the same for all tokens. */
export interface SampledTokens {
  ids: number[];
  /** A character split over several tokens is in the last of them; the others are "". */
  pieces?: string[];
  /** Under the sampler, in nats. */
  logprobs: TokenValues;
  /** Under the trainer, before the step's update (of the pass that first evaluated the token). */
  trainerLogprobs?: TokenValues;
  referenceLogprobs?: TokenValues;
  /** Probability under the last evaluation of the update over that at its start. */
  ratio?: TokenValues;
  /** 1: the clipped objective ignores the token's gradient. */
  clipped?: TokenValues;
  /** Of the trainer's distribution, in nats. */
  entropy?: TokenValues;
  /** As the loss used it: discounted, normalized, penalized. */
  advantage?: TokenValues;
  /** 1: trained on. 0: not, e.g. rejected or filtered; color such a token neutrally. Absent in a validation. */
  mask?: TokenValues;
  version: TokenValues;
}

export type TokenValues = number | (JsonNumber | null)[];

// Groups and tasks

export interface GroupsQuery {
  step: string;
  /** Default: train. */
  kind?: "train" | "validation";
}

export interface GroupList {
  groups: GroupSummary[];
}

export interface GroupSummary {
  step: number;
  kind: "train" | "validation";
  task: string;
  role: string;
  size: number;
  rewards: (JsonNumber | null)[];
  mean: JsonNumber | null;
  deviation: JsonNumber | null;
  /** Null: it gives a signal. */
  zeroSignal: string | null;
}

export interface GroupQuery extends GroupsQuery {
  task: string;
  /** Default: all roles. */
  role?: string;
}

/** All rollouts of one task in one step. */
export interface Group {
  step: number;
  kind: "train" | "validation";
  task: string;
  row: unknown;
  /** One for each role. */
  groups: GroupSummary[];
  /** In the order of rollouts. */
  members: GroupMember[];
  /** Steps of this kind with the same task, for the slider. */
  steps: number[];
}

export interface GroupMember extends EpisodeRow {
  explanation: string | null;
  /** The last reply of each trajectory, in their order. */
  replies: string[];
}

export interface TaskQuery {
  task: string;
  kind?: "train" | "validation";
}

/** The rollouts of one task in all steps, the oldest first. */
export interface TaskHistory {
  task: string;
  row: unknown;
  steps: { step: number; kind: "train" | "validation"; mean: JsonNumber | null; episodes: EpisodeRow[] }[];
}

// Failures and search

export interface FailuresQuery {
  filter?: string;
}

export interface Failures {
  /** Failed episodes by boundary and message (numbers and ids in it are ignored), the most frequent first. */
  failures: FailureGroup[];
  /** Failed attempts that were retried, likewise. */
  retries: FailureGroup[];
  /** All episodes by how they ended. */
  terminations: { termination: string; count: number }[];
}

export interface FailureGroup {
  kind: string;
  boundary: string;
  /** Of the newest. */
  message: string;
  count: number;
  /** First and last step. */
  steps: [first: number, last: number];
  /** A filter that lists them. */
  filter: string;
  /** The newest, at most 5. */
  examples: EpisodeRow[];
}

export interface SearchQuery {
  /** Words; all must occur, in this order and next to each other if in double quotes. */
  q: string;
  filter?: string;
  limit?: string;
  offset?: string;
}

export interface SearchResults {
  total: number;
  hits: SearchHit[];
}

export interface SearchHit {
  episode: EpisodeRow;
  /** Around the first match; `match` is [start, end) in it. */
  snippet: string;
  match: [number, number] | null;
}

// The filter language

export interface FilterFields {
  fields: FilterField[];
  examples: string[];
}

export interface FilterField {
  name: string;
  type: "number" | "text" | "boolean";
  about: string;
  /** Known values, for suggestions. */
  values?: string[];
}

// Live

/**
 * `GET /api/events?run=ID&after=N`: server-sent events. `id:` is the journal's sequence number, so a browser resumes with
 * `Last-Event-ID`; `after` is for the first connection (default: the end of the journal). Without `run`, only `runs` and
 * `view` are sent.
 */
export interface ServerEvents {
  /** One or more lines of the journal, in order. The `id:` is that of the last. */
  journal: JournalEntry[];
  /** More is indexed: lists, curves and counts have changed. */
  changed: { run: string; step: number; episodes: number; indexing?: number; state: RunState };
  /** A run appeared or disappeared. */
  runs: { runs: string[] };
  /** Open this address; see `POST /api/view`. */
  view: { url: string };
}

export interface EventsQuery {
  run?: string;
  after?: string;
}

export interface JournalQuery {
  after?: string;
  /** Default 200, at most 2000. */
  limit?: string;
  /** Default: all but `rollout`. Joined by commas. */
  kinds?: string;
}

export interface JournalPage {
  entries: JournalEntry[];
  cursor: number;
}

/** A line of events.jsonl. Other keys depend on `kind`: see `RunEvent` in src/tracking/events.ts. */
export interface JournalEntry {
  seq: number;
  time: Milliseconds;
  kind: string;
  [key: string]: unknown;
}

/** `POST /api/view` with JSON: points all open pages at an address of the page, e.g. `/runs/x/episodes/t12.5`. */
export interface ViewRequest {
  url: string;
}

export interface ViewAnswer {
  /** Pages that were told. */
  pages: number;
}
