import { existsSync } from "node:fs";
import { join } from "node:path";

/** What to do if a path is not a run. */
export const newestRun = () =>
  existsSync(join("runs", "latest"))
    ? "runs/latest is the newest run"
    : "there are no runs in ./runs; hone train creates one";
