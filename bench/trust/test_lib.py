"""Checks of lib.py: python3 -m unittest discover -s bench/trust"""

import contextlib
import io
import subprocess
import sys
import types
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import lib  # noqa: E402


def last_line(*outcomes):
    report = lib.Report("limits", types.SimpleNamespace(carma="/bin/true", seed=1, out=None))
    for number, outcome in enumerate(outcomes):
        report.target(f"target {number}", outcome, "")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = report.finish()
    return code, printed.getvalue().splitlines()[-1]


class Reports(unittest.TestCase):
    def test_what_tried_nothing_did_not_pass(self):
        self.assertEqual(last_line(None), (0, "limits: SKIPPED, 0 of 1 targets missed, 1 skipped"))
        self.assertEqual(last_line(True, None), (0, "limits: PASS, 0 of 2 targets missed, 1 skipped"))
        self.assertEqual(last_line(True), (0, "limits: PASS, 0 of 1 targets missed, 0 skipped"))
        self.assertEqual(last_line(None, False), (1, "limits: FAIL, 1 of 2 targets missed, 1 skipped"))

    def test_a_binary_that_is_not_there_is_told_before_anything_is_tried(self):
        with self.assertRaises(OSError):
            lib.Report("limits", types.SimpleNamespace(carma="/no/such/carma", seed=1, out=None))

    def test_the_fingerprint_is_that_of_the_file(self):
        known = subprocess.run(["sha256sum", "/bin/true"], capture_output=True, text=True, check=True).stdout
        self.assertIn(f"sha256 {known[:12]}, ", lib.version_of("/bin/true"))


if __name__ == "__main__":
    unittest.main()
