import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { textOf } from "../chat/messages.ts";
import { countdown } from "../rewards/text.ts";
import { runWorkflow } from "../testing/scripted.ts";
import {
  type GridWorldRow,
  type GuessNumberRow,
  gridMap,
  gridWorld,
  gridWorlds,
  guessNumber,
  type QuestionOptions,
  questionEnvironment,
} from "./environments.ts";
import { multiTurn } from "./workflows.ts";

describe("grid world", () => {
  const ways = { up: [0, -1], right: [1, 0], down: [0, 1], left: [-1, 0] } as const;

  test("every map can be solved in its stated number of moves, and a seed reproduces the map", () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 2, max: 7 }),
        fc.nat(),
        fc.double({ min: 0, max: 0.5, noNaN: true }),
        (size, seed, holes) => {
          const map = gridMap({ size, seed, holes });
          expect(gridMap({ size, seed, holes })).toEqual(map);
          expect(map.cells.flat().filter((cell) => cell === "G").length).toBe(1);
          // Walks the map by reading it, breadth first.
          let edge = [map.start];
          for (let step = 0; step < map.shortest; step++) {
            expect(edge.some(([x, y]) => map.cells[y]![x] === "G")).toBe(false);
            const next = edge.flatMap(([x, y]) => Object.values(ways).map(([dx, dy]) => [x + dx, y + dy] as const));
            const free = next.filter(([x, y]) => (map.cells[y]?.[x] ?? "O") !== "O");
            edge = [...new Map(free.map((cell) => [`${cell}`, cell])).values()];
          }
          expect(edge.some(([x, y]) => map.cells[y]![x] === "G")).toBe(true);
        },
      ),
      { seed: 2, numRuns: 60 },
    );
  });

  /** Finds the way from the drawing alone, as a model must. */
  function solve(drawing: string): string {
    const lines = drawing.split("\n").filter((line) => /^[P_OG!X]( [P_OG!X])*$/.test(line));
    const cells = lines.map((line) => line.split(" "));
    const y = cells.findIndex((line) => line.includes("P"));
    let edge = [{ x: cells[y]!.indexOf("P"), y, first: "" }];
    const seen = new Set<string>();
    while (edge.length > 0) {
      const goal = edge.find((cell) => cells[cell.y]![cell.x] === "G");
      if (goal) return goal.first;
      edge = edge.flatMap((cell) =>
        Object.entries(ways).flatMap(([move, [dx, dy]]) => {
          const next = { x: cell.x + dx, y: cell.y + dy, first: cell.first || move };
          const inside = cells[next.y]?.[next.x];
          if (inside === undefined || inside === "O" || seen.has(`${next.x},${next.y}`)) return [];
          seen.add(`${next.x},${next.y}`);
          return [next];
        }),
      );
    }
    throw new Error(`no way in\n${drawing}`);
  }
  const worlds = gridWorlds("worlds", 20, { size: 4 });
  const rows = Array.from({ length: 20 }, (_, index) => worlds.task(index).row);
  const workflow = multiTurn<GridWorldRow>({ environment: (task) => gridWorld(task.row) });

  test("a player that reads the map reaches the goal in the fewest moves", async () => {
    const episodes = await runWorkflow({
      workflow,
      rows,
      reply: (messages) => `I go ${solve(messages.at(-1)!.content)}.`,
    });
    for (const [index, episode] of episodes.entries()) {
      expect(episode).toMatchObject({ termination: "env_done", correct: true, trajectories: [{ reward: 1 }] });
      expect(episode.metrics).toEqual({ turns: gridMap(rows[index]!).shortest, invalid_moves: 0 });
    }
  });

  test("a hole ends the game; the edge and replies without a move cost a move", async () => {
    const row = { size: 3, seed: 5, holes: 0.3, moves: 4 };
    const episodes = await runWorkflow({ workflow, rows: [row], n: 4, reply: () => "upwards" });
    expect(episodes[0]).toMatchObject({
      correct: false,
      metrics: { turns: 4, invalid_moves: 4 },
      trajectories: [{ reward: 0 }],
    });
    const all = await Promise.all(Object.keys(ways).map((move) => runWorkflow({ workflow, rows, reply: () => move })));
    const told = all.flat().map(({ explanation }) => explanation!.replace(/\d+/g, "N"));
    expect(new Set(told)).toEqual(
      new Set(["at the goal after N moves, N were needed", "in a hole at move N", "not at the goal after N moves"]),
    );
  });

  test("slippery ice turns a third of the moves to each side, reproducibly", async () => {
    const slippery = rows.map((row) => ({ ...row, slippery: true, holes: 0 }));
    const run = () => runWorkflow({ workflow, rows: slippery, reply: () => "up" });
    const texts = (await run()).flatMap(({ trajectories }) =>
      trajectories[0]!.steps.flatMap(({ messages }) => textOf(messages.at(-1)!.content).match(/You went \w+/) ?? []),
    );
    const share = (move: string) => texts.filter((text) => text.endsWith(move)).length / texts.length;
    expect(share("down")).toBe(0);
    // The player soon reaches the upper edge, and moves against it are not reported as moves.
    for (const move of ["left", "right"]) expect(share(move)).toBeGreaterThan(0.3);
    expect(share("up")).toBeGreaterThan(0.05);
    expect((await run()).map(({ metrics }) => metrics)).toEqual((await run()).map(({ metrics }) => metrics));
  });
});

