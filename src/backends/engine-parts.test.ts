import { describe, expect, it, test } from "vitest";
import { tabularEngine } from "../testing/tabular-engine.ts";
import type { EnginePart, LearningEngine, Policy, SamplingPart } from "./engine.ts";
import { checkLossValue, composeEngine, NonFiniteLossError } from "./engine-parts.ts";

const outputs = { offsets: new Int32Array([0, 2]), logprobs: new Float32Array([-1, -2]) };
const value = (loss: number, logprobs: number[]) => ({
  loss,
  gradient: { logprobs: new Float32Array(logprobs) },
  metrics: {},
});

describe("checkLossValue", () => {
  it("accepts what fits", () => checkLossValue("ppo", value(0.5, [1, 0]), outputs));

  it.each([
    ["a NaN loss", value(Number.NaN, [1, 0]), /"ppo" is NaN/],
    [
      "an infinite gradient",
      value(1, [0, Number.NEGATIVE_INFINITY]),
      /logprobs\[1\] is -Infinity \(logprobs\[1\] is -2/,
    ],
  ])("names %s", (_what, bad, message) => {
    expect(() => checkLossValue("ppo", bad, outputs)).toThrow(NonFiniteLossError);
    expect(() => checkLossValue("ppo", bad, outputs)).toThrow(message);
  });

  it.each([
    ["too short", value(1, [0]), /gradient of 1 entries for 2 logprobs/],
    [
      "by an output that was not requested",
      { ...value(1, [0, 0]), gradient: { logprobs: new Float32Array(2), entropy: new Float32Array(2) } },
      /did not request/,
    ],
  ])("refuses a gradient %s", (_what, bad, message) =>
    expect(() => checkLossValue("ppo", bad, outputs)).toThrow(message),
  );
});

const tabular = tabularEngine({ alphabet: "abc" });

function opened() {
  const closed: string[] = [];
  let die = (_reason: Error) => {};
  const died = new Promise<Error>((resolve) => {
    die = resolve;
  });
  const part = (name: string, requests: number): Required<Pick<EnginePart, "stats" | "waitingFor" | "close">> => ({
    stats: async () => ({ requests, [name]: requests }),
    waitingFor: () => [{ what: name, seconds: requests }],
    close: async () => void closed.push(name),
  });
  const trainer: LearningEngine = {
    ...tabular,
    ...part("trainer", 1),
    images: {} as NonNullable<LearningEngine["images"]>,
    versions: { torch: "2" },
  };
  const policy = {} as Policy;
  const samplers: SamplingPart = { ...part("samplers", 2), createPolicy: async () => policy };
  const scorers = { ...part("scorers", 4), createScorer: async () => Promise.reject(new Error("no model")) };
  const program = { died, close: async () => void closed.push("program") };
  return { closed, die, trainer, samplers, scorers, program, policy };
}

describe("a composed engine", () => {
  test("asks each part for what it does, and closes the trainer's programs last", async () => {
    const { trainer, samplers, scorers, program, policy, closed, die } = opened();
    const engine = composeEngine({ trainer, samplers, scorers, programs: [program], versions: { service: "1" } });
    expect(await engine.createPolicy({ adapter: { kind: "full" } })).toBe(policy);
    await expect(engine.createScorer!("judge")).rejects.toThrow("no model");
    expect(engine.model).toBe(trainer.model);
    expect(engine.versions).toEqual({ service: "1", torch: "2" });
    expect(engine.capabilities.outputs).toContain("scores");
    expect(await engine.stats()).toEqual({ requests: 7, trainer: 1, samplers: 2, scorers: 4 });
    expect(engine.waitingFor().map(({ what }) => what)).toEqual(["trainer", "samplers", "scorers"]);
    die(new Error("killed"));
    expect(await engine.died).toEqual(new Error("killed"));
    await engine.close();
    expect(closed).toEqual(["scorers", "samplers", "trainer", "program"]);
  });

  test("closes the other parts when one cannot be closed", async () => {
    const { trainer, samplers, closed } = opened();
    const engine = composeEngine({
      trainer,
      samplers: { ...samplers, close: () => Promise.reject(new Error("the server hangs")) },
    });
    await expect(engine.close()).rejects.toThrow("the server hangs");
    expect(closed).toEqual(["trainer"]);
  });

  test("does not read images that its samplers cannot read", () => {
    const { trainer, samplers } = opened();
    expect(composeEngine({ trainer, samplers }).images).toBe(trainer.images);
    const { images, imagesReason } = composeEngine({ trainer, samplers, imagesReason: "SGLang cannot read them" });
    expect([images, imagesReason]).toEqual([undefined, "SGLang cannot read them"]);
  });
});
