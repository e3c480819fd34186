"""The command, but prompts are kept on disk however fast they were read: tiny models read them in no time."""

from __future__ import annotations

from specllama.__main__ import main
from specllama.config import defaults

if __name__ == "__main__":
    defaults.KEPT_SECONDS = defaults.KEPT_SECONDS_OF_RUN = 0.0
    main()
