/** The `hone` command as a process. */
import { endedEarly, isWatched } from "../trainer/stray-errors.ts";
import { reportError } from "./report-error.ts";
import { runCommandLine } from "./run-command-line.ts";

let done = false;

// Who reads this through `head` has seen enough.
process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  if (error.code !== "EPIPE") throw error;
  done = true;
  process.exit();
});

// While a run is open, it handles these itself.
process.on("uncaughtException", (error) => {
  if (isWatched()) return;
  done = true;
  process.exit(reportError(error));
});
process.on("exit", (code) => {
  if (!done && !isWatched()) process.exitCode = endedEarly(code);
});

process.exitCode = await runCommandLine(process.argv.slice(2));
done = true;
