"""Checks of first_run.py and beside.sh: python3 -m unittest discover -s bench/h200"""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import first_run  # noqa: E402


class Daemons(unittest.TestCase):
    """A shell script in place of carma."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = folder.name
        self.carma = os.path.join(self.out, "carma")

    def serve(self, text):
        Path(self.carma).write_text(f"#!/bin/sh\n{text}\n")
        os.chmod(self.carma, 0o755)
        return types.SimpleNamespace(carma=self.carma, virtual=True)

    def test_why_it_did_not_start_is_told(self):
        options = self.serve("echo there is no driver >&2; exit 3")
        with self.assertRaisesRegex(RuntimeError, "exit code 3; the daemon's log ends with:\nthere is no driver"):
            first_run.Carma(options, "exclusive", "mps")

    def test_one_that_never_reads_its_gpus_is_ended(self):
        pid = os.path.join(self.out, "pid")
        options = self.serve(f"""
            case "$*" in
            *serve*) echo $$ >{pid}; echo no reading; : >"$2"; exec sleep 1000 ;;
            *queue*) echo '{{"jobs": []}}' ;;
            *) echo '{{"gpus": [{{"status": "lost"}}]}}' ;;
            esac""")
        wait_for = first_run.wait_for
        with mock.patch.object(first_run, "wait_for", lambda check, _, what: wait_for(check, 3, what)):
            with self.assertRaisesRegex(RuntimeError, "in vain for the first reading; .*\nno reading"):
                first_run.Carma(options, "exclusive", "mps")
        with self.assertRaises(ProcessLookupError):
            os.kill(int(Path(pid).read_text()), 0)

    def test_a_part_that_failed_is_in_the_exit_code(self):
        self.serve("exit 3")
        words = ["first_run.py", "--carma", self.carma, "--out", self.out, "--virtual", "--part"]
        for part in ("modes", "faults"):
            with mock.patch.object(sys, "argv", [*words, part]), contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(first_run.main(), 1, part)


class Beside(unittest.TestCase):
    def test_the_worst_exit_code_is_its_own(self):
        with tempfile.TemporaryDirectory() as out:
            run = subprocess.run(
                [str(HERE / "beside.sh")], input="echo one\nexit 3\nexit 1\n", env={**os.environ, "OUT": out},
                capture_output=True, text=True,
            )
        self.assertEqual(run.returncode, 3, run.stderr)
        for said in ("GPU 0, exit code 0:\none\n", "GPU 1, exit code 3:\n", "GPU 2, exit code 1:\n"):
            self.assertIn(said, run.stdout)


if __name__ == "__main__":
    unittest.main()
