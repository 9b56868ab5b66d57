/** Events as sentences for a log: no colours, no limit of width. Null where there is nothing worth a line. */
import { isAbsolute, relative } from "node:path";
import { formatBytes } from "../files/durable-files.ts";
import { printable, printableLines } from "../printable.ts";
import type { RunEvent } from "./events.ts";
import { formatNumber, formatSeconds } from "./numbers.ts";
import { stepLine, validationLine } from "./step-line.ts";

export function describeEvent(event: RunEvent): string | null {
  switch (event.type) {
    case "run-start": {
      const { folder, step, totalSteps } = event;
      const begin = step > 0 ? `continuing after step ${step} of ${totalSteps}` : `${totalSteps} steps`;
      const where = totalSteps > 0 ? `run folder ${shortPath(folder)}: ${begin}` : `results ${shortPath(folder)}`;
      return [...event.text, ...(folder === "" ? [] : [where])].join("\n");
    }
    case "setup-status":
      return printable(event.text);
    case "rollout-progress":
    case "update-progress":
    case "validation-start":
    case "samples":
      return null;
    case "step-end":
      return stepLine(event);
    case "validation-end":
      return validationLine(event);
    case "checkpoint-saved":
      return [
        `checkpoint ${event.path}  ${formatBytes(event.bytes)}  ${formatSeconds(event.seconds)}`,
        ...(event.best === undefined ? [] : [`best ${event.best.metric} ${formatNumber(event.best.value)}`]),
      ].join("  ");
    case "checkpoint-removed":
      return `removed ${event.path}`;
    case "rollout-log":
      return printable(event.text);
    case "warning":
      return `warning: ${indented(event.text)}`;
    case "health":
      return `health: ${indented(event.text)}`;
    case "run-end":
      return [
        `${endings[event.reason]}${event.text === undefined ? "" : `: ${indented(event.text)}`}`,
        ...(event.report ?? []),
      ].join("\n");
  }
}

/** Text that may hold a model's own words: a line break in it never begins a line of the log. */
const indented = (text: string) => printableLines(text).replaceAll("\n", "\n  ");

/** As one would type it from here. */
function shortPath(path: string): string {
  const here = relative(process.cwd(), path);
  return here === "" || here.startsWith("..") || isAbsolute(here) ? path : here;
}

const endings = { done: "done", stopped: "stopped before the end", failed: "failed" };
