"""A learner of several processes that share one model, behind the protocol of hone_worker. It only trains.

It is a separate worker, because the one-process worker joins linear layers and merges adapters into them to be fast on one
device, while FSDP and ZeRO need unchanged transformers modules. Both share the code for loading, outputs of the last layer,
AdamW, states and exports.

- A loss is a sum over tokens, so gradients are summed over ranks, not averaged. After three AdamW steps the weights equal those of
  one process within 1e-5 in float32 (tests/test_sharded.py). Another order of the same sum leaves the gradient's norm equal
  within 1e-6, so two runs sample the same tokens until a random number falls into such a gap, about once in 100,000 tokens.
- All ranks compute the same plan of sequences and microbatches, from the request and the smallest token budget of all ranks. A
  rank with fewer microbatches computes a dummy without a gradient.
- Out of memory ends the run: a rank that fails within a layer leaves the others in a collective, and the state of their weights
  is not known. (The one-process worker halves its microbatches instead.)
- A collective fails after 10 minutes, without a setting: ranks wait there only for ranks that compute the same operation, never for
  TypeScript, the download of a model, or files that rank 0 writes.
- Every rank loads the whole model and then keeps its shard: the layers for adapters and the output layer are found in the real
  weights. Adapters are not merged; trained weights are float32 masters, rounded to nearest when they are gathered.
- Checkpoints have the format of one process. Rank 0 gathers and writes all weights, which needs 12 bytes per parameter of its memory.
- The vision part is not sharded: ranks without images could not take part in gathering it. Every rank has an unchanged copy.
"""
