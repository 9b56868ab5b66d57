"""A learner of several processes that share one model, behind the protocol of hone_worker."""
