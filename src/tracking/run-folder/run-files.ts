/** The subscriber that writes metrics.jsonl and log.txt of the run folder. */
import { describeEvent } from "../console/describe-event.ts";
import type { RunEvent, Subscriber } from "../events.ts";
import type { RunFolder } from "./run-folder.ts";

export function runFilesSubscriber(folder: RunFolder, now: () => Date = () => new Date()): Subscriber {
  return {
    event(event: RunEvent) {
      const time = now().toISOString();
      if (event.type === "step-end") {
        const { step, epoch, metrics } = event;
        folder.appendMetrics({ step, epoch, time, metrics });
      } else if (event.type === "validation-end") {
        folder.appendMetrics({ step: event.step, kind: "validation", time, metrics: event.metrics });
      }
      const text = describeEvent(event);
      if (text !== null) folder.log(text);
    },
    async close() {},
  };
}
