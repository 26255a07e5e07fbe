"""What tests share: numbered rows, stores that break, servers that lie, processes of their own."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # a process of a test finds `tests` with it in its path
