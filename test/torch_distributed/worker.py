"""Runs the tests named on stdin, one after the other, in one process; started by run.py under ./fgpu.

For each test one JSON line goes to the file RESULTS: first {"test", "state": "started"}, then the same with state passed,
failed or skipped, text (reason or error) and seconds. What the test's processes print goes to stdout. Bounds
per test are torch's own (DISTRIBUTED_TESTS_DEFAULT_TIMEOUT, and its table, to which TEST_SECONDS adds); a worker that
does not come back is run.py's to end.
"""

import json
import os
import sys
import time
import unittest


class Recorder(unittest.TestResult):
    """Writes a line when a test starts and one when it ends."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def write(self, test: unittest.TestCase, state: str, **values: object) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps({"test": test.id().rpartition(".")[2], "state": state, **values}) + "\n")

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.began, self.outcome = time.monotonic(), ("passed", "")
        sys.stdout.flush()
        self.write(test, "started")

    def addError(self, test: unittest.TestCase, err) -> None:
        self.outcome = ("failed", self._exc_info_to_string(err, test))

    def addFailure(self, test: unittest.TestCase, err) -> None:
        self.addError(test, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.outcome = ("skipped", reason)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        state, text = self.outcome
        self.write(test, state, text=text, seconds=round(time.monotonic() - self.began, 2))


def main(results: str) -> None:
    """Run the tests of stdin, or with --list print the names of all."""
    from suite_case import TestDistBackendWithSpawn
    from torch.testing._internal import common_distributed

    if results == "--list":
        print("\n".join(unittest.TestLoader().getTestCaseNames(TestDistBackendWithSpawn)))
        return
    common_distributed.TIMEOUT_OVERRIDE.update(json.loads(os.environ.get("TEST_SECONDS", "{}")))
    unittest.TestSuite(map(TestDistBackendWithSpawn, sys.stdin.read().split())).run(Recorder(results))


if __name__ == "__main__":
    main(sys.argv[1])
