/** What happens to an attempt at a task, as it happens: for the run's journal. */

/** The stages of its code have the names that the workflow gives them; see `WorkflowContext.stage`. */
export type AttemptChange =
  | { state: "start" }
  | { state: "stage"; stage: string }
  /** A model call was made. `call` counts from 0 within the attempt. */
  | { state: "call"; call: number; role: string }
  /** It was answered: tokens of prompt and reply, tool calls, and the versions of the weights that sampled. */
  | { state: "answer"; call: number; prompt: number; tokens: number; tools?: number; versions: [number, number] }
  | { state: "unanswered"; call: number; message: string };

export type AttemptLife = { task: string; rollout: number; attempt: number } & AttemptChange;
