/** The sessions whose model calls the gateway answers: one attempt at one rollout each. */
import type { RolloutSession } from "../rollout/rollout-session.ts";
import { defaultRole } from "../rollout/rollout-session.ts";
import type { CallSource } from "./address.ts";
import { GatewayError } from "./gateway-error.ts";

export interface LiveSession {
  readonly name: string;
  /** 0 for the first attempt, one more for each retry. */
  readonly attempt: number;
  readonly startedMs: number;
  readonly defaultRole: string;
  /** Of every call. */
  readonly metadata: Readonly<Record<string, unknown>>;
  /** The run's own sampling parameters win over what the client asks for. */
  readonly enforceSampling: boolean;
  readonly generate: RolloutSession["generate"];
  /** Tells the rollout of a call that was refused before it came to `generate`. */
  readonly reportProblem: RolloutSession["reportProblem"];
}

export interface OpenSession {
  name: string;
  attempt: number;
  session: Pick<RolloutSession, "generate" | "reportProblem">;
  metadata?: Readonly<Record<string, unknown>>;
  enforceSampling?: boolean;
  /** Of a session that nobody opened and nobody will close: told when it has been forgotten. */
  onForgotten?: () => void;
}

export interface Sessions {
  open(options: OpenSession): LiveSession;
  /** Calls after this are told that the session has ended. */
  close(name: string, attempt: number): void;
  /** @throws GatewayError when there is none, or it has ended */
  get(source: Pick<CallSource, "session" | "attempt">): LiveSession;
  readonly live: readonly LiveSession[];
  /** An agent that lives elsewhere tells what its session was worth. */
  postResult(source: Pick<CallSource, "session" | "attempt">, result: unknown): void;
  /** Resolves with what was posted, which may have been before. Rejects with the signal's reason. */
  result(source: Pick<CallSource, "session" | "attempt">, signal: AbortSignal): Promise<unknown>;
}

/** Ended sessions that are still told from unknown ones. */
const mostEnded = 10_000;

/** Sessions that nobody opened are never closed: the one that was not called for the longest time makes room. */
const mostUnknown = 10_000;

interface Entry {
  session: LiveSession;
  posted: { result: unknown } | undefined;
  waiting: Set<(result: unknown) => void>;
}

/** @param openUnknown makes a session of a name that nobody opened; without it such a call is refused */
export function createSessions(openUnknown?: (source: { session: string; attempt: number }) => OpenSession): Sessions {
  const entries = new Map<string, Entry>();
  const ended = new Set<string>();
  /** Of those that nobody opened, what to do when they are forgotten; the one called last is last. */
  const unknown = new Map<string, () => void>();

  function open({ name, attempt, session, metadata = {}, enforceSampling = false }: OpenSession): LiveSession {
    const live: LiveSession = {
      ...{ name, attempt, metadata, enforceSampling, defaultRole },
      startedMs: Date.now(),
      generate: session.generate,
      reportProblem: session.reportProblem,
    };
    entries.set(keyOf(name, attempt), { session: live, posted: undefined, waiting: new Set() });
    return live;
  }

  function entryOf({ session, attempt }: Pick<CallSource, "session" | "attempt">): Entry {
    const key = keyOf(session, attempt);
    const entry = entries.get(key);
    if (entry !== undefined) {
      const onForgotten = unknown.get(key);
      if (onForgotten) remember(key, onForgotten);
      return entry;
    }
    if (ended.has(key)) {
      throw new GatewayError("session_ended", `attempt ${attempt} of the session ${session} has ended`);
    }
    if (openUnknown === undefined) {
      throw new GatewayError("not_found", `there is no attempt ${attempt} of a session ${session}`);
    }
    const opened = openUnknown({ session, attempt });
    open(opened);
    remember(key, opened.onForgotten ?? (() => {}));
    return entries.get(key)!;
  }

  function remember(key: string, onForgotten: () => void): void {
    unknown.delete(key);
    unknown.set(key, onForgotten);
    if (unknown.size <= mostUnknown) return;
    const [oldest, forget] = unknown.entries().next().value!;
    unknown.delete(oldest);
    entries.delete(oldest);
    forget();
  }

  return {
    open,
    close(name, attempt) {
      const key = keyOf(name, attempt);
      if (!entries.delete(key)) return;
      unknown.delete(key);
      ended.add(key);
      if (ended.size > mostEnded) ended.delete(ended.values().next().value!);
    },
    get: (source) => entryOf(source).session,
    get live() {
      return [...entries.values()].map(({ session }) => session);
    },
    postResult(source, result) {
      const entry = entryOf(source);
      if (entry.posted) throw new GatewayError("invalid_request", "this session's result has been posted already");
      entry.posted = { result };
      for (const tell of entry.waiting) tell(result);
    },
    result(source, signal) {
      const entry = entryOf(source);
      if (entry.posted) return Promise.resolve(entry.posted.result);
      return new Promise((resolve, reject) => {
        const done = () => {
          entry.waiting.delete(tell);
          signal.removeEventListener("abort", stop);
        };
        const tell = (result: unknown) => {
          done();
          resolve(result);
        };
        const stop = () => {
          done();
          reject(signal.reason);
        };
        entry.waiting.add(tell);
        if (signal.aborted) stop();
        else signal.addEventListener("abort", stop, { once: true });
      });
    },
  };
}

const keyOf = (name: string, attempt: number) => `${attempt} ${name}`;
