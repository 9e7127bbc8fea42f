"""A node of the ssh controller: what is parsed, and the command that ssh gets for each kind of shell."""

import argparse
import shlex
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "verification"))
from multihost.node import Node  # noqa: E402

WSL = "name=b;ssh=user@host;repo=/home/user/fakegpu;python=/opt/torch/bin/python;shell=wsl"


def test_posix_command_survives_two_shells() -> None:
    node = Node.parse("name=a;ssh=host;repo=/home/the user/it's;python=/opt/p y/python")
    *front, remote = node.command(["ssh", "-T"])
    assert front == ["ssh", "-T", "host"]
    shell, flag, inner = shlex.split(remote)
    assert (shell, flag) == ("sh", "-c")
    assert shlex.split(inner) == ["cd", "/home/the user/it's", "&&", "exec", "/opt/p y/python", "verification/multihost/agent.py"]


def test_wsl_command_uses_double_quotes_only() -> None:
    remote = Node.parse(WSL).command(["ssh"])[-1]
    assert remote == (
        'wsl.exe -e sh -c "cd /home/user/fakegpu && exec /opt/torch/bin/python verification/multihost/agent.py"'
    )


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("name=a;ssh=h;repo=/r", "no python"),
        ("name=a;ssh=h;repo=/r;python=p;port=2", "unknown port"),
        ("name=a;ssh=h;repo=r;python=p", "an absolute repo"),
        ("name=a;ssh=-oProxyCommand=x;repo=/r;python=p", "an ssh destination"),
        (WSL.replace("/fakegpu", "/fake gpu"), "no blanks or quotes"),
    ],
    ids=["missing", "unknown", "relative", "option", "wsl-blank"],
)
def test_a_wrong_node_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=wrong):
        Node.parse(text)
