/**
 * How long a fuzz test runs: a fixed number of cases, or as long as HONE_FUZZ_SECONDS says. Case i is the same in both.
 *
 * @param share of the time, where a file has several tests
 * @example for (const index of fuzzCases(2000)) check(uniforms(deriveSeed(1, index)));
 */
export function* fuzzCases(usual: number, share = 1): Generator<number> {
  const end = performance.now() + fuzzSeconds * share * 1000;
  for (let index = 0; fuzzSeconds > 0 ? performance.now() < end : index < usual; index++) yield index;
}

const fuzzSeconds = Number(process.env.HONE_FUZZ_SECONDS ?? 0);

/** Time limit of a test that runs these cases, in milliseconds. */
export const fuzzTimeout = (fuzzSeconds + 120) * 1000;
