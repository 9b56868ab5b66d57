"""Prints the most floating-point operations a second that a bfloat16 matrix product reaches here."""
import json
import time

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
best = 0.0
for size in (1024, 2048):
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(8):
        start = time.perf_counter()
        product = left @ right
        if device == "cuda":
            torch.cuda.synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
print(json.dumps({"flops": best}))
