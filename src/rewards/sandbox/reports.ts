/** Reads the launcher's reports from a descriptor that the program does not have. */
import type { Readable } from "node:stream";

type Report = { ready: true } | { failed: string } | { exit: number } | { signal: number } | { over: "files" };

export interface Reports {
  first: Promise<Report>;
  /** How the program ended. Both numbers are null if the launcher ended it, with the exceeded limit if that was the reason. */
  last(): { exitCode: number | null; signal: number | null; over: "files" | undefined };
}

export function readReports(stream: Readable): Reports {
  let text = "";
  const all = () =>
    text
      .split("\n")
      .slice(0, -1)
      .map((line) => JSON.parse(line) as Report);
  const first = new Promise<Report>((resolve) => {
    stream.on("data", (piece: Buffer) => {
      text += piece;
      const [report] = all();
      if (report) resolve(report);
    });
  });
  const last = () => {
    const end = all().at(-1) ?? { ready: true };
    return {
      exitCode: "exit" in end ? end.exit : null,
      signal: "signal" in end ? end.signal : null,
      over: "over" in end ? end.over : undefined,
    };
  };
  return { first, last };
}
