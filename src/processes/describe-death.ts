/** Explains why a program that should still be running has ended. */

export interface Death {
  code: number | null;
  signal: NodeJS.Signals | null;
  /** Resident memory when last measured; null if the system does not report it. */
  residentBytes: number | null;
  /** Processes that the kernel killed for memory while it ran, on the whole machine; null if the system does not report it. */
  memoryKills: number | null;
  /** The last lines of its log. */
  lastLines: readonly string[];
  /** Why it ended, by its own log. */
  cause?: string | undefined;
  logFile: string | undefined;
}

export interface ProgramDescription {
  /** Such as "the local engine's worker". */
  name: string;
  /** What to do after an end by one of these signals. */
  hints: { SIGKILL: string } & Partial<Record<NodeJS.Signals, string>>;
}

interface Meaning {
  meaning: string;
  hint?: string;
}

/** Why SIGKILL was not the kernel's answer to a lack of memory. */
const fromOutside: Meaning = {
  meaning: "another program killed it (signal 9); the kernel killed no process for memory meanwhile",
  hint: "Look for what ends processes here, such as a job scheduler, a container's limits or a memory daemon.",
};

const resume = "The run can be resumed from its last checkpoint.";

const meanings: Partial<Record<NodeJS.Signals, Meaning>> = {
  SIGKILL: { meaning: "most likely the system killed it because memory ran out" },
  SIGSEGV: { meaning: "native code (torch or a driver) accessed invalid memory", hint: "Run `hone doctor`." },
  SIGBUS: {
    meaning: "a file that was mapped into memory shrank, or the disk or shared memory is full",
    hint: "Check free disk space, and do not change the model's files during a run.",
  },
  SIGILL: {
    meaning: "this processor does not support an instruction that torch uses",
    hint: "Run on another machine.",
  },
  SIGABRT: { meaning: "native code aborted; its message is above", hint: "Run `hone doctor`." },
  SIGTERM: { meaning: "another program terminated it", hint: resume },
  SIGINT: { meaning: "it was interrupted", hint: resume },
};

const signalNumbers: Record<number, NodeJS.Signals> = {
  4: "SIGILL",
  6: "SIGABRT",
  7: "SIGBUS",
  9: "SIGKILL",
  11: "SIGSEGV",
  15: "SIGTERM",
};

const shownLines = 12;

/** How the program ended, what that means, the log's last lines, and what to do. */
export function describeDeath(death: Death, { name, hints }: ProgramDescription): { message: string; hint: string } {
  // A shell or container that ran the program reports a signal as 128 + its number.
  const signal =
    death.signal ?? (death.code !== null && death.code > 128 ? (signalNumbers[death.code - 128] ?? null) : null);
  const isOutside = signal === "SIGKILL" && death.memoryKills === 0;
  const known = isOutside ? fromOutside : signal === null ? undefined : meanings[signal];
  const how = death.signal === null ? `with exit code ${death.code}` : `by ${death.signal}`;
  const why = known?.meaning ?? death.cause;
  const memory =
    signal === "SIGKILL" && death.residentBytes !== null
      ? ` It used ${(death.residentBytes / 2 ** 30).toFixed(1)} GiB of memory when last measured.`
      : "";
  const lines = death.lastLines.slice(-shownLines).map((line) => `    ${line}`);
  const said = lines.length > 0 ? `\n  Its last output:\n${lines.join("\n")}` : "";
  const log = death.logFile === undefined ? "" : ` Its log: ${death.logFile}`;
  const hint =
    (signal && !isOutside ? hints[signal] : undefined) ??
    known?.hint ??
    `${death.cause === undefined ? "The output above shows the cause. " : ""}\`hone doctor\` checks the installation.`;
  return {
    message: `${name} ended ${how}${why === undefined ? "" : `: ${why.replace(/\.$/, "")}`}.${memory}${said}`,
    hint: `${hint}${log}`,
  };
}
