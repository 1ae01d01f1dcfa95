"""Records, run directories, jobs, machines and fakes that tests are made from."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""
