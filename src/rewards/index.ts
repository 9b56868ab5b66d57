export { type ExactMatchOptions, exactMatch } from "./exact-match.ts";
export { firstInteger } from "./first-integer.ts";
export type { Grade } from "./grade.ts";
export { gsm8kAnswer } from "./gsm8k-answer.ts";
export { integersInOrder } from "./integers-in-order.ts";
export { matchesFormat } from "./matches-format.ts";
