/** Lines that vLLM 0.32 wrote when its engine ended. */
import { expect, test } from "vitest";
import { readEnd } from "./process.ts";

const core = "(EngineCore pid=21969) ERROR 11-23 20:40:39 ";
/** Written for each running request: enough of them push the engine's own trace out of the last lines. */
const request = (id: number) => [
  `(APIServer pid=19354) ERROR 11-23 20:40:39 [vllm_error.py:54] Engine Exception caught. Request id: generate-tokens-${id}`,
  "(APIServer pid=19354) ERROR 11-23 20:40:39 [vllm_error.py:54] Traceback (most recent call last):",
  ...Array.from(
    { length: 32 },
    () => "(APIServer pid=19354) ERROR 11-23 20:40:39 [vllm_error.py:54]     await app(scope)",
  ),
  "(APIServer pid=19354) ERROR 11-23 20:40:39 [vllm_error.py:54] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
];
const requests = Array.from({ length: 100 }, (_, id) => request(id)).flat();

test.each([
  [
    "a step that took too long",
    [
      `${core}[core.py:1512] EngineCore encountered a fatal error.`,
      `${core}[core.py:1512] TimeoutError`,
      `${core}[core.py:1512] The above exception was the direct cause of the following exception:`,
      `${core}[core.py:1512] TimeoutError: RPC call to sample_tokens timed out.`,
    ],
    "TimeoutError: RPC call to sample_tokens timed out.",
  ],
  [
    "an error of a worker",
    [
      "(Worker pid=7) ERROR 11-23 20:40:39 [multiproc_executor.py:1063] FileNotFoundError: No such file: adapter",
      `${core}[core.py:1512] RuntimeError: Worker failed with error 'No such file', please check the stack trace above for the root cause`,
    ],
    "FileNotFoundError: No such file: adapter",
  ],
  [
    "a worker that was killed",
    [
      `${core}[multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down executor.`,
      `${core}[core.py:1512] RuntimeError: cancelled`,
    ],
    "Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down executor.",
  ],
  ["an engine that was killed", [], "its engine process ended without an error message"],
])("the cause of the end is %s, also after the traces of many requests", (_, lines, cause) => {
  const end = readEnd();
  for (const line of [...lines, ...requests]) end.read(line);
  expect(end.explain().cause).toBe(cause);
});

test("an error from long before the end is not its cause", () => {
  let time = 0;
  const end = readEnd(() => time);
  end.read("ValueError: a refused request");
  expect(end.explain().cause).toBe("ValueError: a refused request");
  time += 3_600_000;
  expect(end.explain()).toEqual({ cause: undefined, errors: [] });
});
