/** The process of the `hone` command. */
import { endedEarly, isWatched } from "../trainer/opening/stray-errors.ts";
import { reportError } from "./report-error.ts";
import { runCommandLine } from "./run-command-line.ts";
import { stopWithParent } from "./spawn-with-parent.ts";

let done = false;

// The reader of a pipe, such as `head`, has closed it.
process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  if (error.code !== "EPIPE") throw error;
  done = true;
  process.exit();
});

// An open run handles these errors itself.
process.on("uncaughtException", (error) => {
  if (isWatched()) return;
  done = true;
  process.exit(reportError(error));
});
process.on("exit", (code) => {
  if (!done && !isWatched()) process.exitCode = endedEarly(code);
});

stopWithParent();
process.exitCode = await runCommandLine(process.argv.slice(2));
done = true;
