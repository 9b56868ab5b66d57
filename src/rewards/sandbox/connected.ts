/** Runs two connected programs in sandboxes, such as a program under test and its test. */
import type { Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import type { Connection } from "./run-program.ts";
import type { SandboxProgram, SandboxResult } from "./types.ts";

/** Limit of the data that one program may send to the other. */
const maxBytes = 16 * 2 ** 20;
const reasonMilliseconds = 500;

/** @param run runs one program, with a channel */
export async function runConnected(
  run: (program: SandboxProgram, connection: Connection) => Promise<SandboxResult>,
  first: SandboxProgram,
  second: SandboxProgram,
): Promise<[SandboxResult, SandboxResult]> {
  const [one, other] = [connection(), connection()];
  Promise.all([one.channel, other.channel]).then(([left, right]) => {
    relay(left, right, one.end);
    relay(right, left, other.end);
  });
  const running = [run(first, one), run(second, other)] as const;
  // Also if it could not be started, or was aborted.
  running[0].finally(() => settled(running[1]).then(() => other.end())).catch(() => {});
  running[1].catch(() => one.end());
  await Promise.allSettled(running);
  return Promise.all(running);
}

/** The other program ends with its channel. If it reached a limit, that reason must arrive before it is ended. */
const settled = (run: Promise<unknown>): Promise<unknown> =>
  Promise.race([run.catch(() => {}), sleep(reasonMilliseconds, undefined, { ref: false })]);

interface Pending extends Connection {
  channel: Promise<Duplex>;
  end(why?: SandboxResult["ended"]): void;
}

function connection(): Pending {
  let [onChannel, end]: [Pending["onChannel"], Pending["end"]] = [() => {}, () => {}];
  const channel = new Promise<Duplex>((resolve) => {
    onChannel = resolve;
  });
  const over = new Promise<SandboxResult["ended"] | undefined>((resolve) => {
    end = resolve;
  });
  return { channel, over, onChannel, end };
}

function relay(from: Duplex, to: Duplex, end: Pending["end"]): void {
  let bytes = 0;
  from.on("data", (piece: Buffer) => {
    bytes += piece.length;
    if (bytes > maxBytes) end("output");
  });
  // Either program may end, or close its side, at any time.
  from.on("error", () => to.end());
  from.pipe(to);
}
