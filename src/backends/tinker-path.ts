/** Whether text names a checkpoint that a Tinker service holds: `tinker://{run}/weights/{name}`. */
export const isTinkerPath = (text: string): boolean => text.startsWith("tinker://");
