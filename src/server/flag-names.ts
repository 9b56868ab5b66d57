/** Engines give advice in the keys of a run's configuration; `hone serve` has flags in their place. */

const names: readonly (readonly [RegExp, string])[] = [
  [/\blocal\.gradient_checkpointing=true/g, "--gradient-checkpointing"],
  [/\blocal\.(device|dtype|threads)=(\w+)/g, "--$1 $2"],
  [/\blocal\.(device|dtype|threads)\b/g, "--$1"],
  [/\blocal\.micro_batch_tokens\b/g, "--micro-batch-tokens"],
  [/\blocal\.max_sample_rows\b/g, "--max-sample-rows"],
  [/\bdata\.max_response_length\b/g, "max_tokens"],
];

/** The text with the flags of `hone serve`. */
export const withFlags = (text: string): string => names.reduce((each, [key, flag]) => each.replace(key, flag), text);
