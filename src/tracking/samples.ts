/** A few episodes of a step as rows: Weights & Biases and Trackio show them as a table, TensorBoard as text. */
import { textOf } from "../chat/images/content.ts";
import { lastStep } from "../trajectories/last-step.ts";
import type { Episode } from "../trajectories/types.ts";

export interface SampleRow {
  task: string;
  prompt: string;
  reply: string;
  reward: number | null;
  reason: string;
}

const maxRows = 8;

/** Prefers different tasks to several rollouts of one. */
export function sampleRows(episodes: readonly Episode[]): SampleRow[] {
  const ordered = [...episodes].sort((left, right) => left.rollout - right.rollout);
  return ordered.slice(0, maxRows).map(({ id, trajectories, explanation, failure }) => {
    const last = lastStep(trajectories);
    const reward = failure ? null : (trajectories[0]?.reward ?? null);
    return {
      task: id,
      prompt: textOf(last?.messages.findLast(({ role }) => role !== "assistant")?.content ?? ""),
      reply: last?.text ?? "",
      reward: Number.isFinite(reward) ? reward : null,
      reason: failure?.message ?? explanation ?? "",
    };
  });
}

/** For TensorBoard, whose text tab renders Markdown. */
export function samplesMarkdown(rows: readonly SampleRow[]): string {
  const toCell = (text: string) =>
    text
      .replaceAll("&", "&amp;")
      .replaceAll("<", "&lt;")
      .replaceAll("|", "\\|")
      .replaceAll(/\s*\n\s*/g, " ");
  const lines = rows.map(({ task, prompt, reply, reward, reason }) => {
    const cells = [task, prompt, reply, reward === null ? "unknown" : String(reward), reason];
    return `| ${cells.map(toCell).join(" | ")} |`;
  });
  return ["| task | prompt | reply | reward | reason |", "|---|---|---|---|---|", ...lines].join("\n");
}
