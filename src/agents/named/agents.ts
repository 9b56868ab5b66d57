/** Agents by rLLM's names. They only keep the conversation; environments do the rest of what rLLM's agents do. */
import { UserError } from "../../errors.ts";
import { chatAgent } from "../chat-agent.ts";
import type { AgentFactory } from "./parts.ts";
import { checkArguments } from "./parts.ts";

const names = ["math_agent", "code_agent", "tool_agent", "frozenlakeagent"];

export const builtInAgents: Readonly<Record<string, AgentFactory>> = Object.fromEntries(
  names.map((name) => [name, conversationAgent(name)]),
);

function conversationAgent(name: string): AgentFactory {
  return (args) => {
    checkArguments(name, args, ["system_prompt"]);
    const { system_prompt: system = null } = args;
    if (system !== null && typeof system !== "string") {
      throw new UserError(`the system_prompt of ${name} must be text, not ${JSON.stringify(system)}`);
    }
    return chatAgent({ system: system ?? undefined });
  };
}
