"""Errors that are not defects: a user's mistake, a failure of another process."""


class UserMistake(Exception):
    """The user can fix this: a bad folder, a bad argument, too little memory. Answered with `kind: user`."""

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint


class RunFailure(Exception):
    """Another process or the machine failed. Answered with `kind: run`."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
