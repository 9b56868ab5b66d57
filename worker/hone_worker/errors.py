"""Errors whose cause is known. All others are defects of Hone."""


class UserMistake(Exception):
    """The user can fix this: a bad folder, a bad argument, too little memory. Answered with `kind: user`."""

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint


class RunFailure(Exception):
    """Another process or the machine failed. Answered with `kind: run`."""


class ProtocolError(Exception):
    """The message breaks the protocol. This is a defect of Hone, not a mistake of its user."""


class Cancelled(Exception):
    """The loss failed in the trainer's process."""


class UnusableImage(Exception):
    """The reason why an image cannot be used, without a final period."""


class Stopped(Exception):
    """Another thread ended the work, because its result is no longer needed."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text that is not blank, or its class."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
