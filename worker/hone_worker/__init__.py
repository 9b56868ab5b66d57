"""The local engine's tensor arithmetic: loads a model, samples, trains, saves. It does not know algorithms."""
