/** Kills the process groups of started programs when this process ends, even by `kill -9`, which does not run handlers. */
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

/** @returns a function to call when the group has ended */
export function guardGroup(group: number): () => void {
  guard ??= startGuard();
  guard.write(`+ ${group}\n`);
  return () => guard?.write(`- ${group}\n`);
}

function startGuard(): Writable {
  // A group of its own: Ctrl-C in the terminal does not reach it.
  const child = spawn("sh", ["-c", script], { stdio: ["pipe", "ignore", "ignore"], detached: true });
  // Without sh, only this process itself kills programs.
  child.on("error", () => {});
  child.stdin.on("error", () => {});
  child.unref();
  (child.stdin as Writable & { unref(): void }).unref();
  return child.stdin;
}
