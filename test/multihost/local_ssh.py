#!/usr/bin/env python3
"""A stand-in for ssh: drops the options and runs the command in a shell of this machine, as sshd would.

Tests of the controller use it where no sshd can be started: everything but the connection itself is real.
"""

import os
import sys

WITH_VALUE = ("-o", "-F", "-i", "-p", "-l")


def main() -> None:
    words = sys.argv[1:]
    while words and words[0].startswith("-"):
        words = words[2 if words[0] in WITH_VALUE else 1 :]
    if words[0] == "unreachable":
        print("ssh: connect to host unreachable port 22: No route to host", file=sys.stderr)
        sys.exit(255)
    os.execvp("sh", ["sh", "-c", " ".join(words[1:])])


if __name__ == "__main__":
    main()
