/** Two roles that learn together: one solves, the other judges whether the solution is right. */
import { joinContents } from "../chat/images/content.ts";
import type { Content } from "../chat/messages.ts";
import { mean } from "../statistics.ts";
import { type PromptOptions, promptMessages } from "./prompt.ts";
import type { CallParams, Outcome, Reply, Reward, Workflow } from "./types.ts";

export interface SolverJudgeOptions<Row> extends PromptOptions<Row> {
  /** Grades a solution; its `correct` is what the judge has to find out. */
  reward: Reward<Row>;
  /** Solutions per rollout, each judged by itself. Default 1. */
  attempts?: number;
  /** What the judge is asked. Default: the task with its images, the solution, and to answer yes or no. */
  question?: (row: Row, solution: string) => Content;
  /** Reads the judge's verdict; null when it gave none. Default: the last "yes" or "no" of its reply. */
  verdict?: (reply: Reply) => boolean | null;
  params?: { solver?: CallParams; judge?: CallParams };
}

/**
 * Solvers are compared with solvers, judges with judges. A judge earns 1 for a right verdict, 0 for a wrong one or none;
 * if the solution's reward is unknown, the judge's is unknown too.
 *
 * @example
 * solverJudge<Row>({ prompt: (row) => row.question, reward: (row, reply) => mathAnswer(reply.text, row.answer), attempts: 2 })
 */
export function solverJudge<Row>(options: SolverJudgeOptions<Row>): Workflow<Row> {
  const { prompt, system, reward, attempts = 1, question, verdict = lastYesOrNo, params = {} } = options;
  return async (task, { model, stage, signal }) => {
    const messages = await promptMessages(prompt, task.row, system);
    const asked = joinContents(
      ...messages.flatMap(({ content }, index) => (index === 0 ? [content] : ["\n\n", content])),
    );
    const one = async (instance: number) => {
      stage("solver");
      const solution = await model.as("solver", instance).chat(messages, params.solver);
      stage("judge");
      const text = question?.(task.row, solution.text) ?? defaultQuestion(asked, solution.text);
      const judged = await model.as("judge", instance).chat([{ role: "user", content: text }], params.judge);
      stage("reward");
      const graded = await reward(task.row, solution, { task, messages, signal });
      const outcome: Outcome = typeof graded === "number" ? { reward: graded } : graded;
      const correct = outcome.correct ?? (outcome.reward === null ? null : outcome.reward >= 1);
      const said = verdict(judged);
      const judgeReward = correct === null ? null : Number(said === correct);
      return { instance, outcome, correct, said, judgeReward };
    };
    const tries = await Promise.all(Array.from({ length: attempts }, (_, index) => one(index + 1)));
    const known = tries.flatMap(({ outcome }) => outcome.reward ?? []);
    const judged = tries.flatMap(({ judgeReward }) => judgeReward ?? []);
    const metrics: Record<string, number> = { judge_silent: tries.filter(({ said }) => said === null).length };
    if (judged.length > 0) metrics.judge_right = mean(judged);
    return {
      reward: known.length === 0 ? null : mean(known),
      correct: tries.some(({ correct }) => correct === true),
      explanation: tries.map(explain).join("; "),
      rewards: Object.fromEntries(
        tries.flatMap(({ instance, outcome, judgeReward }) => [
          [`solver#${instance}`, outcome.reward],
          [`judge#${instance}`, judgeReward],
        ]),
      ),
      metrics,
    };
  };
}

const defaultQuestion = (task: Content, solution: string) =>
  joinContents(
    "Task:\n",
    task,
    `\n\nProposed answer:\n${solution}\n\nIs the proposed answer correct? Answer with yes or no.`,
  );

function lastYesOrNo({ text }: Reply): boolean | null {
  const found = [...text.toLowerCase().matchAll(/\b(yes|no)\b/g)].at(-1)?.[1];
  return found === undefined ? null : found === "yes";
}

function explain({ instance, outcome, said }: { instance: number; outcome: Outcome; said: boolean | null }): string {
  const heard = said === null ? "no verdict" : said ? "judged right" : "judged wrong";
  return `solver ${instance}: ${outcome.explanation ?? `reward ${outcome.reward}`}, ${heard}`;
}
