/** How Harbor's agents are directed to the gateway. */
import type { GatewayAddress } from "../agents/types.ts";
import { UserError } from "../errors.ts";
import { shellAgent } from "./forgeries.ts";

interface AgentFacts {
  /** The API that it speaks; default: OpenAI's chat completions. */
  api?: "chat" | "responses" | "messages";
  /** The name of the model's provider, where that of the API has another meaning for the agent. */
  provider?: string;
  /** It does not call a model. */
  withoutModel?: true;
  /** Why it cannot be trained. */
  refused?: string;
}

const closed = "its model cannot be replaced";

/** Facts about some of Harbor's agents. Any other is taken to call OpenAI's chat completions with tools. */
const facts: Record<string, AgentFacts> = {
  "claude-code": { api: "messages" },
  codex: { api: "responses" },
  // Its own provider "openai" calls the responses API.
  opencode: { provider: "hone" },
  oracle: { withoutModel: true },
  nop: { withoutModel: true },
  [shellAgent]: { withoutModel: true },
  "gemini-cli": { refused: "it calls Google's generateContent, which the gateway does not have" },
  "cursor-cli": { refused: closed },
  devin: { refused: closed },
  "rovodev-cli": { refused: closed },
  "cortex-code": { refused: closed },
};

const apis = {
  chat: { provider: "openai", key: "OPENAI_API_KEY", format: "openai_chat_completions" },
  responses: { provider: "openai", key: "OPENAI_API_KEY", format: "openai_responses" },
  messages: { provider: "anthropic", key: "ANTHROPIC_API_KEY", format: "anthropic_messages" },
} as const;

/** @throws UserError for an agent that cannot be trained */
export function agentFacts(name: string): AgentFacts {
  const { refused, ...found } = facts[name] ?? {};
  if (refused === undefined) return found;
  throw new UserError(`the agent ${name} cannot be trained: ${refused}`, {
    hint: "pi, mini-swe-agent, opencode, claude-code and codex can",
  });
}

/** The part of Harbor's AgentConfig that says where the model is. */
export function modelConnection(name: string, gateway: GatewayAddress): Record<string, unknown> {
  const { api = "chat", provider, withoutModel } = agentFacts(name);
  if (withoutModel) return {};
  const { key, format, ...of } = apis[api];
  return {
    model_name: `${provider ?? of.provider}/policy`,
    base_url: api === "messages" ? gateway.anthropicBaseURL : gateway.baseURL,
    model_api_key_name: key,
    model_api_format: format,
    env: { [key]: gateway.apiKey },
  };
}
