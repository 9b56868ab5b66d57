/** Events as sentences for a log, without colors. Null for events that need no line. */
import { isAbsolute, relative } from "node:path";
import { formatBytes } from "../../files/durable-files.ts";
import { printable, printableLines } from "../../printable.ts";
import type { RunEvent } from "../events.ts";
import { formatNumber, formatSeconds } from "../numbers.ts";
import { stepLine, validationLine } from "./step-line.ts";

export function describeEvent(event: RunEvent): string | null {
  switch (event.type) {
    case "run-start": {
      const { folder, step, totalSteps, text } = event;
      if (folder === "") return text.join("\n");
      const steps =
        step > 0
          ? `continuing after step ${step} of ${totalSteps}`
          : `${totalSteps} step${totalSteps === 1 ? "" : "s"}`;
      const where = totalSteps > 0 ? `run folder ${shortPath(folder)}: ${steps}` : `results ${shortPath(folder)}`;
      return [...text, where].join("\n");
    }
    case "setup-status":
    case "rollout-log":
      return printable(event.text);
    case "rollouts-queued":
    case "rollout":
    case "rollout-progress":
    case "phase-end":
    case "weights":
    case "update-progress":
    case "validation-start":
    case "samples":
    case "distributions":
    case "plot":
      return null;
    case "step-end":
      return stepLine(event);
    case "validation-end":
      return validationLine(event);
    case "checkpoint-saved": {
      const { path, bytes, seconds, best } = event;
      const saved = `checkpoint ${path}  ${formatBytes(bytes)}  ${formatSeconds(seconds)}`;
      return best === undefined ? saved : `${saved}  best ${best.metric} ${formatNumber(best.value)}`;
    }
    case "checkpoint-removed":
      return `removed ${event.path}`;
    case "warning":
    case "health":
      return `${event.type}: ${indented(event.text)}`;
    case "run-end": {
      const { reason, text, report = [] } = event;
      return [text === undefined ? endings[reason] : `${endings[reason]}: ${indented(text)}`, ...report].join("\n");
    }
  }
}

/** The text may contain a model's words, whose line breaks must not start a line of the log. */
const indented = (text: string) => printableLines(text).replaceAll("\n", "\n  ");

/** Relative to the working directory if it is inside. */
function shortPath(path: string): string {
  const here = relative(process.cwd(), path);
  return here === "" || here.startsWith("..") || isAbsolute(here) ? path : here;
}

const endings = { done: "done", stopped: "stopped before the end", failed: "failed" };
