/** For tests: an episode with a tool call and a side call. */
import type { ChatMessage } from "../../chat/messages.ts";
import { runWorkflow } from "../../testing/scripted.ts";
import type { Episode } from "../../trajectories/types.ts";

export async function atifEpisode(): Promise<Episode> {
  const tools = [{ name: "add", description: "Adds.", parameters: { type: "object", properties: {} } }];
  const [episode] = await runWorkflow({
    rows: [{}],
    reply: (messages) =>
      messages.at(-1)?.content === "What is 1?"
        ? { reasoning: "I add.", text: "", toolCalls: [{ name: "add", arguments: { a: 1 } }] }
        : "It is 1.",
    async workflow(_, { model }) {
      const messages: ChatMessage[] = [
        { role: "system", content: "You add." },
        { role: "user", content: "What is 1?" },
      ];
      const first = await model.chat(messages, { tools });
      messages.push(first.message, { role: "tool", content: "1", toolCallId: first.toolCalls[0]!.id });
      const second = await model.chat(messages, { tools });
      messages.push(second.message, { role: "user", content: "thanks" });
      await model.chat(messages, { tools });
      await model.as("side").chat([{ role: "user", content: "A title?" }]);
      return { reward: 1, correct: true, rewards: { side: null } };
    },
  });
  return episode!;
}
