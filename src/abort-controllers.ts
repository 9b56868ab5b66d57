/**
 * Abort controllers for work that begins and ends thousands of times a second, used again while nothing was aborted.
 *
 * To make one costs more than its allocation: Node 20 gives each signal a hidden class of its own among the long-lived
 * objects, and whatever the signal leads to (the whole request) then looks alive to the garbage collector until it goes
 * through everything.
 */
import { getEventListeners } from "node:events";

const idle: AbortController[] = [];
/** As many as there is work at the same time, within reason. */
const mostIdle = 1024;

/** Keeps the signal's table of listeners as it is: one that is emptied and filled again is remade every few times. */
const own = () => {};

export function takeAbortController(): AbortController {
  const known = idle.pop();
  if (known !== undefined) return known;
  const controller = new AbortController();
  controller.signal.addEventListener("abort", own);
  return controller;
}

/** To be called once, when the work is over; one that was aborted, or that somebody still listens to, is left alone. */
export function giveBackAbortController(controller: AbortController): void {
  const { signal } = controller;
  if (signal.aborted || idle.length >= mostIdle || getEventListeners(signal, "abort").length > 1) return;
  idle.push(controller);
}
