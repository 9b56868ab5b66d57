/** The sessions whose model calls the gateway answers. Each is one attempt of a rollout. */
import { defaultRole, type RolloutSession } from "../../rollout/session/types.ts";
import type { CallSource } from "../requests/address.ts";
import { GatewayError } from "../requests/gateway-error.ts";
import { createSideCalls, type SideCalls } from "./side-calls.ts";

export interface LiveSession {
  readonly name: string;
  /** 0 for the first attempt, one more for each retry. */
  readonly attempt: number;
  readonly startedMs: number;
  readonly defaultRole: string;
  /** Recorded with every call. */
  readonly metadata: Readonly<Record<string, unknown>>;
  /** The run's own sampling parameters replace the client's. */
  readonly enforceSampling: boolean;
  readonly generate: RolloutSession["generate"];
  /** If set, it finds the role of calls whose address names none. */
  sideCalls: SideCalls | undefined;
  /** Reports a call that was refused before `generate`. */
  readonly reportProblem: RolloutSession["reportProblem"];
}

export interface OpenSession {
  name: string;
  attempt: number;
  session: Pick<RolloutSession, "generate" | "reportProblem">;
  metadata?: Readonly<Record<string, unknown>>;
  enforceSampling?: boolean;
  /** For sessions that a call opened: called when the session is forgotten. */
  onForgotten?: () => void;
}

type SessionName = Pick<CallSource, "session" | "attempt">;

export interface Sessions {
  open(options: OpenSession): void;
  /** Later calls get the error `session_ended`. */
  close(name: string, attempt: number): void;
  /** @throws GatewayError when the session does not exist or has ended */
  get(source: SessionName): LiveSession;
  separateSideCalls(source: SessionName): void;
  readonly live: readonly LiveSession[];
  /** Receives the result of an agent on another server. */
  postResult(source: SessionName, result: unknown): void;
  /** Resolves with the posted result, whenever it was posted. Rejects with the signal's reason. */
  result(source: SessionName, signal: AbortSignal): Promise<unknown>;
}

/** Older ended sessions are reported as unknown. */
const maxEnded = 10_000;

/** Sessions that a call opened are never closed. The one without calls for the longest time is forgotten. */
const maxUnknown = 10_000;

interface Entry {
  session: LiveSession;
  isPosted: boolean;
  post: (result: unknown) => void;
  posted: Promise<unknown>;
}

/** @param openUnknown opens a session for the first call to its name; without it such a call is refused */
export function createSessions(openUnknown?: (source: SessionName) => OpenSession): Sessions {
  const entries = new Map<string, Entry>();
  const ended = new Set<string>();
  /** The sessions that a call opened, with their `onForgotten`; the one called last is last. */
  const unknown = new Map<string, () => void>();

  function open({ name, attempt, session, metadata = {}, enforceSampling = false }: OpenSession): Entry {
    const { generate, reportProblem } = session;
    const startedMs = Date.now();
    const live: LiveSession = {
      ...{ name, attempt, startedMs, defaultRole, metadata, enforceSampling, generate, reportProblem },
      sideCalls: undefined,
    };
    let post: Entry["post"] = () => {};
    const posted = new Promise<unknown>((resolve) => {
      post = resolve;
    });
    const entry = { session: live, isPosted: false, post, posted };
    entries.set(keyOf(name, attempt), entry);
    return entry;
  }

  function entryOf({ session, attempt }: SessionName): Entry {
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
      throw new GatewayError("not_found", `attempt ${attempt} of the session ${session} does not exist`);
    }
    const opened = openUnknown({ session, attempt });
    remember(key, opened.onForgotten ?? (() => {}));
    return open(opened);
  }

  function remember(key: string, onForgotten: () => void): void {
    unknown.delete(key);
    unknown.set(key, onForgotten);
    if (unknown.size <= maxUnknown) return;
    for (const [oldest, forget] of unknown) {
      unknown.delete(oldest);
      entries.delete(oldest);
      forget();
      return;
    }
  }

  return {
    open: (options) => void open(options),
    close(name, attempt) {
      const key = keyOf(name, attempt);
      if (!entries.delete(key)) return;
      unknown.delete(key);
      ended.add(key);
      if (ended.size <= maxEnded) return;
      for (const oldest of ended) {
        ended.delete(oldest);
        return;
      }
    },
    get: (source) => entryOf(source).session,
    separateSideCalls(source) {
      entryOf(source).session.sideCalls ??= createSideCalls();
    },
    get live() {
      return Array.from(entries.values(), ({ session }) => session);
    },
    postResult(source, result) {
      const entry = entryOf(source);
      if (entry.isPosted) throw new GatewayError("invalid_request", "the result of this session was posted before");
      entry.isPosted = true;
      entry.post(result);
    },
    result(source, signal) {
      const { isPosted, posted } = entryOf(source);
      if (isPosted) return posted;
      return new Promise((resolve, reject) => {
        const stop = () => reject(signal.reason);
        if (signal.aborted) stop();
        signal.addEventListener("abort", stop, { once: true });
        void posted.then((result) => {
          signal.removeEventListener("abort", stop);
          resolve(result);
        });
      });
    },
  };
}

const keyOf = (name: string, attempt: number) => `${attempt} ${name}`;
