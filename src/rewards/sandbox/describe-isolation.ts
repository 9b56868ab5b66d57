/** Describes in a sentence what a sandbox prevents on this machine. */
import type { Isolation } from "./types.ts";

const claims = {
  network: "the network",
  files: "other files",
  processes: "other processes",
  secrets: "variables and memory of other processes",
} as const;

const memory: Record<Isolation["memory"], string> = {
  cgroup: "memory is limited by the kernel",
  watched: "memory is checked ten times a second",
  unlimited: "memory is not limited",
};

/** One line: what programs in the sandbox cannot reach, and what is not protected. */
export function describeIsolation(isolation: Isolation): string {
  const names = Object.keys(claims) as (keyof typeof claims)[];
  const list = (held: boolean) => names.filter((name) => isolation[name] === held).map((name) => claims[name]);
  const [closed, open] = [list(true).join(", "), list(false).join(", ")];
  const parts = [
    closed && `programs cannot reach ${closed}`,
    open && `not protected: ${open}`,
    memory[isolation.memory],
    !isolation.lifetime && "a process that leaves its group survives",
  ];
  return `level ${isolation.level}: ${parts.filter(Boolean).join("; ")}`;
}
