/** Grades one reply to one row as a run would. */
import { fromRows } from "../../data/dataset.ts";
import type { ScriptLine } from "../../testing/index.ts";
import { runWorkflow } from "../../testing/scripted.ts";
import { type OpenaiRftOptions, openaiRft } from "./experiment.ts";
import type { RftGrader } from "./schema.ts";

export const user = [{ role: "user", content: "?" }];

export async function grade(grader: RftGrader, item: object, reply: ScriptLine, more: Partial<OpenaiRftOptions> = {}) {
  const rows = [{ messages: user, ...item }];
  const experiment = openaiRft({ train: fromRows("rows", rows), grader, ...more });
  const [episode] = await runWorkflow({
    workflow: experiment.workflow,
    rows: [experiment.train.task(0).row],
    reply: () => reply,
    raiseOnError: false,
  });
  const { trajectories, explanation, metrics, correct, failure } = episode!;
  return { reward: trajectories[0]!.reward, explanation, metrics, correct, failure };
}

export const check = (
  operation: "eq" | "ne" | "neq" | "like" | "ilike",
  input = "{{ sample.output_text }}",
  reference = "{{item.answer}}",
) => ({ type: "string_check", input, reference, operation }) as const;
export const fuzzy = {
  type: "text_similarity",
  input: "{{sample.output_text}}",
  reference: "{{item.answer}}",
  evaluation_metric: "fuzzy_match",
} as const;
export const multi = (calculate_output: string) => ({
  type: "multi" as const,
  graders: { exact: check("eq"), close: fuzzy },
  calculate_output,
});
