"""An agent that runs one shell command, to check what a task pays for."""

from typing import override

from harbor.agents.base import BaseAgent


class ShellAgent(BaseAgent):
    def __init__(self, *args, command: str, **kwargs):
        super().__init__(*args, **kwargs)
        self.command = command

    @staticmethod
    @override
    def name() -> str:
        return "shell"

    @override
    def version(self) -> str:
        return "1"

    @override
    async def setup(self, environment) -> None:
        """Every container has a shell."""

    @override
    async def run(self, instruction, environment, context) -> None:
        await environment.exec(self.command)
