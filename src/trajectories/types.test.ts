import { expect, it, test } from "vitest";
import { toSequences } from "./batch.ts";
import { sampleEpisode, sampleStep, sampleTrajectory } from "./sample-episodes.fixture.ts";
import { joinRouting, lastStep, oldestVersion, type Step } from "./types.ts";

test("the last step is that of the last role that has one, and of a side call only without others", () => {
  const [agent, judge, side] = [
    { name: "agent", steps: [1, 2] },
    { name: "judge", steps: [] },
    { name: "side", steps: [3] },
  ];
  expect(lastStep([agent, judge, side])).toBe(2);
  expect(lastStep([judge, side])).toBe(3);
  expect(lastStep([])).toBeUndefined();
});

const episode = (...steps: Parameters<typeof sampleStep>[2][]) =>
  sampleEpisode("a:0", {
    trajectories: steps.map((changes) => sampleTrajectory({ steps: [sampleStep([1], [2, 3], changes)] })),
  });

it("is the version of the oldest token that the policy sampled", () => {
  expect(oldestVersion([episode({ policyVersion: 4 }), episode({ policyVersion: 3 })])).toBe(3);
  expect(oldestVersion([episode({ policyVersion: 4, tokenVersions: Int32Array.of(2, 4) })])).toBe(2);
  expect(oldestVersion([episode({ policyVersion: -1 }, { policyVersion: 5 })])).toBe(5);
  expect(oldestVersion([episode({ policyVersion: -1 }), episode({})])).toBe(0);
  expect(oldestVersion([sampleEpisode("a:0", { trajectories: [] })])).toBeUndefined();
});

/** What vLLM 0.32 sent for a mixture whose second layer is not one. */
const npy = (shape: string, experts: string, type = "|u1") =>
  Buffer.concat([
    Buffer.from("k05VTVBZAQB2AA==", "base64"),
    Buffer.from(`{'descr': '${type}', 'fortran_order': False, 'shape': (${shape}), }`.padEnd(117)),
    Buffer.from(`\n${experts}`, "latin1"),
  ]).toString("base64");
const recorded =
  "k05VTVBZAQB2AHsnZGVzY3InOiAnfHUxJywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDQsIDMsIDIpLCB9ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoAAQAAAAEBAwAAAAMDAAAAAwABAwAAAAI=";

const step = (promptTokens: number[], tokens: number[], routing: NonNullable<Step["routing"]>): Step => ({
  promptTokens: Int32Array.from(promptTokens),
  tokens: Int32Array.from(tokens),
  logprobs: new Float32Array(tokens.length).fill(-1),
  policyVersion: 1,
  stopReason: "stop",
  text: "",
  messages: [],
  reward: null,
  routing,
});

test("a server's answer is read", () => {
  expect(joinRouting([{ first: 0, npy: recorded }], 5)).toEqual({
    experts: Int16Array.of(0, 1, 0, 0, 0, 1, 1, 3, 0, 0, 0, 3, 3, 0, 0, 0, 3, 0, 1, 3, 0, 0, 0, 2),
    layers: 3,
    expertsOfToken: 2,
  });
  expect(joinRouting([], 5)).toBeUndefined();
});

test("a sequence has the experts of all its steps, those that sampled if there are several, and -1 for the others", () => {
  const first = step([5, 6], [7, 8], [{ first: 0, npy: npy("3, 1, 1", "\x01\x02\x03") }]);
  const second = step([5, 6, 7, 8, 9], [4], [{ first: 2, npy: npy("3, 1, 1", "\x09\x04\x05") }]);
  const experts = (steps: Step[]) => {
    const { sequences } = toSequences({ name: "a", steps, reward: 1 });
    return sequences.map(({ routing }) => [...routing!.experts]);
  };
  expect(experts([first, second])).toEqual([[1, 2, 3, 4, 5]]);
  expect(experts([{ ...first, routing: [] }, second])).toEqual([[-1, -1, 9, 4, 5]]);
});

test.each([
  ["another number of layers", 0, npy("1, 2, 2", "abcd")],
  ["more tokens than the sequence", 1, recorded],
  ["fewer numbers than its shape says", 0, npy("3, 1, 1", "ab")],
  ["an object's own names as a type", 0, npy("1, 1, 1", "a", "constructor")],
  ["nothing", 0, ""],
  ["numbers that are not whole", 0, npy("1, 3, 2", "abcdef", "<f4")],
])("%s are refused", (_, first, other) => {
  expect(() =>
    joinRouting(
      [
        { first: 0, npy: recorded },
        { first, npy: other },
      ],
      5,
    ),
  ).toThrow(/the inference server sent experts/);
});
