/**
 * Random programs whose objects overload operators and methods: none passes a test of plain data. Both sides of a code test run
 * in one process. HONE_FUZZ_SECONDS=3600 runs each language for half an hour.
 */
import assert from "node:assert";
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { withinTime } from "../base/concurrency.ts";
import { locatePython } from "../base/python.ts";
import { deriveSeed, uniforms } from "../base/values.ts";
import { fuzzCases, fuzzSeconds, fuzzTimeout } from "../fuzz-time.fixture.ts";
import { forging, wrongs } from "./forging.fixture.ts";

const own = (name: string) => new URL(`../../worker/${name}`, import.meta.url);
const { openSession } = await import(own("sandbox/proxies.mjs").href);
const { openServer } = await import(own("sandbox/serve-program.mjs").href);

/** As check-program.mjs judges; undefined if the program does not start. */
function verdict(program: string, source: string, milliseconds = 60_000): "passed" | "failed" | "broken" | undefined {
  let server: ReturnType<typeof openServer>;
  try {
    server = openServer(new Function(`${program}\nreturn (_name) => eval(_name);`)());
  } catch {
    return undefined;
  }
  let exchanges = 0;
  const exchange = (line: string) => {
    // An iterator without end is ended by the sandbox's time limit.
    if (exchanges++ > 1000) return undefined;
    // Ends a program that never answers, e.g. with an array whose length grows, as the sandbox does.
    return withinTime(milliseconds, () => {
      try {
        return server.answer(server.perform(line));
      } catch (error) {
        return server.refusal(error);
      }
    });
  };
  const session = openSession(exchange, source);
  let thrown = false;
  try {
    new Function("f", "assert", source)(session.named("f"), assert);
  } catch {
    thrown = true;
  }
  if (session.broken !== undefined) return "broken";
  return thrown || session.wrong !== undefined ? "failed" : "passed";
}

test(
  "no object of a JavaScript program passes a test that plain data fails",
  async () => {
    const counts = { refused: 0, invalid: 0, weak: 0 };
    let said = performance.now();
    for (const index of fuzzCases(400, 0.5)) {
      const { right, forged, test: source } = forging(uniforms(deriveSeed(29, "forging", index)));
      const what = `case ${index}:\n${forged}\n\n${source}`;
      expect(verdict(right, source), `${right}\n${what}`).toBe("passed");
      const outcome = verdict(forged, source, 2000);
      if (outcome === undefined) counts.invalid++;
      // Such as `!(x < 5) && !(x > 5)`, which NaN passes.
      else if (
        outcome === "passed" &&
        wrongs.some((value) => verdict(`const f = () => ${value};`, source) === "passed")
      ) {
        counts.weak++;
      } else {
        expect(outcome, what).toBe("failed");
        counts.refused++;
      }
      if (performance.now() > said + 20_000) {
        said = performance.now();
        console.log(JSON.stringify(counts));
        await new Promise(setImmediate);
      }
    }
    console.log(`JavaScript: ${JSON.stringify(counts)}`);
    expect(counts.refused).toBeGreaterThan(counts.invalid);
  },
  fuzzTimeout,
);

test("honest Python programs pass and forged ones do not", { timeout: 60_000 }, async () => {
  const { executable } = await locatePython(process.env.HONE_SANDBOX_PYTHON ?? "python3");
  const args = ["-I", "-B", own("tests/code_test_cases.py").pathname];
  const { stdout } = await promisify(execFile)(executable, args).catch(({ stdout, stderr }) => {
    throw new Error(`${stdout}${stderr}`);
  });
  expect(JSON.parse(stdout.trim().split("\n").at(-1) ?? "")).toMatchObject({ wrong: 0 });
});

test(
  "no class of a Python program passes a test that plain data fails",
  async () => {
    const { executable } = await locatePython(process.env.HONE_SANDBOX_PYTHON ?? "python3");
    const args = ["-I", "-B", own("tests/forge_code_tests.py").pathname, "29", "150", `${fuzzSeconds / 2}`];
    const { stdout } = await promisify(execFile)(executable, args, { maxBuffer: 1e8 }).catch((error) => {
      throw new Error(`${error.stdout}${error.stderr}`);
    });
    console.log(`Python: ${stdout.trim().split("\n").at(-1)}`);
    expect(JSON.parse(stdout.trim().split("\n").at(-1) ?? "")).toMatchObject({
      refused: expect.toSatisfy((n) => n > 50),
    });
  },
  fuzzTimeout,
);
