/** A reporter of Node's test runner, which reports to check-program.mjs. */

/** `used`: whether anything was registered; `ran`: tests that ran; `failures`: why tests failed. */
export const results = { used: false, ran: 0, failures: [], hung: [] };

// biome-ignore lint/correctness/useYield: it prints nothing
export default async function* collect(events) {
  for await (const { type, data } of events) {
    results.used ||= type === "test:enqueue";
    const isSuite = data.details?.type === "suite";
    if (type === "test:pass" && !isSuite && data.skip === undefined && data.todo === undefined) results.ran++;
    if (type !== "test:fail" || data.todo !== undefined) continue;
    const { error } = data.details;
    if (error.failureType === "cancelledByParent") results.hung.push(data.name);
    else if (error.failureType !== "subtestsFailed") {
      const cause = error.cause instanceof Error ? error.cause : error;
      results.failures.push(`test "${data.name}": ${cause.name}: ${`${cause.message}`.split("\n")[0]}`);
    }
  }
}
