"""The clients of `launch`, one file each."""
