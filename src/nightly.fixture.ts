/** Long matrices are complete in `npm test -- nightly`. Otherwise one case of each kind runs (docs/decisions/tests.md). */
export const nightly = process.env.HONE_NIGHTLY === "1";
