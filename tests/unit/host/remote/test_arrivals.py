"""What arrives from another host: whole or not at all, plain files and folders only."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.remote.leash_frames import Frames, Kind, frame
from testbed.errors import HostError, StorageError
from testbed.host.remote.arrivals import replace, unpack


def archive(*members: tuple[str, bytes | None]) -> bytes:
    """A tar file; None for a folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = (tarfile.DIRTYPE, 0) if content is None else (tarfile.REGTYPE, len(content))
            tar.addfile(info, io.BytesIO(content or b""))
    return out.getvalue()


def pieces(content: bytes, size: int = 1000) -> Iterator[bytes]:
    return (content[at : at + size] for at in range(0, len(content), size))


def test_a_folder_arrives_byte_for_byte(tmp_path: Path) -> None:
    content = {"run.json": b"{}", "ranks/ré sumé.log": bytes(range(256)) * 100, "ranks/empty": b""}
    sent = archive(("ranks", None), *content.items())
    assert unpack(pieces(sent), tmp_path / "new" / "run") > 25_600
    found = {
        str(it.relative_to(tmp_path / "new/run")): it.read_bytes()
        for it in tmp_path.glob("new/run/**/*")
        if it.is_file()
    }
    assert found == content
    assert [it.name for it in (tmp_path / "new").iterdir()] == ["run"]
    with pytest.raises(StorageError, match="exists"):
        unpack(pieces(sent), tmp_path / "new" / "run")


def odd(change: Callable[[tarfile.TarInfo], object], kind: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as tar:
        info = tarfile.TarInfo("x")
        change(info)
        tar.addfile(info)
    return out.getvalue()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (archive(("run.json", b"{}"), ("../out", b"x")), "refused: a file named '../out'"),
        (archive(("/etc/x", b"x")), "refused"),
        (archive(("a\nb", b"x")), "refused"),
        (archive(("a/../../b", b"x")), "refused"),
        (odd(lambda it: (setattr(it, "type", tarfile.SYMTYPE), setattr(it, "linkname", "/etc"))), "neither a file"),
        (odd(lambda it: (setattr(it, "type", tarfile.LNKTYPE), setattr(it, "linkname", "run.json"))), "neither a file"),
        (odd(lambda it: setattr(it, "type", tarfile.FIFOTYPE)), "neither a file"),
        (odd(lambda it: setattr(it, "type", tarfile.CHRTYPE)), "neither a file"),
        (odd(lambda it: setattr(it, "type", tarfile.GNUTYPE_SPARSE)), "sparse"),
        (odd(lambda it: setattr(it, "pax_headers", {"mtime": "inf"}), tarfile.PAX_FORMAT), "did not arrive whole"),
        (archive(("big", bytes(5000)))[:3000], "did not arrive whole"),
        (b"not a tar file" * 100, "did not arrive whole"),
    ],
)
def test_what_is_refused_leaves_nothing(tmp_path: Path, sent: bytes, why: str) -> None:
    with pytest.raises(HostError, match=why):
        unpack(pieces(sent), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_connection_that_is_lost_leaves_nothing(tmp_path: Path) -> None:
    def lost() -> Iterator[bytes]:
        yield archive(("a", bytes(5000)))[:2000]
        raise HostError("the connection was lost")

    with pytest.raises(HostError, match="lost"):
        unpack(lost(), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.tuples(st.sampled_from(["data", "beat", "bytes", "file"]), st.binary(max_size=300))), st.data())
def test_frames_survive_any_cut_of_the_stream(sent: list[tuple[Kind, bytes]], data: st.DataObject) -> None:
    stream = b"".join(frame(kind, content) for kind, content in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    decoder = Frames()
    got = [
        it
        for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for it in decoder.feed(stream[begin:end])
    ]
    assert got == sent


def test_nonsense_is_no_frame() -> None:
    with pytest.raises(ValueError, match="expected a frame"):
        list(Frames().feed(b"GET / HTTP/1.1\r\n"))


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "new é" / "out.xml"
    content = bytes(range(256)) * 100
    assert replace(pieces(content), target) == len(content)
    assert target.read_bytes() == content

    def cut() -> Iterator[bytes]:
        yield b"half"
        raise HostError("the connection was lost")

    with pytest.raises(HostError):
        replace(cut(), target)
    assert [it.name for it in target.parent.iterdir()] == ["out.xml"]
    assert target.read_bytes() == content
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="folder"):
        replace(pieces(b"x"), tmp_path / "folder")
    assert sorted(it.name for it in tmp_path.iterdir()) == ["folder", "new é"]


def test_what_a_killed_fetch_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, other = tmp_path / f".run.arrives-{ended.pid}", tmp_path / f".other.arrives-{ended.pid}"
    alive = tmp_path / ".run.arrives-1"
    for each in (left, other, alive):
        each.mkdir()
        (each / "half").write_bytes(b"x")
    unpack(pieces(archive(("run.json", b"{}"))), tmp_path / "run")
    assert sorted(it.name for it in tmp_path.iterdir()) == sorted([alive.name, other.name, "run"])


def test_a_folder_that_another_process_removed_is_no_run(tmp_path: Path) -> None:
    def sent() -> Iterator[bytes]:
        content = archive(("first", b"1" * 5000), ("second", b"2" * 5000), ("third", bytes(200_000)))
        yield content[:100_000]
        shutil.rmtree(next(tmp_path.glob(".run.*")))
        yield content[100_000:]

    with pytest.raises(StorageError, match="cannot write"):
        unpack(sent(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
