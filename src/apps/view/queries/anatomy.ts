/** The anatomy of a step: what each rollout did and waited for, from the journal. */
import { UserError } from "../../../base/errors.ts";
import { withInside } from "../../../base/files.ts";
import { zip } from "../../../base/values.ts";
import { eventOf, journalName, type RolloutEvent, readJournalLine } from "../../../tracking/journal.ts";
import { completeLines } from "../../../tracking/json-lines.ts";
import type { IndexDatabase } from "../database.ts";
import { readJournalState } from "../run-index.ts";
import { fromStored, type Given, type Kind, kindOf, required, wholeNumberOf } from "./parameters.ts";

interface IndexedRollout {
  step: number;
  task: string;
  rollout: number;
  queued: number;
  ended: number | null;
  outcome: "done" | "failed" | null;
  retries: number;
  reward: number | string | null;
  first: number;
  last: number | null;
}

const maxSlowest = 3;

/** When a step, or a validation, began and ended; undefined if the journal does not have it. */
export const windowOf = (database: IndexDatabase, kind: Kind, step: number) =>
  database.prepare("SELECT began, ended FROM windows WHERE kind = ? AND step = ?").get([kind, step]) as
    | { began: number; ended: number | null }
    | undefined;

export interface AnatomyQuery {
  step: string;
  kind?: Kind;
}

export type Anatomy = ReturnType<typeof anatomy>;
/** What a rollout did and waited for. */
export type RolloutTimes = Anatomy["rollouts"][number];

/** @throws UserError if the journal has no such step */
export function anatomy(database: IndexDatabase, folder: string, query: Given<AnatomyQuery>) {
  const kind = kindOf(query.kind);
  const step = wholeNumberOf("step", required("step", query.step), 0);
  const window = windowOf(database, kind, step);
  if (window === undefined) {
    throw new UserError(`the journal has no ${kind === "train" ? "step" : "validation after step"} ${step}`, {
      code: "not_found",
      hint: "events.jsonl of the run folder is the journal; runs of older versions do not have it",
    });
  }
  const state = readJournalState(database);
  const origin = window.began;
  const end = window.ended ?? state.time;
  const found = database
    .prepare("SELECT * FROM rollouts WHERE kind = ? AND queued < ? AND (ended IS NULL OR ended > ?) ORDER BY rowid")
    .all([kind, end, origin]) as IndexedRollout[];
  const keyOf = database.prepare(
    "SELECT key FROM trajectories WHERE part = 0 AND task = ? AND kind = ? AND rollout = ? AND step >= ? ORDER BY step LIMIT 1",
  );
  const times = withSpans(folder, found, kind, { origin, end, offset: state.offset });
  const rollouts = zip(times, found).map(([rollout, { step }]) => {
    const row = keyOf.get([rollout.task, kind, rollout.rollout, step]) as { key: string } | undefined;
    /** Null until its step has ended. */
    const episode = row?.key ?? null;
    return { ...rollout, episode };
  });
  const phases = database
    .prepare("SELECT name, began, ended FROM phases WHERE ended > ? AND began < ? ORDER BY ended")
    .all([origin, end]) as { name: string; began: number; ended: number }[];
  const weights = database
    .prepare("SELECT version, time FROM weights WHERE time <= ? ORDER BY time DESC")
    .all([end]) as { version: number; time: number }[];
  // The versions of the time window, and those in use at its start.
  const before = weights.findIndex(({ time }) => time < origin);
  const shown = weights.slice(0, before < 0 ? weights.length : before + 1).reverse();
  return {
    step,
    kind,
    /** In milliseconds since 1970. All other times are milliseconds after this time. */
    origin,
    end: end - origin,
    /** The phases of the trainer: rollout, update, publish, buffer_wait, ... */
    phases: phases.map(({ name, began, ended }) => ({ name, start: Math.max(0, began - origin), end: ended - origin })),
    /** When samplers began to use new weights. */
    weights: shown.map(({ version, time }) => ({ version, at: time - origin })),
    /** In the order of tasks. */
    rollouts,
    ...summary(rollouts, end - origin),
  };
}

