export { type LoadChatOptions, loadChat } from "./chat.ts";
export {
  type CallOptions,
  type Conversation,
  openConversation,
  type SequenceStart,
  type Turn,
} from "./conversation.ts";
export {
  type ChatMessage,
  type ParsedReply,
  type ReplyProblem,
  type ToolCall,
  type ToolDefinition,
  toMessage,
} from "./messages.ts";
export type { Chat, DecodeOptions, IncrementalDecoder, ParseOptions, RenderOptions } from "./types.ts";
