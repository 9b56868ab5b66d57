import { vi } from "vitest";
import { runCommandLine } from "./main.ts";

/** Runs a command in this process, and returns what it prints. */
export async function runHere(...args: string[]) {
  using out = vi.spyOn(process.stdout, "write").mockReturnValue(true);
  using errors = vi.spyOn(process.stderr, "write").mockReturnValue(true);
  const code = await runCommandLine(args);
  const [printed, said] = [out, errors].map((spy) => spy.mock.calls.map(([text]) => String(text)).join(""));
  return { code, out: printed!, errors: said! };
}
