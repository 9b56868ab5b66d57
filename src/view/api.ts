/**
 * The viewer's JSON API: what `hone view` serves and the page in `web/` shows. Types only, without imports, so that the
 * page can use this file.
 *
 * All routes are under `/api`. `:run` is the name of a run's folder (`Run.id`), `:episode` is `EpisodeRow.key`; both are
 * safe in a path. Errors are `ApiError` with status 400 (a mistake in the query, or a file of the run that cannot be read),
 * 401 (no token), 404 or 500. A run of which something cannot be read answers with the rest, and names it in `problem`. It is
 * indexed while it is viewed: answers contain what is indexed so far, and `RunSummary.indexing` is the indexed share.
 *
 * Images of messages are files: `/api/runs/:run/media/:hash` (see `MessageImage`).
 *
 * On other addresses than loopback a token is required: `?token=` on the first page sets a cookie for all later requests.
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
  "/api/runs/:run/rewards": { query: RewardsQuery; answer: RewardHistogram };
  "/api/runs/:run/scales": { query: Record<never, string>; answer: TokenScales };
  "/api/columns": { query: ColumnsQuery; answer: MetricColumns };
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
  /** For a filter: the position of the mistake, counted in UTF-16 code units from 0, and its length. */
  at?: number;
  length?: number;
}

// Runs

export interface RunList {
  /** The viewed folder, for display. */
  folder: string;
  /** Whether the viewed folder is a single run, not a folder of runs. */
  single: boolean;
  /** The runs, newest first. */
  runs: RunSummary[];
}

/**
 * - `live`: a process has locked the run's folder
 * - `done`, `stopped`, `failed`: how it ended
 * - `interrupted`: its process ended without writing how the run ended
 */
export type RunState = "live" | "done" | "stopped" | "failed" | "interrupted";

export interface RunSummary {
  /** The folder's name. */
  id: string;
  state: RunState;
  /** The number of finished steps, and of planned steps if known. */
  step: number;
  totalSteps: number | null;
  started: Milliseconds | null;
  /** The time of the last record. */
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
  /** Share of the episode files that is indexed, from 0 to 1; absent if all are. */
  indexing?: number | undefined;
  /** Why the folder cannot be read completely: the first of its `problems`, as a sentence. */
  problem?: string | undefined;
}

/** A file of which something cannot be read. */
export interface FileProblem {
  /** Within the run folder. */
  file: string;
  /** The number of lines that are skipped; 0: the whole file cannot be read. */
  lines: number;
  /** The number of the first of them, from 1. */
  first: number | null;
  /** What is wrong with the first of them, or with the file. */
  reason: string;
}

