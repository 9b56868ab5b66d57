/**
 * A pool of abort controllers, for work that starts and ends thousands of times a second.
 *
 * Node 20 gives each new signal a hidden class of its own among the long-lived objects. Everything that the signal refers
 * to (the whole request) then survives until the next full garbage collection.
 */
import { getEventListeners, setMaxListeners } from "node:events";

const idle: AbortController[] = [];
const maxIdle = 1024;

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
  if (signal.aborted || idle.length >= maxIdle || getEventListeners(signal, "abort").length > 1) return;
  idle.push(controller);
}

/** Joins two signals. Call `release` when the work is over. */
export function abortedByEither(
  left: AbortSignal | undefined,
  right: AbortSignal | undefined,
): { signal: AbortSignal; release: () => void } {
  if (left === undefined || right === undefined) return { signal: left ?? right ?? never, release: () => {} };
  const either = takeAbortController();
  const stop = () => either.abort(left.aborted ? left.reason : right.reason);
  for (const each of [left, right]) {
    if (each.aborted) stop();
    else each.addEventListener("abort", stop, { once: true });
  }
  const release = () => {
    for (const each of [left, right]) each.removeEventListener("abort", stop);
    giveBackAbortController(either);
  };
  return { signal: either.signal, release };
}

const never = new AbortController().signal;
setMaxListeners(0, never);
