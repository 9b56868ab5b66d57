"""Errors that travel to the person: their mistakes, told apart from the worker's own."""


class UserMistake(Exception):
    """Something the user can mend: a bad folder, argument or too little memory. Answered with `kind:
    user`."""

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint
