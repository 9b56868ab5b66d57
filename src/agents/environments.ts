/** Ready-made environments: a frozen lake, guessing a number, a question. */
import { numbersIn } from "../base/text.ts";
import { uniforms } from "../base/values.ts";
import { type Dataset, generated, type Task } from "../data/dataset.ts";
import type { Environment, Outcome, Reply, Reward } from "./types.ts";
import { type PromptOptions, promptMessages } from "./workflows.ts";

// A frozen lake as text: the agent walks to the goal and must not step into a hole.

/** A map to cross. */
export interface GridWorldRow {
  /** Number of cells per side. */
  size: number;
  /** The same seed gives the same map. */
  seed: number;
  /** Probability that a cell is a hole. Default 0.2. Maps without a path to the goal are drawn again. */
  holes?: number;
  /** Maximum number of moves. Default 2 * size * size. */
  moves?: number;
  /** A move goes to its left or its right with a probability of 1/3 each. Default false. */
  slippery?: boolean;
  /** Also say in words where the goal lies, for models too small to read a map. Default false. */
  compass?: boolean;
}

/** `cells[y][x]`: `P` start, `_` ice, `O` hole, `G` goal. */
export interface GridMap {
  cells: readonly (readonly string[])[];
  start: Position;
  /** Number of moves of a shortest path from start to goal. */
  shortest: number;
}

type Position = readonly [x: number, y: number];
const moves = { up: [0, -1], right: [1, 0], down: [0, 1], left: [-1, 0] } as const;
type Move = keyof typeof moves;
const directions = Object.keys(moves) as Move[];

/**
 * The map that a row describes; the same row always gives the same one.
 *
 * @throws Error for a size below 2, or if 1000 random maps have no path to the goal
 */
export function gridMap({ size, seed, holes = 0.2 }: GridWorldRow): GridMap {
  if (!Number.isInteger(size) || size < 2) throw new Error(`the grid has ${size} cells per side; it needs at least 2`);
  const random = uniforms(seed);
  const pick = () => Math.floor(random() * size);
  for (let attempt = 0; attempt < 1000; attempt++) {
    const cells = Array.from({ length: size }, () =>
      Array.from({ length: size }, () => (random() < holes ? "O" : "_") as string),
    );
    const start: Position = [pick(), pick()];
    const goal: Position = [pick(), pick()];
    if (start[0] === goal[0] && start[1] === goal[1]) continue;
    cells[start[1]]!.splice(start[0], 1, "P");
    cells[goal[1]]!.splice(goal[0], 1, "G");
    const shortest = wayLength(cells, start);
    if (shortest !== undefined) return { cells, start, shortest };
  }
  throw new Error(`no map with ${size} cells per side and a share of ${holes} holes has a path from start to goal`);
}

function wayLength(cells: readonly (readonly string[])[], start: Position): number | undefined {
  const seen = new Set([`${start}`]);
  let edge: Position[] = [start];
  for (let length = 0; edge.length > 0; length++) {
    if (edge.some(([x, y]) => cells[y]?.[x] === "G")) return length;
    const next = edge.flatMap(([x, y]) => directions.map((move): Position => [x + moves[move][0], y + moves[move][1]]));
    edge = next.filter(([x, y]) => {
      const cell = cells[y]?.[x];
      if (cell === undefined || cell === "O" || seen.has(`${[x, y]}`)) return false;
      seen.add(`${[x, y]}`);
      return true;
    });
  }
  return undefined;
}

/** Tasks with random maps that can all be solved. */
export function gridWorlds(name: string, size: number, options: Omit<GridWorldRow, "seed">): Dataset<GridWorldRow> {
  return generated(name, size, (_index, random) => ({ ...options, seed: Math.floor(random() * 2 ** 32) }));
}

const rules =
  "You stand at P on a frozen lake. _ is ice, O is a hole, G is the goal. Walk to G without stepping into a hole. " +
  "Answer with one move: up, down, left or right.";

/**
 * Reward 1 for reaching the goal, else 0. A reply's last direction is the move. A reply without a direction wastes a move
 * (`metrics.invalid_moves` counts these); so does a move against the edge, which is not counted.
 */