export interface RunDetail extends RunSummary {
  /** Absolute path on the server's machine. */
  path: string;
  /** Lines about the model and the size of a step. */
  text: string[];
  /** The finished steps. `curves` returns their metrics. */
  steps: StepSummary[];
  /** Messages of the health rules, and warnings. */
  notes: Note[];
  /** What the run is doing now, if it is live. */
  doing: string | null;
  /** Roles of the run's trajectories. */
  roles: string[];
  /** The last sequence number of the journal. Pass it to `/api/events` to get all later events. */
  cursor: number;
  /** Whether the run folder has the tokenizer, so that tokens have texts. */
  hasTokenizer: boolean;
  /** The reason why the run ended, and its last lines of output. */
  end: { reason: "done" | "stopped" | "failed"; text?: string; report: string[] } | null;
  /** What of the folder cannot be read, at most 100 files; empty or absent if everything can. */
  problems?: FileProblem[];
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
  /** Where it was set, e.g. `train.yaml:3:5`, `command line`; absent if not recorded. */
  origin?: string | undefined;
  /** The key's description in the reference. */
  about?: string | undefined;
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

export interface ColumnsQuery {
  /** Names, joined by commas. */
  names?: string;
}

/** Metrics as columns of the list of runs. */
export interface MetricColumns {
  /** All names of all runs, sorted. */
  names: string[];
  /** The newest value, by run and name; absent where a run does not have it. */
  values: Record<string, Record<string, JsonNumber>>;
}

// The anatomy of a step

export interface AnatomyQuery {
  step: string;
  kind?: "train" | "validation";
}

export interface Anatomy {
  step: number;
  kind: "train" | "validation";
  /** All times below are milliseconds after this time. */
  origin: Milliseconds;
  end: Milliseconds;
  /** The phases of the trainer: rollout, update, publish, buffer_wait, ... */
  phases: { name: string; start: number; end: number | null }[];
  /** When samplers began to use new weights. */
  weights: { version: number; at: number }[];
  /** In the order of tasks. */
  lanes: Lane[];
  /** The lanes that ended last, with the kind of span that took most of their time. */
  slowest: { lane: number; milliseconds: number; mostly: SpanKind }[];
  /** The total time of all lanes, by kind of span. */
  totals: Record<SpanKind, number>;
}

/**
 * `agent`: the rollout's own code, between all other spans. `queued`: before its first attempt began. `sample_queue`: a
 * model call waits for those of other rollouts, until an engine call begins.
 */
export type SpanKind = "queued" | "sample_queue" | "model" | "tool" | "environment" | "grader" | "set_up" | "agent";

export interface Lane {
  task: string;
  rollout: number;
  /** Present when its step has ended. */
  episode: string | null;
  start: number;
  /** Null if it is still running, or the run was killed. */
  end: number | null;
  /** Failed attempts so far, and how it ended. */
  retries: number;
  ended: "done" | "failed" | null;
  reward: number | null;
  /** Spans of concurrent model calls overlap. */
  spans: Span[];
}

export interface Span {
  kind: SpanKind;
  start: number;
  end: number | null;
  /** The attempt, from 0. */
  attempt: number;
  /** The name of another stage of the rollout's own code, e.g. `search`, or of the tools that the reply called. */
  stage?: string | undefined;
  /** Of a model call. */
  call?: number;
  role?: string;
  prompt?: number;
  tokens?: number;
  /** Versions of the weights that sampled the first and the last token. */
  versions?: [first: number, last: number];
  /** Whether the call failed. */
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
  /** The number of matching episodes. */
  total: number;
  offset: number;
  rows: EpisodeRow[];
}

export interface RewardsQuery {
  filter?: string;
}

/** Episodes by reward. An episode whose trajectories differ counts once in each of their bins. */
export interface RewardHistogram {
  /** In order. `low` is in a bin; `high` is in the next one, if there is one. One bin per value if there are few: `low = high`. */
  bins: RewardBin[];
  unknown: number;
}

export interface RewardBin {
  low: number;
  high: number;
  count: number;
}

/** Ranges of the numbers that tokens are colored by, over evenly spread episodes of the run. */
export interface TokenScales {
  /** The number of these episodes. */
  episodes: number;
  /** By the coloring's name; absent if not recorded. Over the tokens that are trained on. */
  ranges: Record<string, [low: number, high: number]>;
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
  /** The reward of the first trajectory. `null` if unknown, never 0. */
  reward: JsonNumber | null;
  /** The advantage of the first trajectory, or its mean over tokens. Null if not trained on, or in a validation. */
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
  /** The oldest and the newest version of the weights that sampled its tokens; null if there are none. */
  versions: [oldest: number, newest: number] | null;
  /** Whether all rewards of its group are equal, so that there is no advantage. Null without a group, or in a validation. */
  zeroSignal: boolean | null;
  trajectories: TrajectoryRow[];
  /**
   * Indices of the trajectories that match, if the filter compares fields of single trajectories and the run has
   * episodes with several. `sort` by reward or advantage is then by that of the first of them.
   */
  matched?: number[] | undefined;
  /** Start of the last reply, in one line. */
  preview: string;
}

export interface TrajectoryRow {
  role: string;
  /** Distinguishes several trajectories of the same role. */
  instance?: number | undefined;
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
  /** The previous and the next episode in the same file, for the keys [ and ]. */
  previous: string | null;
  next: string | null;
}

export interface TrajectoryDetail extends TrajectoryRow {
  /** The scores that the reward is the weighted sum of, by reward model; `own` is the workflow's. Empty without reward models. */
  scores: Record<string, JsonNumber>;
  turnList: Turn[];
}

/** One model call. */
export interface Turn {
  /** The messages that the prompt adds to those of turn `continues`. */
  messages: Message[];
  /** The earlier turn of this trajectory whose tokens this prompt continues; null if a new sequence begins. */
  continues: number | null;
  /** Why a new sequence begins, e.g. `history_rewritten`; absent for the first turn. */
  starts?: string | undefined;
  /** The offered tools, if they differ from those of the previous turn. */
  tools?: { name: string; description?: string; parameters?: unknown }[] | undefined;
  reply: Reply;
  /** The number of tokens of the whole prompt, and of its part after the tokens of turn `continues`. */
  promptLength: number;
  prompt: PromptTokens;
  sampled: SampledTokens;
  stopReason: "stop" | "length" | "aborted";
  cutOffBy?: string | undefined;
  reward: JsonNumber | null;
  /** Whether the sampler's log-probabilities are those after temperature and filters. */
  processed?: true | undefined;
}

/** The file is at `/api/runs/:run/media/:hash`. */
export interface MessageImage {
  hash: string;
  width: number;
  height: number;
}

export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  /** The text; images are written as "[image 64x48 png]". */
  content: string;
  /** The images in the order of the content; absent if there are none. */
  images?: MessageImage[] | undefined;
  /** Of a tool's message. */
  name?: string | undefined;
  toolCallId?: string | undefined;
  /** Of an assistant. */
  thinking?: string | undefined;
  toolCalls?: ToolCall[] | undefined;
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
  thinking?: string | undefined;
  toolCalls: ToolCall[];
  problems: { kind: string; message: string }[];
}

