"""known_hosts files, read line by line; ssh-keygen is the oracle of hashed names and fingerprints."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from testbed.core.remote.known_hosts import HostKey, judge, key_types, read, read_revoked
from testbed.core.remote.ssh_settings import SshSettings, expanded, jump_words, parse

pytestmark = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="needs ssh-keygen: apt install openssh-client"
)


def made(folder: Path, kind: str = "ed25519") -> tuple[str, HostKey]:
    """A key as a line has it, and as the host offers it."""
    path = folder / kind
    while path.exists():
        path = path.with_name(path.name + "x")
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path], check=True)
    words = path.with_suffix(".pub").read_text().split()
    (line,) = read("f", f"any {words[0]} {words[1]}")
    return f"{words[0]} {words[1]}", line.key


def test_what_lines_say_of_a_key(tmp_path: Path) -> None:
    (key, offered), (other, _), (rsa, _) = made(tmp_path), made(tmp_path), made(tmp_path, "ecdsa")

    def said(text: str, *names: str) -> tuple[str, int]:
        found = judge(read("f", text), names or ("h",), offered)
        return found.kind, found.by.line if found.by else 0

    assert said(f"h {key}") == ("known", 1)
    assert said(f"# h {key}\n\nnonsense\nh ssh-ed25519 ???\nh {other} comment\nh {key} root@h") == ("known", 6)
    assert said("") == ("unknown", 0)
    assert said(f"g {key}") == ("unknown", 0)
    assert said(f"h {rsa}\nh {other}") == ("changed", 2), "the line of the same type"
    assert said(f"h {key}\n@revoked * {key}") == ("revoked", 2)
    assert said(f"h {key}\n@revoked g {key}") == ("known", 1)
    assert said(f"@cert-authority *.net,h {other}\n") == ("authority", 1)
    assert said(f"@cert-authority h {other}\nh {key}") == ("known", 2)
    assert said(f"*.lab,!h.lab {key}", "h.lab") == ("unknown", 0)
    assert said(f"*.lab,!g.lab {key}", "h.lab") == ("known", 1)
    assert said(f"H?.LAB {key}", "h1.lab") == ("known", 1)
    assert said(f"[h]:2222 {key}", "[h]:2222", "h") == ("known", 1)
    assert said(f"[h]:2222 {other}\nh {key}", "[h]:2222", "h") == ("changed", 1), "what is said of the port counts"
    assert said(f"h {key}", "[h]:2222", "h") == ("known", 1)
    assert said(f"[h]:2222 {key}") == ("unknown", 0)
    assert said(f"h {other}", "[h]:2222", "h") == ("unknown", 0), "another server's, at port 22"
    assert said(f"g {other}\x0c\nh {key}") == ("known", 2), "lines end at LF alone"
    assert key_types(read("f", f"h {rsa}\nh {key}\nh {other}\ng {key}\n@revoked h {other}"), ("h",)) == [
        rsa.split()[0],
        "ssh-ed25519",
    ]


def test_a_key_of_revoked_host_keys_is_revoked_for_every_host(tmp_path: Path) -> None:
    (key, offered), (other, _) = made(tmp_path), made(tmp_path)
    known = read("f", f"h {key}")
    assert judge([*known, *read_revoked("r", f"# old\n{other}\n")], ("h",), offered).kind == "known"
    found = judge([*known, *read_revoked("r", f"# old\n\n{key} root@h # lost")], ("h",), offered)
    assert (found.kind, found.by and (found.by.file, found.by.line)) == ("revoked", ("r", 3))
    for odd in ("SSHKRL\n\0\0\0\1", "ssh-ed25519", f"{key}\nssh-ed25519 AAAA"):
        with pytest.raises(ValueError, match="expected a public key"):
            read_revoked("r", odd)


def test_hashed_names_and_fingerprints_are_ssh_keygen_s(tmp_path: Path) -> None:
    key, offered = made(tmp_path)
    known = tmp_path / "known_hosts"
    known.write_text(f"h.lab {key}\n[h.lab]:2222 {key}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, capture_output=True)
    lines = read("f", known.read_text())
    assert [it.names[:3] for it in lines] == ["|1|", "|1|"]
    assert [it.is_of("h.lab") for it in lines] == [True, False]
    assert [it.is_of("[h.lab]:2222") for it in lines] == [False, True]
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", tmp_path / "ed25519.pub"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split()[1] == offered.fingerprint


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh: apt install openssh-client")
def test_settings_are_those_of_ssh(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host far\n  Port 2222\n  User lab\n")
    config = tmp_path / "config"
    config.write_text(
        f"Include {tmp_path}/more\n"
        "Host far\n HostName 192.0.2.7\n ProxyJump a@hop1:23,hop2\n IdentityFile ~/k1\n IdentitiesOnly yes\n"
        " IdentityAgent none\n UserKnownHostsFile ~/kh1 ~/kh2\n GlobalKnownHostsFile none\n"
        "Host named\n HostKeyAlias other\n"
    )

    def settings(where: str) -> SshSettings:
        done = subprocess.run(["ssh", "-F", config, "-G", where], capture_output=True, text=True, check=True)
        return parse(done.stdout)

    far = settings("far")
    assert (far.host, far.port, far.user, far.jumps) == ("192.0.2.7", 2222, "lab", ("a@hop1:23", "hop2"))
    assert (far.identity_files, far.identities_only, far.agent) == (("~/k1",), True, "")
    assert [it.rpartition("/")[2] for it in far.known_hosts] == ["kh1", "kh2"]
    assert far.names == ("[192.0.2.7]:2222", "192.0.2.7")
    named = settings("named")
    assert (named.names, named.jumps, named.command) == (("other",), (), "")
    assert named.agent
    for nothing in ("user x\n", "user x\nhostname \nport 22\n"):
        with pytest.raises(ValueError, match="hostname"):
            parse(nothing)


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh: apt install openssh-client")
@pytest.mark.parametrize(
    ("jump", "user", "host", "port"),
    [
        ("hop", "me", "hop", "22"),
        ("bob@hop:2222", "bob", "hop", "2222"),
        ("bob@[192.0.2.1]:23", "bob", "192.0.2.1", "23"),
        ("[2001:db8::1]:24", "me", "2001:db8::1", "24"),
        ("2001:db8::1", "me", "2001:db8::1", "22"),
        ("ssh://bob@hop:25", "bob", "hop", "25"),
    ],
)
def test_ssh_takes_a_jump_host_by_words(tmp_path: Path, jump: str, user: str, host: str, port: str) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n User me\n")
    words = ["ssh", "-F", str(config), "-G", *jump_words(jump)]
    found = parse(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert (found.user, found.host, str(found.port)) == (user, host, port)


def test_tokens_of_paths() -> None:
    found = expanded("${KEYS}/%d/%%/id_%h_%r/%C/${NONE}/~", {"d": "/home/x", "h": "h1", "r": "bob"}, {"KEYS": "/k"})
    assert found == "/k//home/x/%/id_h1_bob/%C/${NONE}/~"
