/** Kills the process groups of other programs when this process ends, even by `kill -9`, which runs no handler. */
import { spawn } from "node:child_process";
import type { Writable } from "node:stream";

/** Reads "+ GROUP" and "- GROUP" until this process ends, and kills the groups that are left. */
const script = `
groups=" "
while read -r sign group; do
  if [ "$sign" = + ]; then groups="$groups$group "
  else groups="\${groups%% $group *} \${groups#* $group }"
  fi
done
for group in $groups; do kill -s KILL -- "-$group"; done
`;

let guard: Writable | undefined;

/** @returns releases the group, which has ended */
export function guardGroup(group: number): () => void {
  guard ??= startGuard();
  guard.write(`+ ${group}\n`);
  return () => guard?.write(`- ${group}\n`);
}

function startGuard(): Writable {
  // A group of its own: Ctrl-C in the terminal does not reach it.
  const child = spawn("sh", ["-c", script], { stdio: ["pipe", "ignore", "ignore"], detached: true });
  // Without sh, programs are only killed while this process can do it.
  child.on("error", () => {});
  child.stdin.on("error", () => {});
  child.unref();
  (child.stdin as Writable & { unref(): void }).unref();
  return child.stdin;
}
