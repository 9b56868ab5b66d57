export type { Chat, DecodeOptions, IncrementalDecoder, RenderOptions } from "./chat.ts";
export { type LoadChatOptions, loadChat } from "./load-chat.ts";
