/** Workflows and environments with pictures, up to the sequences that are trained on. */
import { expect, test } from "vitest";
import { memoryStore } from "../images/images.ts";
import { png } from "../images/pictures.fixture.ts";
import { imageCharacter, runWorkflow } from "../testing/scripted.ts";
import { continues, toBatch, toSequences } from "../trajectories/batch.ts";
import type { Step } from "../trajectories/types.ts";
import { multiTurn, singleTurn, solverJudge } from "./workflows.ts";

const colors = [
  [255, 0, 0],
  [0, 255, 0],
  [0, 0, 255],
] as const;
const pictures = colors.map((color) => png(2, 2, color));
const hashes = pictures.map((bytes) => memoryStore().add(bytes).hash);
const image = (index: number) => ({ type: "image" as const, image: pictures[index]! });
const text = (words: string) => ({ type: "text" as const, text: words });

test("a prompt of parts, graded by text", async () => {
  const workflow = singleTurn<{ index: number }>({
    prompt: ({ index }) => [image(index), text("Which color?")],
    reward: (row, reply, { messages }) =>
      Number(reply.text === `${row.index}`) + Number(Array.isArray(messages[0]!.content)),
  });
  const reply = (_: unknown, { media }: { media: readonly { hash: string }[] }) => `${hashes.indexOf(media[0]!.hash)}`;
  const episodes = await runWorkflow({ workflow, rows: [{ index: 2 }, { index: 0 }], reply });
  expect(episodes.map(({ trajectories }) => trajectories[0]!.reward)).toEqual([2, 2]);
});

test("an environment whose observations are pictures makes one sequence with all of them", async () => {
  const workflow = multiTurn<object>({
    environment: () => {
      let turn = 0;
      return {
        reset: () => [image(0), text("first")],
        step: () => ({ observation: [image(++turn)], reward: turn, done: turn === 2 }),
      };
    },
  });
  const [episode] = await runWorkflow({ workflow, rows: [{}], reply: (messages) => `saw ${messages.at(-1)!.content}` });
  const [trajectory] = episode!.trajectories;
  expect(trajectory!.steps.map(({ text: said }) => said)).toEqual([
    `saw ${imageCharacter}first`,
    `saw ${imageCharacter}`,
  ]);
  // As if the trained model had answered.
  for (const step of trajectory!.steps) step.policyVersion = 0;
  const { sequences, causes } = toSequences(trajectory!);
  expect([sequences.length, causes]).toEqual([1, []]);
  expect(sequences[0]!.media?.map(({ hash }) => hash)).toEqual([hashes[0], hashes[1]]);
  for (const { at } of sequences[0]!.media!) expect(sequences[0]!.trained[at - 1]).toBe(0);
  const group = {
    id: "g",
    taskId: "t",
    role: "agent",
    members: [{ episode: episode!, trajectory: trajectory!, reward: 1 }],
  };
  const { batch } = toBatch([group], [[1]], { maxLength: 1000 });
  expect(batch.sequences[0]!.media).toEqual(sequences[0]!.media);
});

test("a judge sees the task's images", async () => {
  const seen: string[][] = [];
  const workflow = solverJudge<object>({ prompt: () => [text("look "), image(1)], reward: () => 1 });
  await runWorkflow({
    workflow,
    rows: [{}],
    reply: (messages, { media }) => {
      seen.push([messages[0]!.content, ...media.map(({ hash }) => hash)]);
      return "yes";
    },
  });
  expect(seen[0]).toEqual([`look ${imageCharacter}`, hashes[1]]);
  expect(seen[1]).toEqual([
    expect.stringContaining(`Task:\nlook ${imageCharacter}\n\nProposed answer:\nyes`),
    hashes[1],
  ]);
});

test.each<[string, unknown, string]>([
  ["no parts", [], "prompt(row) returned no messages"],
  ["parts without content", [{ type: "image" }], "part 1 of message 1 (user) is not a text or an image"],
  ["bytes without a part", pictures[0], "instead of a message's text"],
  ["a broken picture", [{ type: "image", image: Buffer.from("GIF89a") }], "message 1 (user): the image is a GIF"],
])("a prompt with %s is a mistake of the workflow", async (_, prompt, sentence) => {
  const workflow = singleTurn<object>({ prompt: () => prompt as never, reward: () => 1 });
  await expect(runWorkflow({ workflow, rows: [{}], reply: () => "ok" })).rejects.toThrow(sentence);
});

test("a step continues another only with the same images in the same places", () => {
  const step = (promptTokens: number[], tokens: number[], ...media: [at: number, hash: string][]) =>
    ({
      promptTokens: Int32Array.from(promptTokens),
      tokens: Int32Array.from(tokens),
      media: media.map(([at, hash]) => ({ at, length: 2, hash })),
    }) as unknown as Step;
  const first = step([1, 7, 7, 2], [3], [1, "a"]);
  expect(continues(step([1, 7, 7, 2, 3, 4], [], [1, "a"]), first)).toBe(true);
  expect(continues(step([1, 7, 7, 2, 3, 7, 7], [], [1, "a"], [5, "b"]), first)).toBe(true);
  expect(continues(step([1, 7, 7, 2, 3, 4], [], [1, "b"]), first)).toBe(false);
  expect(continues(step([1, 7, 7, 2, 3, 4], []), first)).toBe(false);
  expect(continues(step([1, 7, 7, 2, 3, 4], [], [1, "a"]), step([1, 7, 7, 2], [3]))).toBe(false);
});