export type SpanKind = keyof ReturnType<typeof noTotals>;

const noTotals = () => ({
  /** Before its first attempt began. */
  queued: 0,
  /** A model call waits for those of other rollouts, until an engine call begins. */
  sample_queue: 0,
  model: 0,
  tool: 0,
  environment: 0,
  grader: 0,
  set_up: 0,
  /** The rollout's own code, between all other spans. */
  agent: 0,
});

/** The total time of all rollouts by kind of span, and those that ended last, with the kind that took most of their time. */
function summary(rollouts: readonly Pick<RolloutSpans, "start" | "end" | "spans">[], now: number) {
  const totals = noTotals();
  const own = rollouts.map(({ spans }) => {
    const times = noTotals();
    for (const { kind, start, end } of spans) times[kind] += (end ?? now) - start;
    for (const kind of Object.keys(totals) as SpanKind[]) totals[kind] += times[kind];
    return times;
  });
  const slowest = zip(rollouts, own)
    .map(([{ start, end }, { queued, ...times }], rollout) => {
      const [mostly = ["agent"]] = Object.entries(times).sort(([, left], [, right]) => right - left);
      return { rollout, ends: end ?? now, milliseconds: (end ?? now) - start - queued, mostly: mostly[0] as SpanKind };
    })
    .sort((left, right) => right.ends - left.ends || right.milliseconds - left.milliseconds);
  /** `rollout` is an index. */
  return { slowest: slowest.slice(0, maxSlowest).map(({ ends: _, ...rest }) => rest), totals };
}

const nameOf = ({ task, rollout }: { task: string; rollout: number }) => JSON.stringify([task, rollout]);

/** Reads the part of the journal in which these rollouts ran. */
function withSpans(
  folder: string,
  found: readonly IndexedRollout[],
  kind: Kind,
  { origin, end, offset }: { origin: number; end: number; offset: number },
): RolloutSpans[] {
  const builders = found.map((rollout) => spanBuilder(rollout, origin));
  // A task may occur again in a later step. An event belongs to the rollout that began last before it.
  const byName = new Map<string, { first: number; last: number; builder: SpanBuilder }[]>();
  for (const [rollout, builder] of zip(found, builders)) {
    const own = byName.get(nameOf(rollout)) ?? [];
    own.push({ first: rollout.first, last: rollout.last ?? Number.POSITIVE_INFINITY, builder });
    byName.set(nameOf(rollout), own);
  }
  const from = Math.min(...found.map(({ first }) => first));
  const to = Math.max(...found.map(({ last }) => last ?? offset));
  if (found.length > 0) {
    withInside(folder, journalName, (file) => {
      for (const { text, offset } of completeLines(file, { offset: from, end: to })) {
        const found = text === undefined ? undefined : readRollout(text, kind);
        if (found === undefined) continue;
        const rollout = byName.get(nameOf(found.event))?.find(({ first, last }) => offset >= first && offset < last);
        rollout?.builder.add(found.event, found.time - origin);
      }
    });
  }
  return builders.map((builder) => builder.finish(end - origin));
}

/** Undefined for other events, and for a line that the index skips. */
function readRollout(text: string, kind: Kind): { event: RolloutEvent; time: number } | undefined {
  const purpose = kind === "train" ? "train" : "validate";
  // Most lines of the journal are of other rollouts, or of none.
  if (!text.includes('"rollout"') || !text.includes(`"${purpose}"`)) return undefined;
  try {
    const line = readJournalLine(text);
    const event = eventOf(line);
    return event?.kind === "rollout" && event.purpose === purpose ? { event, time: line.time } : undefined;
  } catch {
    return undefined;
  }
}

