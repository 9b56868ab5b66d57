/**
 * A pool of abort controllers, for work that starts and ends thousands of times a second.
 *
 * Node 20 gives each new signal a hidden class of its own among the long-lived objects. Everything that the signal refers
 * to (the whole request) then survives until the next full garbage collection.
 */
import { getEventListeners } from "node:events";

const idle: AbortController[] = [];
const mostIdle = 1024;

/** Stays registered: Node rebuilds a table of listeners that is emptied and filled again. */
const noop = () => {};

export function takeAbortController(): AbortController {
  const known = idle.pop();
  if (known !== undefined) return known;
  const controller = new AbortController();
  controller.signal.addEventListener("abort", noop);
  return controller;
}

/** Call it once, when the work is over. A controller that was aborted, or whose signal still has listeners, is not reused. */
export function giveBackAbortController(controller: AbortController): void {
  const { signal } = controller;
  if (signal.aborted || idle.length >= mostIdle || getEventListeners(signal, "abort").length > 1) return;
  idle.push(controller);
}
