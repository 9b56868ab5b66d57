/** Reads the process table ten times a second for all running sandboxes. */
import { type Family, listProcesses } from "./process-table.ts";

type Seen = ReturnType<Family["look"]>;

const watched = new Map<Family, (seen: Seen) => void>();
let timer: NodeJS.Timeout | undefined;
const intervalMs = 100;

/** @returns ends the watch */
export function watch(family: Family, onLook: (seen: Seen) => void): () => void {
  watched.set(family, onLook);
  timer ??= setInterval(lookAtAll, intervalMs);
  return () => {
    watched.delete(family);
    if (watched.size > 0) return;
    clearInterval(timer);
    timer = undefined;
  };
}

function lookAtAll(): void {
  const table = listProcesses();
  for (const [family, onLook] of watched) onLook(family.look(table));
}