test("guess the number: halving finds it, and fewer guesses are worth more", async () => {
  const rows: GuessNumberRow[] = [1, 37, 100].map((secret) => ({ secret, low: 1, high: 100 }));
  const workflow = multiTurn<GuessNumberRow>({ environment: (task) => guessNumber(task.row) });
  const episodes = await runWorkflow({
    workflow,
    rows,
    reply: (messages) => {
      let [low, high] = [1, 100];
      for (const { content } of messages) {
        const told = /It is (higher|lower) than (\d+)/.exec(content);
        if (told?.[1] === "higher") low = Number(told[2]) + 1;
        else if (told) high = Number(told[2]) - 1;
      }
      return `${Math.floor((low + high) / 2)}`;
    },
  });
  for (const episode of episodes) {
    expect(episode.correct).toBe(true);
    expect(episode.trajectories[0]!.reward).toBeCloseTo(1 - (0.5 * (episode.metrics.turns! - 1)) / 6);
  }
  const [wrong] = await runWorkflow({ workflow, rows: rows.slice(0, 1), reply: () => "hm" });
  expect(wrong).toMatchObject({ correct: false, metrics: { turns: 7 }, trajectories: [{ reward: 0 }] });
});

test.each<[string, Pick<QuestionOptions<string>, "feedback">, string]>([
  ["without the explanation, which names the answer", {}, "Not yet: that is not right. Try again."],
  ["with feedback", { feedback: ({ explanation }) => explanation ?? "" }, "Not yet: a is no b. Try again."],
])("a wrong answer can be corrected, %s", async (_name, more, told) => {
  const workflow = multiTurn<string>({
    environment: (task) =>
      questionEnvironment(task, {
        prompt: (row) => row,
        reward: (_row, reply) => ({ reward: Number(reply.text === "b"), explanation: `${reply.text} is no b` }),
        attempts: 2,
        ...more,
      }),
  });
  const said: string[] = [];
  const reply = (messages: { content: string }[]) => {
    said.push(messages.at(-1)!.content);
    return said.length === 1 ? "a" : "b";
  };
  const [episode] = await runWorkflow({ workflow, rows: ["which?"], reply });
  expect(said).toEqual(["which?", told]);
  expect(episode!.trajectories[0]).toMatchObject({ reward: 1, steps: [{ reward: 0 }, { reward: 1 }] });
});

test.each<[string, number, string]>([
  ["<answer>(8 - 5) * 4</answer>", 1, "is 12"],
  ["\\boxed{4 \\times (8 - 5) = 12}", 1, "is 12"],
  ["<answer>8 + 4</answer>", 0, "uses 4, 8, not 4, 5, 8"],
  ["<answer>8 - 5 + 4</answer>", 0, "is 7, wanted 12"],
  ["<answer>12</answer>", 0, "uses 12"],
  ["<answer>4(8-5)</answer>", 1, "is 12, wanted 12"],
  ["<answer>require('fs')</answer>", 0, "more than"],
  ["<answer>(8 - 5 * 4</answer>", 0, "cannot be read"],
  ["none", 0, "no expression"],
])("countdown of %s is %d", (reply, reward, why) => {
  expect(countdown(reply, { numbers: [4, 5, 8], target: 12 })).toMatchObject({
    reward,
    explanation: expect.stringContaining(why),
  });
});
