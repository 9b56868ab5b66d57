/** What happens to an attempt at a task, as it happens: for the run's journal. */

/** The stages of its code have the names that the workflow gives them; see `WorkflowContext.stage`. */
export type AttemptChange =
  | { state: "start" }
  | { state: "stage"; stage: string }
  /** A model call was made. `call` counts from 0 within the attempt. */
  | { state: "call"; call: number; role: string }
  /** It was answered: tokens of prompt and reply, names of called tools, and the versions of the weights that sampled. */
  | ({
      state: "answer";
      prompt: number;
      tokens: number;
      tools?: string[];
      versions: readonly [number, number];
    } & CallEnd)
  | ({ state: "unanswered"; message: string } & CallEnd);

interface CallEnd {
  call: number;
  /** Milliseconds in the sample queue, until an engine call began; absent: none. */
  queued?: number;
}

export type AttemptLife = { task: string; rollout: number; attempt: number } & AttemptChange;
