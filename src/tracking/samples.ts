/** A few episodes of a step as rows for people: W&B shows them as a table, TensorBoard as text. */
import type { Episode } from "../trajectories/types.ts";

export interface SampleRow {
  task: string;
  prompt: string;
  reply: string;
  reward: number | null;
  reason: string;
}

const mostRows = 8;

/** The first rollouts of different tasks come first. */
export function sampleRows(episodes: readonly Episode[]): SampleRow[] {
  const ordered = [...episodes].sort((left, right) => left.rollout - right.rollout);
  return ordered.slice(0, mostRows).map(({ id, trajectories, explanation, failure }) => {
    const steps = trajectories.flatMap((trajectory) => trajectory.steps);
    const last = steps.at(-1);
    const reward = failure ? null : (trajectories[0]?.reward ?? null);
    return {
      task: id,
      prompt: last?.messages.findLast(({ role }) => role !== "assistant")?.content ?? "",
      reply: last?.text ?? "",
      reward: reward !== null && Number.isFinite(reward) ? reward : null,
      reason: failure?.message ?? explanation ?? "",
    };
  });
}

/** As Markdown: what TensorBoard's text tab renders. */
export function samplesMarkdown(rows: readonly SampleRow[]): string {
  const cell = (text: string) =>
    text
      .replaceAll("&", "&amp;")
      .replaceAll("<", "&lt;")
      .replaceAll("|", "\\|")
      .replaceAll(/\s*\n\s*/g, " ");
  return [
    "| task | prompt | reply | reward | reason |",
    "|---|---|---|---|---|",
    ...rows.map(
      ({ task, prompt, reply, reward, reason }) =>
        `| ${[task, prompt, reply, reward === null ? "unknown" : String(reward), reason].map(cell).join(" | ")} |`,
    ),
  ].join("\n");
}
