/** Scorers of Mastra as rewards, with the package itself. */
import { createScorer } from "@mastra/core/evals";
import { singleTurn } from "hone-rl";
import { scorers } from "hone-rl/scorers";
import { runWorkflow } from "hone-rl/testing";
import { expect, test } from "vitest";

const contains = createScorer({ id: "contains", description: "The output contains the expected text." })
  .generateScore(({ run }) => Number(String(run.output).includes(String(run.groundTruth))))
  .generateReason(({ score }) => (score === 1 ? "it does" : "it does not"));

test.each([
  ["It is Paris.", 1, "it does"],
  ["It is Rome.", 0, "it does not"],
])("the reply %s gets %d", async (reply, reward, reason) => {
  const workflow = singleTurn<{ expected: string }>({
    prompt: () => "What is the capital of France?",
    reward: scorers([contains]),
  });
  const [episode] = await runWorkflow({ workflow, rows: [{ expected: "Paris" }], reply: () => reply });
  expect(episode?.trajectories[0]?.reward).toBe(reward);
  expect(episode?.metrics).toMatchObject({ "reward/contains": reward });
  expect(JSON.stringify(episode)).toContain(`(${reason})`);
});
