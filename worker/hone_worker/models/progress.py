"""Reports how much of a model has been downloaded and loaded, through the progress bars of the libraries that do it."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm
from transformers.utils import logging

_report: Callable[[str], None] | None = None


class Bar(tqdm):
    """A progress bar that sends a text for each twentieth, at most one per second, instead of drawing."""

    _sent = 0

    def __init__(self, *args, **settings):
        # The hub's client also passes the name of its bar.
        settings = {key: value for key, value in settings.items() if key not in ("name", "disable")}
        super().__init__(*args, **settings, disable=_report is None, file=io.StringIO(), mininterval=1)

    def display(self, *_, **__) -> None:
        reached = 20 * self.n // self.total if self.total else 0
        if _report is None or reached <= self._sent:
            return
        self._sent = reached
        if self.unit == "B":
            _report(f"downloading: {self.n / 1e9:.1f} of {self.total / 1e9:.1f} GB")
        elif self.desc == "Loading weights":
            _report(f"loading weights: {100 * self.n // self.total}%")


@contextmanager
def reported_to(report: Callable[[str], None]) -> Iterator[None]:
    """Calls `report` with the progress of downloads and of loading inside."""
    global _report
    _report = report
    logging.set_tqdm_hook(lambda _, args, settings: Bar(*args, **settings))
    try:
        yield
    finally:
        _report = None
        logging.set_tqdm_hook(None)
