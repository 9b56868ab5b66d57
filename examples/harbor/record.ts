/** Demonstrations: one trial of the same agent with a script in place of the model, rewritten for each task. */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import type { Dataset, Workflow } from "hone-rl";
import { type AtifRow, atifRows, type HarborTask, toAtif } from "hone-rl/harbor";
import { runWorkflow } from "hone-rl/testing";
import { answerFile, wordOf } from "./tasks.ts";

/** A careless demonstrator: two of three demonstrations write into another file, which earns nothing. */
const files = [answerFile, "result.txt", "result.txt"];

const commandFor = (instruction: string, file: string) => `echo ${wordOf(instruction)} > ${file}`;

/** @returns conversations in the agent's exact form; the trial runs once */
export async function demonstrations(
  file: string,
  tasks: Dataset<HarborTask>,
  workflow: Workflow<HarborTask>,
): Promise<AtifRow[]> {
  const rows = Array.from({ length: tasks.size }, (_, index) => tasks.task(index).row);
  const first = rows[0]!;
  const command = commandFor(first.instruction, answerFile);
  if (!existsSync(file)) {
    const [episode] = await runWorkflow({
      workflow,
      rows: [first],
      reply: (messages) =>
        messages.at(-1)?.role === "tool" ? "Done." : { toolCalls: [{ name: "bash", arguments: { command } }] },
      timeoutSeconds: 900,
    });
    writeFileSync(file, JSON.stringify(atifRows(toAtif(episode!)!)));
  }
  const recorded = readFileSync(file, "utf8");
  const inside = (text: string) => JSON.stringify(text).slice(1, -1);
  return rows.flatMap(({ instruction }) =>
    files.flatMap((name) => {
      const told = recorded.replaceAll(inside(first.instruction), inside(instruction));
      return JSON.parse(told.replaceAll(command, commandFor(instruction, name))) as AtifRow[];
    }),
  );
}