export function gridWorld(row: GridWorldRow): Environment<Reply> {
  const { cells, start, shortest } = gridMap(row);
  const goalRow = cells.findIndex((line) => line.includes("G"));
  const goal: Position = [cells[goalRow]?.indexOf("G") ?? 0, goalRow];
  const { moves: most = 2 * row.size * row.size, slippery = false } = row;
  let [x, y] = start;
  let made = 0;
  let invalid = 0;
  const draw = () =>
    cells
      .map((line, row) => line.map((cell, column) => drawCell(cell, column === x && row === y)).join(" "))
      .join("\n");
  const see = () => (row.compass ? `${draw()}\n${pointTo(goal[0] - x, goal[1] - y)}` : draw());
  return {
    reset: () => `${rules}\n\n${see()}`,
    step({ content }, { random }) {
      made++;
      const asked = readMove(content);
      if (asked === undefined) invalid++;
      const move = asked && slippery ? slip(asked, random()) : asked;
      const [dx, dy] = move ? moves[move] : [0, 0];
      const inside = cells[y + dy]?.[x + dx] !== undefined;
      if (inside) [x, y] = [x + dx, y + dy];
      const cell = cells[y]?.[x];
      const correct = cell === "G";
      const note =
        asked === undefined
          ? "Answer with up, down, left or right."
          : inside
            ? `You went ${move}.`
            : `You cannot go ${move}: the map ends there.`;
      return {
        observation: `${note}\n\n${see()}`,
        reward: Number(correct),
        done: correct || cell === "O" || made >= most,
        correct,
        explanation: correct
          ? `at the goal after ${made} moves, ${shortest} were needed`
          : cell === "O"
            ? `in a hole at move ${made}`
            : `not at the goal after ${made} moves`,
        metrics: { invalid_moves: invalid },
      };
    },
  };
}

const drawCell = (cell: string, here: boolean) =>
  here ? (cell === "G" ? "!" : cell === "O" ? "X" : "P") : cell === "P" ? "_" : cell;

function pointTo(dx: number, dy: number): string {
  const ways = [dx > 0 ? "right" : dx < 0 ? "left" : "", dy > 0 ? "down" : dy < 0 ? "up" : ""].filter(Boolean);
  return `The goal lies ${ways.join(" and ")}.`;
}

function readMove(text: string): Move | undefined {
  const found = [...text.toLowerCase().matchAll(/\b(up|down|left|right)\b/g)].at(-1)?.[1];
  return found as Move | undefined;
}

/** Straight on, or to either side. */
function slip(move: Move, uniform: number): Move {
  const turn = Math.min(2, Math.floor(uniform * 3)) - 1;
  return directions[(directions.indexOf(move) + turn + 4) % 4]!;
}

// A number game of several turns: guess a number, and learn whether the secret is higher or lower.

/** A number to find by asking. */
export interface GuessNumberRow {
  /** The number to find, from `low` to `high`. */
  secret: number;
  low: number;
  high: number;
}

/**
 * 1 when the number is found, minus a penalty for the guesses: `1 - 0.5 * (used - 1) / (guesses - 1)`.
 * @param guesses default: as many as a binary search needs at most
 */
export function guessNumber({ secret, low, high }: GuessNumberRow, guesses = needed(low, high)): Environment<Reply> {
  if (!(low <= secret && secret <= high)) throw new Error(`the secret ${secret} is not between ${low} and ${high}`);
  let used = 0;
  return {
    reset: () =>
      `I think of a whole number from ${low} to ${high}. You have ${guesses} guesses. Answer with one number.`,
    step({ content }) {
      used++;
      const guess = numbersIn(content, { thousands: false })[0];
      const correct = guess === String(secret);
      const left = guesses - used;
      const answer =
        guess === undefined
          ? "That was not a number"
          : `It is ${secret > Number(guess) ? "higher" : "lower"} than ${guess}`;
      return {
        observation: `${answer}. ${left} guesses left.`,
        reward: correct ? 1 - (guesses > 1 ? (0.5 * (used - 1)) / (guesses - 1) : 0) : 0,
        done: correct || left === 0,
        correct,
        explanation: correct ? `found ${secret} at guess ${used}` : `did not find ${secret}`,
      };
    },
  };
}

const needed = (low: number, high: number) => Math.max(1, Math.ceil(Math.log2(high - low + 2)));

// One question, one answer.

export interface QuestionOptions<Row> extends Pick<PromptOptions<Row>, "prompt"> {
  reward: Reward<Row>;
  /** How many answers the model may give. Default 1. */
  attempts?: number;
  /**
   * What the model sees after a wrong answer. Default: only that it is wrong, because the explanations of graders contain the
   * expected answer, which the next attempt could copy.
   */
  feedback?: (outcome: Outcome) => string;
}

/** Done at the first right answer (`correct`, or a reward of 1), or after the last attempt; the last one counts. */
export function questionEnvironment<Row>(
  task: Task<Row>,
  { prompt, reward, attempts = 1, feedback = () => "that is not right" }: QuestionOptions<Row>,
): Environment<Reply> {
  let messages: Awaited<ReturnType<typeof promptMessages>> = [];
  let answers = 0;
  let outcome: Outcome = { reward: null };
  return {
    async reset() {
      messages = await promptMessages(prompt, task.row);
      return messages;
    },
    async step(reply, { signal }) {
      answers++;
      const graded = await reward(task.row, reply, { task, messages, signal });
      outcome = typeof graded === "number" ? { reward: graded } : graded;
      const right = outcome.correct ?? (outcome.reward !== null && outcome.reward >= 1);
      const observation = `Not yet: ${feedback(outcome)}. Try again.`;
      return { observation, reward: outcome.reward, done: right || answers >= attempts };
    },
    score: () => outcome,
  };
}
