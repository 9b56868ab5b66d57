"""An agent of Harbor in bash: asks the model for one command over HTTP, executes it, and waits `pause` seconds."""

from typing import override

from harbor.agents.agent_auth_resolution import ModelConnectionSpec
from harbor.agents.capabilities import AgentCapabilities
from harbor.agents.installed.base import NonZeroAgentExitCodeError
from harbor.models.model_api_format import ModelApiFormat
from hone_harbor.shell_agent import ShellAgent

# The name of the shell is for tests that kill it.
SCRIPT = r"""exec -a hone-bash-agent bash -c '
address=${BASE_URL#http://}; host=${address%%/*}; exec 3<>/dev/tcp/${host%:*}/${host#*:}
body="{\"messages\":[{\"role\":\"user\",\"content\":\"Which command?\"}]}"
printf "%s\r\n" "POST /${address#*/}/chat/completions HTTP/1.1" "Host: $host" "Authorization: Bearer $OPENAI_API_KEY" \
  "Connection: close" "Content-Type: application/json" "Content-Length: ${#body}" "" >&3
printf %s "$body" >&3
answer=$(cat <&3); command=${answer#*\"content\":\"}; eval "${command%%\"*}"; sleep $PAUSE; exit 0'"""


class BashAgent(ShellAgent):
    MODEL_CONNECTION = ModelConnectionSpec(supported_api_formats=[ModelApiFormat.OPENAI_CHAT_COMPLETIONS])
    capabilities = AgentCapabilities(base_url=True)

    def __init__(self, *args, pause: float = 0, **kwargs):
        super().__init__(*args, command=SCRIPT, **kwargs)
        self.pause = pause

    @override
    async def run(self, instruction, environment, context) -> None:
        env = {**self._extra_env, "BASE_URL": self._base_url, "PAUSE": str(self.pause)}
        done = await environment.exec(self.command, env=env)
        if done.return_code != 0:
            raise NonZeroAgentExitCodeError(f"exit code {done.return_code}")
