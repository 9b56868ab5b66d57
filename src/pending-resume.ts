/** The command line that starts a script, as the script's datasets see it. On `globalThis`, so that two copies of the package share it. */
export const launchKey = Symbol.for("hone.launch");

/** The run folder that the script will continue; undefined if it starts a new run. */
export function pendingResume(): string | undefined {
  return (globalThis as { [launchKey]?: { resume?: string } })[launchKey]?.resume;
}
