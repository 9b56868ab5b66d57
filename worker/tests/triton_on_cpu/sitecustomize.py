"""First on PYTHONPATH: Triton interprets its kernels, so that vLLM's package for CPUs runs its second model runner, which returns the
experts of tokens."""

import os
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"
import triton.backends  # noqa: E402

triton.backends.backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)
