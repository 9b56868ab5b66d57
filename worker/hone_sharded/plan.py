"""Decides which rank computes which sequences. The plan is a pure function of the request and of numbers that all ranks
have agreed on, so all ranks compute the same plan."""

from hone_worker.training.sequences import Sequences, plan_padded


def plan(sequences: Sequences, groups: int, budget: int) -> list[list[list[int]]]:
    """Returns rounds of micro-batches, one per group of ranks, of at most `budget` tokens with padding. All groups have the
    same number of micro-batches, some of which may be empty. All groups compute about the same number of tokens."""
    lengths = {s: int(places[-1]) + 1 for s in range(len(sequences)) if len(places := sequences.places(s))}
    shares: list[list[int]] = [[] for _ in range(groups)]
    totals = [0] * groups
    for s in sorted(lengths, key=lambda s: -lengths[s]):
        group = totals.index(min(totals))
        shares[group].append(s)
        totals[group] += lengths[s]
    batches = [plan_padded(sequences, share, budget) for share in shares]
    rounds = max(map(len, batches))
    return [[mine[i] if i < len(mine) else [] for mine in batches] for i in range(rounds)]
