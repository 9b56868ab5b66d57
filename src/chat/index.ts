export { type LoadChatOptions, loadChat } from "./chat.ts";
export type { Chat, DecodeOptions, IncrementalDecoder, RenderOptions } from "./types.ts";
