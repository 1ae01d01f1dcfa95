"""Strategies and their options in files and words, declared compute, and what is wrong with them on a topology."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core import yamltext
from testbed.core.topology import resolve
from testbed.core.topology.topology_schema import Mistakes, Written
from testbed.core.training import strategies_built
from testbed.core.training.layout import asleep_tensors
from testbed.core.training.strategies_built import BUILT
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.strategy_options import choice, names_by_group, whole
from testbed.core.training.twin import Mistake, Option, Twin
from testbed.core.units import Unreadable
from testbed.core.workload import strategy_section, workload_layout, workload_schema, workload_words
from testbed.core.workload.declared_compute import DeclaredCompute, equivalent, full_scale_buckets
from testbed.core.workload.workload import AgentWorkload
from testbed.errors import FileMistakes, Finding, UserError

METRO = resolve.load_text(
    b"""
name: metro
scale: 1000
sites: {east: {nodes: 2}, west: {nodes: 2}}
links: {north: {between: [east, west], km: 40}, south: {between: [east, west], km: 47}}
""",
    "metro.yaml",
)


class Sample(Twin):
    """Options of all kinds, mistakes that depend on one, on two and on the topology, and an exchange every step."""

    name = "sample"
    summary = "for tests"
    options: ClassVar[tuple[Option, ...]] = (
        Option("every", 50, whole(1), "H"),
        Option("parts", 4, whole(1), "P"),
        Option("late", 1, whole(0), "tau"),
        Option("code.bits", 32, choice(32, 8), "bits"),
        Option("home", "", str, "a site"),
        Option("buckets", 8, whole(1), "K"),
    )
    asleep: ClassVar[bool] = False

    def mistakes(self) -> list[Mistake]:
        found = []
        if self.values["parts"] > self.layout.layers:
            found.append(
                Mistake("parts", f"{self.values['parts']} parts of {self.layout.layers} layers", "write fewer")
            )
        if self.values["late"] >= self.values["every"]:
            found.append(Mistake("late", f"{self.values['late']} of {self.values['every']}", "write less"))
        if self.values["home"] and self.values["home"] not in self.layout.site_names:
            found.append(Mistake("home", "unknown site", "name one"))
        if self.values["code.bits"] == 8:
            found.append(Mistake("code.bits", "costs 3 ms", "", warning=True))
        return found

    def operations(self, step: int) -> list[Operation]:
        everyone = tuple(range(self.layout.world_size))
        return [Operation("all_reduce", everyone, self.layout.payload_bytes, "gradients")]

    def equal(self, step: int) -> tuple[()]:
        return ()


@pytest.fixture(autouse=True)
def sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(strategies_built._ALL, "sample", Sample)


def read(section: dict[str, Any] | str) -> tuple[AgentWorkload, list[Finding]]:
    text = section if isinstance(section, str) else json.dumps(section)
    document = yamltext.read(text.encode(), "x.yaml")
    mistakes = Mistakes(Written(document))
    found = workload_schema.read(document.data, (), mistakes)
    assert isinstance(found, AgentWorkload)
    return found, mistakes.findings


def test_options_are_nested_or_dotted() -> None:
    for section in ("{strategy: sample, every: 7, code: {bits: 8}}", "{strategy: sample, code.bits: 8, every: 7}"):
        found, findings = read(section)
        assert findings == [] and (found.strategy, found.options) == ("sample", {"every": 7, "code.bits": 8})


def test_a_strategy_says_what_it_lacks_and_who_has_it() -> None:
    """An outer rate for ddp, bits that a strategy lacks: the mistake is at the line of the key."""
    _, findings = read("strategy: ddp\nouter: {rate: 0.7}\ncode:\n  bits: 8\n")
    assert [it.line for it in findings] == [2, 4]
    assert findings[0].message.startswith("strategy ddp has no outer.rate (it belongs to ")
    assert (findings[1].message, findings[1].fix) == (
        "strategy ddp has no code.bits (it belongs to sample)",
        "remove it, or write strategy: sample",
    )


def test_no_option_hides_a_key_of_the_section() -> None:
    """``steps:`` must not be an option of a strategy, or a file could not say it."""
    for name, twin in BUILT.items():
        names = {option.name.partition(".")[0] for option in twin.options}
        assert not names & workload_schema.OWN_KEYS, name


@pytest.mark.parametrize("name", sorted(BUILT))
def test_defaults_are_right_and_can_be_written(name: str) -> None:
    """The default of each option, as JSON has it, is what its own parser returns; so run.json can be read again."""
    for option in BUILT[name].options:
        if option.default is not None and not isinstance(option.default, tuple):
            assert option.parse(option.default) == option.default, option.name
            assert option.parse(str(option.default)) == option.default, option.name


def test_what_is_declared() -> None:
    found, findings = read("{compute: 80ms, model: 1.3B, noise: 5%}")
    assert findings == [] and found.compute == DeclaredCompute(0.08, False, 1.3e9, 0.05)
    assert (found.step_s, found.asleep, found.layers, found.elements(1000)) == (0.08, True, 24, 1_300_000)
    found, findings = read("{compute: {real: true, at_least: 80ms}}")
    assert findings == [] and found.compute == DeclaredCompute(0.08, True)
    assert (found.asleep, found.layers, found.elements(1000)) == (False, 4, 478_272)
    assert read("{compute: 'real:80ms'}")[0] == found
    for section in ("{compute: real}", "{compute: {real: true}}", "{}"):
        assert read(section) == (AgentWorkload(), [])


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("{compute: 0}", "expected a time above 0"),
        ("{compute: 80}", "expected a time with its unit, got 80"),
        ("{compute: {at_least: 80}}", "expected a time with its unit, got 80"),
        ("{compute: 2h}", "at most 1 hour"),
        ("{compute: {at_least: 1s, atmost: 2s}}", "unknown key 'atmost'"),
        ("{compute: {real: 1}}", "expected true or false"),
        ("{compute: {real: false}}", "expected a time, got no value"),
        ("{model: 1.3B}", "model belongs to declared compute"),
        ("{noise: 1%}", "noise belongs to declared compute"),
        ("{compute: {real: true, at_least: 1s}, model: 1.3B}", "a size cannot be declared"),
        ("{compute: 1s, noise: 200%}", "out of range"),
        ("{compute: 1s, model: 0}", "out of range"),
        ("{strategy: [sample]}", "expected the name of a strategy"),
        ("{strategy: sample, code: 8}", "code of strategy sample: expected a mapping"),
        ("{strategy: sample, code: {bots: 8}}", "unknown option of strategy sample 'code.bots'"),
        ("{strategy: sample, code: {bits: 8}, code.bits: 8}", "code.bits is written twice"),
    ],
)
def test_mistakes(section: str, says: str) -> None:
    _, findings = read(section)
    assert len(findings) == 1 and says in findings[0].message, findings
    assert findings[0].fix


@pytest.mark.parametrize(
    "workload",
    [
        AgentWorkload(7, strategy="ddp", options={"accumulate": 3, "bits": 16}),
        AgentWorkload(7, layers=24, compute=DeclaredCompute(0.08, model=1.3e9, noise=0.05)),
        AgentWorkload(7, compute=DeclaredCompute(1e-3, real=True)),
    ],
)
def test_what_run_json_says_can_be_read_again(workload: AgentWorkload) -> None:
    written = workload.to_dict()
    assert read(json.loads(json.dumps(written))) == (workload, [])


def test_the_message_has_every_option_by_its_argument() -> None:
    message = AgentWorkload(strategy="sample", options={"code.bits": 8}).to_message(1000)
    options = {"every": 50, "parts": 4, "late": 1, "code_bits": 8, "home": "", "buckets": 8}
    assert message["strategy"] == {"name": "sample", "options": options}
    assert "compute" not in message
    declared = AgentWorkload(layers=24, compute=DeclaredCompute(0.08, model=1.3e9)).to_message(1000)
    assert declared["compute"] == {"seconds": 0.08, "real": False, "noise": 0.0, "elements": 1_300_000, "layers": 24}
    paced = AgentWorkload(compute=DeclaredCompute(0.08, real=True)).to_message(1000)
    assert paced["compute"] == {"seconds": 0.08, "real": True, "noise": 0.0}


def test_a_declared_model_has_as_many_buckets_as_at_full_scale() -> None:
    """GPT-2 small, 124 M parameters of 4 bytes in buckets of 25 MiB: 19; 1.3 B: one for each of 24 x 4 matrices."""
    assert full_scale_buckets(124e6, 12) == 19
    assert full_scale_buckets(1.3e9, 24) == 96
    declared = AgentWorkload(layers=24, compute=DeclaredCompute(0.08, model=1.3e9))
    assert declared.values(1000)["buckets"] == declared.values(1)["buckets"] == 96
    assert AgentWorkload().values(1000)["buckets"] == 8
    own = AgentWorkload(layers=24, options={"buckets": 5}, compute=DeclaredCompute(0.08, model=1.3e9))
    assert own.values(1000)["buckets"] == 5


@given(st.integers(1, 10**6), st.integers(1, 60))
@settings(deadline=None, max_examples=60)
def test_tensors_of_the_sleeping_model(elements: int, layers: int) -> None:
    """They add up, and are in order: one layer after the other, each of almost equal size."""
    found = asleep_tensors(elements + layers, layers)
    assert sum(it.elements for it in found) == elements + layers
    by_layer = [sum(it.elements for it in found if it.layer == layer) for layer in range(layers)]
    assert max(by_layer) - min(by_layer) <= 1 and min(by_layer) >= 1
    assert [it.layer for it in found] == sorted(it.layer or 0 for it in found)


def test_the_layout_is_that_of_topology_and_workload() -> None:
    layout = workload_layout.layout_of(AgentWorkload(9, layers=24, compute=DeclaredCompute(0.08, model=1.3e9)), METRO)
    assert (layout.sites, layout.elements, layout.layers) == (("east", "east", "west", "west"), 1_300_000, 24)
    assert (layout.steps, layout.step_s, layout.tokens) == (9, 0.08, 256)
    assert workload_layout.layout_of(AgentWorkload(), METRO).elements == 478_272


def examined(section: dict[str, Any], bad: tuple[str, ...] = ()) -> list[str]:
    workload, _ = read({"strategy": "sample", **section})
    found = workload_layout.findings(workload, METRO, "x.yaml", {"": 3, "late": 7, "parts": 8}, bad)
    return [str(it) for it in found]


def test_all_that_is_wrong_on_a_topology_at_once() -> None:
    assert examined({"every": 2, "late": 2, "parts": 9, "home": "north", "code.bits": 8}) == [
        "x.yaml:8: parts: 9 parts of 4 layers; write fewer",
        "x.yaml:7: late: 2 of 2; write less",
        "x.yaml:3: home: unknown site; name one",
        "x.yaml:3: warning: code.bits: costs 3 ms",
    ]
    assert examined({"every": 2, "home": "west"}) == []


def test_beside_a_wrong_option_only_what_is_certain() -> None:
    """``late`` is compared with ``every``, which is not known; ``parts`` is not."""
    assert examined({"late": 60, "parts": 9}, bad=("every",)) == ["x.yaml:8: parts: 9 parts of 4 layers; write fewer"]
    assert examined({"late": 60, "parts": 9}, bad=("layers",)) == []


def test_a_strategy_that_needs_matrices_refuses_a_model_that_sleeps() -> None:
    (found,) = examined({"compute": "80ms"})
    assert "splits the matrices of a real model" in found and "compute: {real: true, at_least: 0.08s}" in found
    assert examined({"compute": {"real": True, "at_least": "80ms"}}) == []


def test_a_message_of_less_than_a_packet_is_a_warning() -> None:
    """A million parameters / 1000 in 96 buckets among 4 ranks: 10 bytes a message, 10 kB at full scale."""
    workload = AgentWorkload(layers=24, compute=DeclaredCompute(0.08, model=1e6), options={"buckets": 96})
    (found,) = workload_layout.findings(workload, METRO, "x.yaml", {"": 3})
    assert found.warning and "10 bytes" in found.message and "packets here" in found.message and found.fix
    assert workload_layout.refuse_mistakes(workload, METRO, "the workload")[0].message == found.message
    assert workload_layout.findings(AgentWorkload(), METRO, "x.yaml") == ()


def test_a_model_that_no_rank_can_hold() -> None:
    for model, says in ((1e15, "fit a rank's memory"), (2000.0, "cannot have 24 layers")):
        workload = AgentWorkload(layers=24, compute=DeclaredCompute(0.08, model=model))
        with pytest.raises(FileMistakes, match=says):
            workload_layout.refuse_mistakes(workload, METRO)


def test_words_of_a_command() -> None:
    found = workload_words.changed(AgentWorkload(60), "sample:every=7,code.bits=8", "80ms", "1.3B", "5%")
    assert found == AgentWorkload(
        60,
        strategy="sample",
        options={"every": 7, "code.bits": 8},
        layers=24,
        compute=DeclaredCompute(0.08, False, 1.3e9, 0.05),
    )
    assert workload_words.changed(AgentWorkload(60)) == AgentWorkload(60)
    paced = workload_words.changed(AgentWorkload(), compute="{real: true, at_least: 80ms}")
    assert paced.compute == DeclaredCompute(0.08, True)


def test_words_stand_in_for_what_a_file_says() -> None:
    """Another strategy drops the options of the first one; another compute drops the model; the rest stays."""
    written, findings = read("{strategy: sample, every: 7, compute: 1s, model: 1.3B, steps: 9, layers: 12, seed: 4}")
    assert findings == []
    other = workload_words.changed(written, "ddp")
    assert (other.strategy, other.options, other.compute) == ("ddp", {}, written.compute)
    assert (other.steps, other.layers, other.seed) == (9, 12, 4)
    real = workload_words.changed(written, compute={"real": True, "at_least": "2s"})
    assert (real.strategy, real.options, real.compute) == ("sample", {"every": 7}, DeclaredCompute(2.0, True))
    assert workload_words.changed(written, compute="real").compute is None
    assert workload_words.changed(written, options={"every": 9, "parts": 2}).options == {"every": 9, "parts": 2}
    assert workload_words.changed(written, compute=DeclaredCompute(3.0)).compute == DeclaredCompute(3.0)


def test_mistakes_in_words_are_told_all_at_once() -> None:
    with pytest.raises(FileMistakes) as caught:
        workload_words.changed(AgentWorkload(), "sample:every=0,outer.rate=1", "soon", "x")
    assert [(it.file, it.line) for it in caught.value.findings] == [
        ("--compute", 0),
        ("--model", 0),
        ("--strategy", 0),
        ("--strategy", 0),
    ]
    with pytest.raises(FileMistakes, match=r"compute: .*expected a time"):
        workload_words.changed(AgentWorkload(), compute="soon", prefix="")


@pytest.mark.parametrize(
    "text", ["diloco:every", "diloco:", "diloco:=3", "diloco:every=", "diloco:every=1,every=2", ":every=3"]
)
def test_words_that_are_not_options(text: str) -> None:
    with pytest.raises(Unreadable):
        strategy_section.parse_words(text)
    with pytest.raises(FileMistakes, match="--strategy: "):
        workload_words.changed(AgentWorkload(), text)


@pytest.mark.parametrize(
    ("text", "fix"), [("ddp:compute=80ms", "write --compute"), ("ddp:layers=3", "write layers: in an experiment")]
)
def test_a_key_of_the_workload_is_no_option_in_words(text: str, fix: str) -> None:
    with pytest.raises(FileMistakes, match="belongs to the workload, not to a strategy") as caught:
        workload_words.changed(AgentWorkload(), text)
    assert caught.value.findings[0].fix.startswith(fix)


@pytest.mark.parametrize(
    ("value", "fix"), [(0, "write 1 or more"), ("10", "write 9 or less"), (2.0, "digits"), ("\u0665", "digits")]
)
def test_a_whole_number_is_written_in_digits(value: object, fix: str) -> None:
    with pytest.raises(Unreadable) as caught:
        whole(1, 9)(value)
    assert fix in caught.value.fix
    assert whole(1, 9)(5) == whole(1, 9)("5") == 5


def test_options_of_another_strategy_are_refused_in_python() -> None:
    with pytest.raises(UserError, match="strategy ddp has no option every"):
        AgentWorkload(options={"every": 3})


def test_full_scale_in_words() -> None:
    assert equivalent(0.08, 1_300_000, 1000, 8e8) == (
        "compute is declared: 80 ms a step; at full scale 1.3 B parameters (5.2 GB of gradients)"
        " over fibers of 800 Gb/s, with the same distances and step"
    )
    assert (
        equivalent(0.08, 478_272, 1) == "compute is declared: 80 ms a step, of 478 k parameters (1.91 MB of gradients)"
    )


@pytest.mark.parametrize("written", [[[]], [["a"], []], "a+b", [["a", ""]], "[[a],[]]", "[[a]", "[a, b]"])
def test_a_group_of_sites_has_at_least_one(written: object) -> None:
    with pytest.raises(Unreadable):
        names_by_group(written)


def test_groups_of_sites_are_written_in_a_command_as_in_a_file() -> None:
    ways = strategy_section.list_of_words("ddp,multi-tier:every=2,regions=[[a, b],[c]],every_regions=4,fsdp")
    assert ways == ["ddp", "multi-tier:every=2,regions=[[a, b],[c]],every_regions=4", "fsdp"]
    _, options = strategy_section.parse_words(ways[1])
    assert names_by_group(options["regions"]) == names_by_group([["a", "b"], ["c"]]) == (("a", "b"), ("c",))
    assert (options["every"], options["every_regions"]) == ("2", "4")
