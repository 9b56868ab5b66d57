/**
 * torchrun starts a copy of its program for each rank and names the ranks in the environment. Hone starts the ranks itself:
 * the first copy trains with as many processes, and the others end.
 */
import { UserError } from "../errors.ts";

/** @returns whether this is a copy other than the first, which must exit */
export function isSpareCopy(environment: NodeJS.ProcessEnv = process.env): boolean {
  const { TORCHELASTIC_RUN_ID: run, RANK: rank, WORLD_SIZE: world, LOCAL_WORLD_SIZE: here } = environment;
  if (run === undefined) return false;
  if (here !== undefined && here !== world) {
    throw new UserError(`torchrun started ${world} ranks, ${here} of them on this machine`, {
      hint: "local.processes runs on one machine; use rllm/backend=verl for several machines",
    });
  }
  if (Number(rank) === 0) return false;
  process.stderr.write(`rank ${rank} of torchrun ends: Hone in rank 0 starts the processes that train\n`);
  return true;
}

/** The overrides that follow from torchrun's environment; the user's own override them. */
export function torchrunOverrides({ TORCHELASTIC_RUN_ID: run, WORLD_SIZE: world }: NodeJS.ProcessEnv = process.env) {
  return run === undefined || world === undefined ? [] : [`local.processes=${world}`];
}
