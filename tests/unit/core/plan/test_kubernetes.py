"""The Job and ConfigMap of a run: by Kubernetes' own schemas, strictly, and read by another YAML parser."""

from __future__ import annotations

import base64
import re
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.plan import kubernetes
from testbed.core.plan.kubernetes import CarriedFile, Request
from testbed.errors import UserError

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
NAMES = TEXT.map(lambda it: it.replace("/", "_")).filter(lambda it: it.strip(".") != "")


def request(**changed: Any) -> Request:
    usual: dict[str, Any] = {
        "name": "run-1", "arguments": ("run", "metro-40km"), "files": (), "image": "image:tag",
        "claim": "runs", "ranks": 4, "version": "1.2.3",
    }  # fmt: skip
    return Request(**usual | changed)


def documents(made: Request) -> list[dict[str, Any]]:
    """By YAML 1.1, as Kubernetes' own parser; schema and unknown fields checked."""
    found = list(yaml.safe_load_all(kubernetes.render(made)))
    for each in found:
        kubernetes_validate.validate(each, "1.31", strict=True)
    return found


def container(made: Request) -> dict[str, Any]:
    (found,) = documents(made)[-1]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def expanded(word: str) -> str:
    """As the kubelet expands arguments where no variable is defined (third_party/forked/golang/expansion)."""

    def expand(match: re.Match[str]) -> str:
        assert len(match[0]) == 2, f"a variable is expanded in {word!r}"
        return "$" if match[0] == "$$" else match[0]

    return re.sub(r"\$(\(.*?\)|.)", expand, word, flags=re.DOTALL)


@pytest.mark.parametrize("version", ["1.31", "1.34", "1.37"])
def test_both_objects_are_valid_by_strict_schema(version: str) -> None:
    made = request(files=(CarriedFile("a/b.yaml", b"x: 1\n"), CarriedFile("c.bin", b"\xff\0", executable=True)))
    found = list(yaml.safe_load_all(kubernetes.render(made)))
    assert [it["kind"] for it in found] == ["ConfigMap", "Job"]
    for each in found:
        kubernetes_validate.validate(each, version, strict=True)
    found[1]["spec"]["template"]["spec"]["nonsense"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found[1], version, strict=True)


def test_exit_statuses_decide_what_is_repeated() -> None:
    spec = documents(request())[0]["spec"]
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [1, 2])
    assert (spec["backoffLimit"], spec["podReplacementPolicy"]) == (1, "Failed")
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_one_run_a_host_with_no_more_rights_than_a_lab_needs() -> None:
    pod = documents(request())[0]["spec"]["template"]
    (term,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname" and term["namespaceSelector"] == {}
    assert term["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    rights = container(request())["securityContext"]
    assert rights["privileged"] is False and rights["capabilities"]["drop"] == ["ALL"]
    assert rights["seccompProfile"]["type"] == "RuntimeDefault"
    assert pod["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize(("ranks", "cores"), [(1, "2"), (4, "2"), (5, "3"), (64, "32")])
def test_cores_and_memory_follow_the_ranks(ranks: int, cores: str) -> None:
    asked = container(request(ranks=ranks))["resources"]
    assert asked == {"requests": {"cpu": cores, "memory": f"{1000 + 400 * ranks}M"}}


def test_the_file_names_the_command_that_builds_its_image() -> None:
    text = kubernetes.render(request(image="registry.example/a:b"))
    assert re.search(r"^# +docker build --tag registry\.example/a:b \.", text, re.MULTILINE)


@settings(max_examples=60, deadline=None)
@given(words=st.lists(TEXT, max_size=4), content=TEXT)
def test_words_and_texts_arrive_as_they_are(words: list[str], content: str) -> None:
    made = request(arguments=words, files=(CarriedFile("f.yaml", content.encode()),))
    assert [expanded(it) for it in container(made)["args"]] == ["testbed", *words]
    assert documents(made)[0]["data"] == {"f.yaml": content}


@settings(max_examples=60, deadline=None)
@given(names=st.lists(NAMES, min_size=1, max_size=4, unique=True), content=st.binary(max_size=40))
def test_files_have_their_paths_whatever_their_names(names: list[str], content: bytes) -> None:
    made = request(files=tuple(CarriedFile(it, content) for it in names))
    config, job = documents(made)
    held = {key: value.encode() for key, value in config.get("data", {}).items()}
    held |= {key: base64.b64decode(value) for key, value in config.get("binaryData", {}).items()}
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key) and key not in (".", "..") for key in held)
    volume = next(it for it in job["spec"]["template"]["spec"]["volumes"] if "configMap" in it)
    assert {it["path"]: held[it["key"]] for it in volume["configMap"]["items"]} == dict.fromkeys(names, content)


@given(what=TEXT, words=st.lists(TEXT, max_size=3))
def test_default_names_are_labels(what: str, words: list[str]) -> None:
    name = kubernetes.default_name(what, words, ())
    assert LABEL.fullmatch(name) and len(name) <= 63
    assert name != kubernetes.default_name(what, [*words, "x"], ())


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a.b", "a" * 64, "a\n", "ä", "a b"])
def test_a_name_that_is_no_label_is_refused(name: str) -> None:
    for field in ("name", "claim"):
        with pytest.raises(UserError, match="DNS-1123 label"):
            kubernetes.render(request(**{field: name}))


def test_more_than_a_config_map_holds_is_refused() -> None:
    whole = CarriedFile("big.txt", b"x" * (1 << 20))
    assert len(documents(request(files=(whole,)))[0]["data"]["big.txt"]) == 1 << 20
    with pytest.raises(UserError, match=r"at most 1048576 bytes together.*'big.txt' has 1048576"):
        kubernetes.render(request(files=(whole, CarriedFile("small", b"x"))))
    with pytest.raises(UserError, match="UTF-8"):
        kubernetes.render(request(arguments=("run", "\udcff")))


def test_keys_are_names_where_they_can_be() -> None:
    made = request(files=tuple(CarriedFile(it, b"x\n") for it in ("a/x.yaml", "b/x.yaml", "mein é.yaml")))
    assert set(documents(made)[0]["data"]) == {"x.yaml", "file-1", "file-2"}