export interface PromptTokens {
  /** `[P]` */
  ids: number[];
  /** `[P]` texts; joined they are the decoded text. Absent without a tokenizer. */
  pieces?: string[] | undefined;
}

/** Arrays of length `[T]`. Absent if not recorded; a single number if all tokens have the same value. */
export interface SampledTokens {
  ids: number[];
  /** A character split over several tokens is in the last of them; the others are "". */
  pieces?: string[] | undefined;
  /** Log-probability under the sampler, in nats. */
  logprobs: TokenValues;
  /** Log-probability under the trainer, in the first evaluation of the token, before the step's update. */
  trainerLogprobs?: TokenValues;
  referenceLogprobs?: TokenValues;
  /** The token's probability in the last evaluation of the update, divided by that at its start. */
  ratio?: TokenValues;
  /** 1: the clipped objective ignores the token's gradient. */
  clipped?: TokenValues;
  /** Entropy of the trainer's distribution, in nats. */
  entropy?: TokenValues;
  /** The advantage as used by the loss: after discount, normalization and penalties. */
  advantage?: TokenValues;
  /** 1 if trained on; 0 if not, e.g. rejected or filtered: such a token has no color. Absent in a validation. */
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
  /** Why all advantages are zero; null if they are not. */
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
  /** The episodes, in the order of rollouts. */
  members: GroupMember[];
  /** The steps of this kind that have the same task, for the slider. */
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
  /** Failed attempts that were retried, grouped in the same way. */
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
  /** The newest episodes, at most 5. */
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
  /** The text around the first match; `match` is [start, end) in it. */
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
  values?: string[] | undefined;
}

// Live

/**
 * `GET /api/events?run=ID&after=N`: server-sent events. `id:` is the journal's sequence number, so a browser resumes with
 * `Last-Event-ID`; `after` is for the first connection (default: the end of the journal). Without `run`, there is no
 * `journal`, and `changed` is sent for each run that changes, at most every 2 s.
 */
export interface ServerEvents {
  /** One or more lines of the journal, in order. The `id:` is that of the last. */
  journal: JournalEntry[];
  /** The index has grown: lists, curves and counts have changed. */
  changed: { run: string; step: number; episodes: number; indexing?: number; state: RunState };
  /** A run appeared or disappeared. */
  runs: { runs: string[] };
  /** Asks the page to open this address; see `POST /api/view`. */
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

/** `POST /api/view` with JSON: makes all open pages go to an address of the page, e.g. `/runs/x/episodes/t12.5`. */
export interface ViewRequest {
  url: string;
}

export interface ViewAnswer {
  /** The number of open pages. */
  pages: number;
}