export interface Span {
  kind: SpanKind;
  start: number;
  /** Null if it is still running, or the run was killed. */
  end: number | null;
  /** The attempt, from 0. */
  attempt: number;
  /** The name of another stage of the rollout's own code, e.g. `search`, or of the tools that the reply called. */
  stage?: string | undefined;
  /** A model call has the fields from here on: its number, the role, and the tokens of its prompt and its reply. */
  call?: number;
  role?: string;
  prompt?: number;
  tokens?: number;
  /** Versions of the weights that sampled the first and the last token. */
  versions?: [first: number, last: number];
  failed?: true;
}

type SpanBuilder = ReturnType<typeof spanBuilder>;
type RolloutSpans = ReturnType<SpanBuilder["finish"]>;

const stageKinds: Readonly<Record<string, SpanKind>> = {
  environment: "environment",
  reward: "grader",
  "set-up": "set_up",
};

/** Collects the spans of a rollout from its events. */
function spanBuilder(indexed: IndexedRollout, origin: number) {
  const queued = indexed.queued - origin;
  const spans: Span[] = [];
  const calls = new Map<number, Span>();
  /** The span of the rollout's own code; undefined while a model call runs. */
  let own: Span | undefined = { kind: "queued", start: queued, end: null, attempt: 0 };
  let stage = "workflow";
  let attempt = 0;
  /** The tools that the last reply called. The following time is spent in them. */
  let tools: readonly string[] | undefined;

  function close(at: number): void {
    if (own === undefined) return;
    own.end = at;
    if (at > own.start) spans.push(own);
    own = undefined;
  }
  function open(at: number): void {
    const kind = stageKinds[stage] ?? "agent";
    const span = { start: at, end: null, attempt };
    if (tools && (kind === "agent" || kind === "environment")) own = { kind: "tool", ...span, stage: tools.join(", ") };
    else own = { kind, ...span, stage: kind === "agent" && stage !== "workflow" ? stage : undefined };
  }

  return {
    add(event: RolloutEvent, at: number): void {
      switch (event.state) {
        case "start":
          close(at);
          ({ attempt } = event);
          stage = "workflow";
          tools = undefined;
          open(at);
          return;
        case "stage":
          stage = event.stage;
          if (calls.size > 0) return;
          close(at);
          open(at);
          return;
        case "call": {
          close(at);
          const span: Span = { kind: "model", start: at, end: null, attempt, call: event.call, role: event.role };
          calls.set(event.call, span);
          spans.push(span);
          return;
        }
        case "answer":
        case "unanswered": {
          const span = calls.get(event.call);
          calls.delete(event.call);
          if (span === undefined) return;
          span.end = at;
          if (event.queued !== undefined) {
            const sent = Math.min(at, span.start + event.queued);
            spans.splice(spans.indexOf(span), 0, { ...span, kind: "sample_queue", end: sent });
            span.start = sent;
          }
          if (event.state === "unanswered") span.failed = true;
          else {
            Object.assign(span, { prompt: event.prompt, tokens: event.tokens, versions: event.versions });
            ({ tools } = event);
          }
          if (calls.size === 0) open(at);
          return;
        }
        case "retry":
        case "end":
          close(at);
          for (const span of calls.values()) span.end = at;
          calls.clear();
      }
    },
    finish(now: number) {
      const ended = indexed.ended === null ? null : indexed.ended - origin;
      for (const span of calls.values()) span.end = ended;
      if (own !== undefined && (ended ?? now) > own.start) spans.push({ ...own, end: ended });
      return {
        task: indexed.task,
        rollout: indexed.rollout,
        start: queued,
        /** Null if it is still running, or the run was killed. */
        end: ended,
        /** Failed attempts. */
        retries: indexed.retries,
        ended: indexed.outcome,
        reward: fromStored(indexed.reward),
        /** Those of concurrent model calls overlap. */
        spans,
      };
    },
  };
}
