"""Checks of lib.py: python3 -m unittest discover -s bench/trust"""

import subprocess
import sys
import types
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import lib  # noqa: E402


class Reports(unittest.TestCase):
    def test_a_binary_that_is_not_there_is_told_before_anything_is_tried(self):
        with self.assertRaises(OSError):
            lib.Report("limits", types.SimpleNamespace(carma="/no/such/carma", seed=1, out=None))

    def test_the_fingerprint_is_that_of_the_file(self):
        known = subprocess.run(["sha256sum", "/bin/true"], capture_output=True, text=True, check=True).stdout
        self.assertIn(f"sha256 {known[:12]}, ", lib.version_of("/bin/true"))


if __name__ == "__main__":
    unittest.main()
