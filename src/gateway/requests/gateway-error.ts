/** The error of a call that cannot be answered, in the shape of each API. */

export type ErrorKind =
  /** The request is wrong, or asks for something that cannot be guaranteed. */
  | "invalid_request"
  /** The prompt is longer than the limits allow. */
  | "prompt_too_long"
  | "authentication"
  /** A web page sent the request. */
  | "forbidden"
  | "not_found"
  /** The rollout of this address has ended. */
  | "session_ended"
  | "too_large"
  /** The body is not declared as JSON. */
  | "wrong_type"
  /** The client wants a WebSocket. */
  | "no_websocket"
  /** The engine did not answer with a sample. */
  | "engine_failed"
  | "timeout";

type Spelling = [status: number, openaiType: string, openaiCode: string | null, anthropicType: string];

const invalid = "invalid_request_error";
const spellings: Record<ErrorKind, Spelling> = {
  invalid_request: [400, invalid, null, invalid],
  prompt_too_long: [400, invalid, "context_length_exceeded", invalid],
  authentication: [401, "authentication_error", "invalid_api_key", "authentication_error"],
  forbidden: [403, invalid, "forbidden", "permission_error"],
  not_found: [404, invalid, "not_found", "not_found_error"],
  session_ended: [410, invalid, "session_ended", invalid],
  too_large: [413, invalid, "request_too_large", "request_too_large"],
  wrong_type: [415, invalid, "unsupported_media_type", invalid],
  no_websocket: [426, invalid, "websocket_not_supported", invalid],
  engine_failed: [500, "server_error", "engine_failed", "api_error"],
  timeout: [504, "server_error", "timeout", "timeout_error"],
};

/** A message may repeat what a client sent. */
const longestMessage = 4000;

export class GatewayError extends Error {
  override name = "GatewayError";
  readonly kind: ErrorKind;
  /** The parameter that is wrong, as the client spelled it. */
  readonly parameter: string | null;

  constructor(kind: ErrorKind, message: string, options: { parameter?: string; cause?: unknown } = {}) {
    super(
      message.length > longestMessage ? `${message.slice(0, longestMessage)}...` : message,
      options.cause === undefined ? undefined : { cause: options.cause },
    );
    this.kind = kind;
    this.parameter = options.parameter ?? null;
  }

  get status(): number {
    return spellings[this.kind][0];
  }
}

export type ErrorShape = (error: GatewayError) => unknown;

/** `{ error: { message, type, param, code } }` */
export const openaiError: ErrorShape = ({ message, parameter, kind }) => {
  const [, type, code] = spellings[kind];
  return { error: { message, param: parameter, type, code } };
};

/** `{ type: "error", error: { type, message } }` */
export const anthropicError: ErrorShape = ({ message, kind }) => ({
  type: "error",
  error: { type: spellings[kind][3], message },
});
