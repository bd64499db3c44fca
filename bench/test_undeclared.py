"""Checks of undeclared.py: python3 -m unittest discover -s bench"""

import contextlib
import io
import sys
import types
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))

import undeclared  # noqa: E402


def play(carma, makespan):
    job = {"kind": "10% SM", "slowdown": 1.0, "jct_s": 1.0, "wait_s": 0.0}
    losses = {"mean": 1.0, "p95": 1.0, "worst": 1.0}
    numbers = ("jct_s", "wait_s", "jobs_per_gpu", "most_on_a_gpu", "evicted", "out_of_memory", "not_completed", "energy_kj")
    made = {"carma": carma, "policy": "adaptive", "makespan_s": makespan, "slowdown": losses, "jobs": [job]}
    return {**dict.fromkeys(numbers, 1), **made}


class Reports(unittest.TestCase):
    def test_names_are_as_long_as_tells_them_apart(self):
        names = undeclared.short_names(["before/release/carma", "target/release/carma", "carma-old", "/carma"])
        self.assertEqual(list(names.values()), ["before/release/carma", "target/release/carma", "carma-old", "/carma"])
        self.assertEqual(list(undeclared.short_names(["before/carma", "after/carma"]).values()), ["before/carma", "after/carma"])
        self.assertEqual(list(undeclared.short_names(["a/before", "a/after"]).values()), ["before", "after"])

    def test_versions_of_one_file_name_are_two(self):
        two = ["/a/release/carma", "/b/release/carma"]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            undeclared.report([play(two[0], 100), play(two[1], 200)], types.SimpleNamespace(carma=two, kinds="light"))
        lines = printed.getvalue().splitlines()
        self.assertTrue(lines[1].startswith("a/release/carma adaptive") and " 100 " in lines[1], lines)
        self.assertTrue(lines[2].startswith("b/release/carma adaptive") and " 200 " in lines[2], lines)

    def test_a_search_has_no_command_twice_and_is_the_same_for_a_seed(self):
        options = types.SimpleNamespace(kinds=undeclared.SEARCH, jobs=40, gap=1.0)
        found = undeclared.arrivals(options, 3)
        self.assertEqual(found, undeclared.arrivals(options, 3))
        kinds = [kind for _, kind in found]
        self.assertEqual(len(set(kinds)), 40)
        self.assertTrue(all(undeclared.kind_name(kind) == "search" and 1.8 < kind[1] < 12 for kind in kinds))

    def test_one_program_is_not_set_beside_itself(self):
        said = io.StringIO()
        words = ["undeclared.py", "--carma", "/bin/true", "--carma", "/bin/../bin/true"]
        with mock.patch.object(sys, "argv", words), contextlib.redirect_stderr(said), self.assertRaises(SystemExit):
            undeclared.main()
        self.assertIn("named twice", said.getvalue())


if __name__ == "__main__":
    unittest.main()
