/** Reads the log of an inference server. */

/** `(EngineCore pid=17) INFO 11-22 12:00:00 [core.py:90] ` or `[2026-11-22 12:00:00 TP0] ` */
const prefix = /^(\([^)]*\) )?((DEBUG|INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[[^\]]*\] )?(\[[\d-]+ [\d:]+[^\]]*\] )?/;
const maxCharacters = 100;

/** The last message, for a progress line; empty if there is none. */
export function lastMessage(lines: readonly string[]): string {
  const message = lines.at(-1)?.replace(prefix, "").trim() ?? "";
  return message.length > maxCharacters ? `${message.slice(0, maxCharacters)}...` : message;
}

const isError = (message: string) => /^\s*([\w.]*\.)?\w*(Error|Exception)\b.*: /.test(message);
/** vLLM's executor found that a process of the model ended. Its own errors follow from this. */
const isEnd = (message: string) => /^Worker proc \S+ died unexpectedly/.test(message);
/** Errors of other processes, such as "See stack trace (above) for the root cause". */
const isConsequence = (message: string) => /\babove\b|EngineDeadError|^RuntimeError: cancelled/.test(message);

const maxCauses = 12;
/** Older errors did not end the server. */
const recentMs = 120_000;

export interface ServerEnd {
  /** Undefined if the log does not name it. */
  cause: string | undefined;
  /** The messages that name a cause, in their order. */
  errors: readonly string[];
}

/**
 * Reads each line of the log, because a failing vLLM server writes a trace for every running request: the trace of the
 * engine, which has the cause, can be far from the end.
 */
export function readEnd(now: () => number = () => performance.now()): {
  read(line: string): void;
  explain(): ServerEnd;
} {
  const seen = new Map<string, number>();
  let isEngineDead = false;
  return {
    read(line) {
      const message = line.replace(prefix, "").trim();
      if (isConsequence(message)) isEngineDead ||= message.includes("EngineDeadError");
      else if (isEnd(message) || isError(message)) {
        seen.delete(message);
        seen.set(message, now());
        if (seen.size > maxCauses) seen.delete(seen.keys().next().value!);
      }
    },
    explain() {
      const errors = [...seen].filter(([, at]) => now() - at < recentMs).map(([message]) => message);
      const cause = errors.find(isEnd) ?? errors.at(-1) ?? (isEngineDead ? engineEnded : undefined);
      return { cause, errors };
    },
  };
}

const engineEnded = "its engine process ended without an error message";

/** What to do about a cause; undefined if nothing special is known. */
export function remedyOf(cause: string): "time" | "memory" | undefined {
  if (/^TimeoutError: RPC call to \S+ timed out/.test(cause)) return "time";
  return isEnd(cause) || cause === engineEnded ? "memory" : undefined;
}
