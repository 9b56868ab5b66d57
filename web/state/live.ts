/** Handles the viewer's events: a new step, a new run, a script that opens a view. */
import { computed, effect, signal } from "@preact/signals";
import type { ServerEvents } from "../../src/apps/view/live.ts";
import { embedded, go, path } from "./address.ts";
import { refresh } from "./fetch.ts";

export const connection = signal<"connected" | "lost" | "offline">(embedded ? "offline" : "connected");

/** The run that is shown; "" on the list of runs. */
const currentRun = computed(() => {
  const [, area, run] = path.value.split("/");
  return area === "runs" && run !== undefined ? decodeURIComponent(run) : "";
});

/** Minimum time between two refreshes, because events come in bursts. */
const refreshMilliseconds = 400;
const waiting = new Set<string>();

/** @param below also refreshes the answers below this path, not only that of the path itself */
function refreshSoon(prefix: string, { below = true } = {}): void {
  const key = `${prefix} ${below}`;
  if (waiting.has(key)) return;
  waiting.add(key);
  setTimeout(() => {
    waiting.delete(key);
    const next = below ? ["", "/", "?"] : ["", "?"];
    // The scale of colors stays as it is while an episode is read.
    refresh(
      (path) => path.startsWith(prefix) && next.includes(path.charAt(prefix.length)) && !path.endsWith("/scales"),
    );
  }, refreshMilliseconds);
}

/** Connects for as long as the page is open; the browser reconnects, and resumes after the last event it has seen. */
export function listen(): void {
  if (embedded !== undefined) return;
  effect(() => {
    const run = currentRun.value;
    const source = new EventSource(`/api/events${run === "" ? "" : `?run=${encodeURIComponent(run)}`}`);
    const on = <E extends keyof ServerEvents>(name: E, use: (data: ServerEvents[E]) => void) =>
      source.addEventListener(name, (event) => use(JSON.parse(event.data)));
    const runs = "/api/runs";
    const refreshList = () => {
      refreshSoon(runs, { below: false });
      refreshSoon("/api/columns");
    };
    source.onopen = () => {
      // Fetches the changes from the time without a connection.
      if (connection.peek() === "lost") refreshSoon(runs);
      connection.value = "connected";
    };
    source.onerror = () => {
      // The browser does not reconnect after an HTTP error, e.g. for a run that does not exist.
      connection.value = source.readyState === EventSource.CLOSED ? "offline" : "lost";
    };
    // On the list of runs and when runs are compared, each run can change.
    on("changed", (change) => {
      refreshSoon(`${runs}/${encodeURIComponent(change.run)}`);
      refreshList();
    });
    // Within a step only the run's own line and the times of its rollouts change.
    on("journal", () => {
      refreshSoon(`${runs}/${encodeURIComponent(run)}`, { below: false });
      refreshSoon(`${runs}/${encodeURIComponent(run)}/anatomy`);
    });
    on("runs", refreshList);
    on("view", ({ url }) => go(url));
    return () => source.close();
  });
}
