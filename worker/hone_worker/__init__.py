"""The local engine's tensor arithmetic: loads a language model, samples, trains, saves. It knows no algorithm."""
