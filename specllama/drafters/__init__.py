"""Sources of draft tokens, one file each. A drafter proposes; it never decides."""
