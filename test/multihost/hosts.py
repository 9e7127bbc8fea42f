"""Hosts for tests: network namespaces with a name, an address and an sshd of their own, on a bridge; and checkouts.

Needs root, iproute2 and openssh-server; `unavailable()` says what is missing. The namespaces share this machine's
processes and files, so a "host" is as real as its network, host name, ssh login and checkout.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def unavailable() -> str:
    """Why namespaces cannot be made here, '' if they can."""
    if os.geteuid():
        return "network namespaces need root"
    for program, package in (("ip", "iproute2"), ("sshd", "openssh-server"), ("ssh", "openssh-client")):
        if not shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
            return f"no {program} (Debian: {package})"
    name = f"fgtry{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "this machine does not permit network namespaces"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


def place(source: str, target: str) -> None:
    """A hard link, or a copy where the folders are on different file systems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def checkout(folder: Path) -> Path:
    """A clone of this repository's commit, with what is built here beside it."""
    subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(folder)], check=True)
    shutil.copytree(ROOT / "fakegpu" / "lib", folder / "fakegpu" / "lib", copy_function=place)
    for built in (ROOT / "fakegpu" / "_core").glob("*.so"):
        place(built, folder / "fakegpu" / "_core" / built.name)
    (folder / "build").mkdir()
    if (ROOT / "build" / "torchhost").exists():
        (folder / "build" / "torchhost").symlink_to(ROOT / "build" / "torchhost")
    return folder


def do(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


class Hosts:
    """A context: `names` are hosts; `address[name]`, `address6[name]`, and `ssh`, the client's command."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.folder, self.names = folder, names
        self.tag = f"fg{os.getpid() % 100000}"
        net = os.getpid() % 200 + 20
        self.gateway, self.gateway6 = f"10.231.{net}.1", f"fd00:{net:x}::1"
        self.address = {name: f"10.231.{net}.{index + 2}" for index, name in enumerate(names)}
        self.address6 = {name: f"fd00:{net:x}::{index + 2}" for index, name in enumerate(names)}
        self.servers: list[subprocess.Popen] = []
        self.ssh = f"ssh -F {folder}/ssh_config"

    def namespace(self, name: str) -> str:
        return f"{self.tag}-{name}"

    def inside(self, name: str, *words: str) -> list[str]:
        """A command in a host."""
        return ["ip", "netns", "exec", self.namespace(name), *words]

    def _link(self, index: int) -> str:
        return f"{self.tag}v{index}"

    def __enter__(self) -> "Hosts":
        try:
            self._network()
            self._keys()
            for name in self.names:
                self._serve(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _network(self) -> None:
        bridge = f"{self.tag}br"
        do("ip", "link", "add", bridge, "type", "bridge")
        do("ip", "addr", "add", f"{self.gateway}/24", "dev", bridge)
        do("ip", "-6", "addr", "add", f"{self.gateway6}/64", "dev", bridge, "nodad")
        do("ip", "link", "set", bridge, "up")
        for index, name in enumerate(self.names):
            space, outer = self.namespace(name), self._link(index)
            do("ip", "netns", "add", space)
            do("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
            do("ip", "link", "set", outer, "master", bridge, "up")
            do(*self.inside(name, "ip", "addr", "add", f"{self.address[name]}/24", "dev", "eth0"))
            do(*self.inside(name, "ip", "-6", "addr", "add", f"{self.address6[name]}/64", "dev", "eth0", "nodad"))
            for device in ("lo", "eth0"):
                do(*self.inside(name, "ip", "link", "set", device, "up"))

    def _keys(self) -> None:
        for key in ("host", "user"):
            do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key))
        shutil.copy(self.folder / "user.pub", self.folder / "authorized_keys")
        options = [f"HostKey {self.folder}/host", f"AuthorizedKeysFile {self.folder}/authorized_keys", "StrictModes no",
                   "PidFile none", "UsePAM no", "PasswordAuthentication no", "PermitRootLogin yes", "Port 22"]
        (self.folder / "sshd_config").write_text("\n".join(options) + "\n")
        aliases = [f"Host {name}\n HostName {self.address[name]}" for name in self.names]
        common = [f"Host *\n IdentityFile {self.folder}/user", " User root", " StrictHostKeyChecking no",
                  f" UserKnownHostsFile {self.folder}/known_hosts", " LogLevel ERROR"]
        (self.folder / "ssh_config").write_text("\n".join(aliases + common) + "\n")

    def _serve(self, name: str) -> None:
        os.makedirs("/run/sshd", exist_ok=True)
        start = f"hostname {name}; exec {shutil.which('sshd', path='/usr/sbin:/sbin')} -D -e -f {self.folder}/sshd_config"
        log = open(self.folder / f"{name}.log", "w", encoding="utf-8")
        self.servers.append(subprocess.Popen(self.inside(name, "unshare", "--uts", "sh", "-c", start), stdout=log, stderr=log))
        log.close()
        deadline = time.monotonic() + 20
        while subprocess.run([*self.ssh.split(), name, "true"], capture_output=True, check=False).returncode:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no sshd in host {name}: {(self.folder / f'{name}.log').read_text()}")

    def cut(self, name: str) -> None:
        """Take the host's cable out."""
        do("ip", "link", "set", self._link(self.names.index(name)), "down")

    def pids(self, name: str) -> list[int]:
        """Processes in a host."""
        done = subprocess.run(["ip", "netns", "pids", self.namespace(name)], capture_output=True, text=True, check=False)
        return [int(word) for word in done.stdout.split()]

    def __exit__(self, *_exc: object) -> None:
        for server in self.servers:
            server.terminate()
            server.wait()
        for name in self.names:
            for pid in self.pids(name):
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    pass
            subprocess.run(["ip", "netns", "del", self.namespace(name)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"{self.tag}br"], capture_output=True, check=False)
