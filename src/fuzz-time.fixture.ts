/**
 * The cases of a fuzz test: a fixed number, or as many as fit into HONE_FUZZ_SECONDS. Case i is the same either way.
 * HONE_FUZZ_FIRST=100000 begins with another case than 0, to try new ones or to repeat one.
 *
 * @param share this test's fraction of the time, if a file has several tests
 * @example for (const index of fuzzCases(2000)) check(uniforms(deriveSeed(1, index)));
 */
export function* fuzzCases(usual: number, share = 1): Generator<number> {
  const end = performance.now() + fuzzSeconds * share * 1000;
  for (let index = first; fuzzSeconds > 0 ? performance.now() < end : index < first + usual; index++) {
    yield index;
  }
}

const first = Number(process.env.HONE_FUZZ_FIRST ?? 0);

export const fuzzSeconds = Number(process.env.HONE_FUZZ_SECONDS ?? 0);

/** Time limit of a test that runs these cases, in milliseconds. */
export const fuzzTimeout = (fuzzSeconds + 120) * 1000;
