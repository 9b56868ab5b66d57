/** Which lines of a stack are the user's: what people look at first when their code throws. */
import { fileURLToPath } from "node:url";

/** Where Hone's own code lies: `src/`, or `dist/` once it is built. */
const own = fileURLToPath(new URL(".", import.meta.url));

const framesOf = (stack: string) => stack.split("\n").filter((line) => /^\s+at /.test(line));

const isNodesOrPackages = (frame: string) => /node:|node_modules/.test(frame);

/** The frames that lie in the user's files, at most eight; where there are none, the frames of Hone. */
export function userFrames(stack = ""): string {
  const frames = framesOf(stack).filter((frame) => /[\\/]/.test(frame) && !isNodesOrPackages(frame));
  const users = frames.filter((frame) => !frame.includes(own));
  return (users.length > 0 ? users : frames).slice(0, 8).join("\n");
}

/** Whether Hone's own code threw, called by the user's or not. */
export function isThrownByHone(stack = ""): boolean {
  const first = framesOf(stack).find((frame) => frame.includes(own) || !isNodesOrPackages(frame));
  return first?.includes(own) === true;
}
