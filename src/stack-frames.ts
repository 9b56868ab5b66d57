/** Finds the lines of a stack trace that belong to the user's code. */
import { fileURLToPath } from "node:url";

/** The folder of Hone's own code: `src/` or `dist/`. */
const own = fileURLToPath(new URL(".", import.meta.url));

const framesOf = (stack: string) => stack.split("\n").filter((line) => /^\s+at /.test(line));

const isNodesOrPackages = (frame: string) => /node:|node_modules/.test(frame);

/** At most eight frames in the user's files; if there are none, the frames of Hone. */
export function userFrames(stack = ""): string {
  const frames = framesOf(stack).filter((frame) => /[\\/]/.test(frame) && !isNodesOrPackages(frame));
  const users = frames.filter((frame) => !frame.includes(own));
  return (users.length > 0 ? users : frames).slice(0, 8).join("\n");
}

/** Whether Hone's own code threw, even if the user's code called it. */
export function isThrownByHone(stack = ""): boolean {
  const first = framesOf(stack).find((frame) => frame.includes(own) || !isNodesOrPackages(frame));
  return first?.includes(own) === true;
}
