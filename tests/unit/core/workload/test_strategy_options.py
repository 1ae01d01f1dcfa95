"""Strategies and their options in files and words, declared compute, and what is wrong with them on a topology."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
from builders.inputs import by_input
from builders.tables import table
from builders.topologies import METRO
from builders.workloads import read, right
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.training.layout import asleep_tensors
from testbed.core.training.strategies_built import BUILT
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.strategy_options import choice, names_by_group, whole
from testbed.core.training.twin import Mistake, Option, Twin
from testbed.core.units import Unreadable
from testbed.core.workload import workload_layout
from testbed.core.workload.declared_compute import DeclaredCompute, equivalent, full_scale_buckets
from testbed.core.workload.strategy_section import list_of_words, parse_words
from testbed.core.workload.workload import AgentWorkload
from testbed.core.workload.workload_schema import OWN_KEYS
from testbed.core.workload.workload_words import changed
from testbed.errors import FileMistakes, UserError

DECLARED = DeclaredCompute(0.08, model=1.3e9)
LARGE = AgentWorkload(layers=24, compute=DECLARED)


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
        parts, late, every = (self.values[name] for name in ("parts", "late", "every"))
        home, layers = self.values["home"], self.layout.layers
        possible = {
            Mistake("parts", f"{parts} parts of {layers} layers", "write fewer"): parts > layers,
            Mistake("late", f"{late} of {every}", "write less"): late >= every,
            Mistake("home", "unknown site", "name one"): home and home not in self.layout.site_names,
            Mistake("code.bits", "costs 3 ms", "", warning=True): self.values["code.bits"] == 8,
        }
        return [mistake for mistake, is_made in possible.items() if is_made]

    def operations(self, step: int) -> list[Operation]:
        everyone = tuple(range(self.layout.world_size))
        return [Operation("all_reduce", everyone, self.layout.payload_bytes, "gradients")]

    def equal(self, step: int) -> tuple[()]:
        return ()


@pytest.fixture(autouse=True)
def sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT, "sample", Sample)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", ["every: 7, code: {bits: 8}", "code.bits: 8, every: 7"])
def test_options_are_nested_or_dotted(options: str) -> None:
    workload = right(f"{{strategy: sample, {options}}}")
    assert (workload.strategy, workload.options) == ("sample", {"every": 7, "code.bits": 8})


def test_a_strategy_says_what_it_lacks_and_who_has_it() -> None:
    """An outer rate for ddp, bits that a strategy lacks: the mistake is at the line of the key."""
    _, (rate, bits) = read("strategy: ddp\nouter: {rate: 0.7}\ncode:\n  bits: 8\n")
    assert (rate.line, bits.line) == (2, 4)
    assert rate.message.startswith("strategy ddp has no outer.rate (it belongs to ")
    assert (bits.message, bits.fix) == (
        "strategy ddp has no code.bits (it belongs to sample)",
        "remove it, or write strategy: sample",
    )


def test_no_option_hides_a_key_of_the_section() -> None:
    """``steps:`` must not be an option of a strategy, or a file could not say it."""
    for name, twin in BUILT.items():
        names = {option.name.partition(".")[0] for option in twin.options}
        assert not names & OWN_KEYS, name


@pytest.mark.parametrize("name", sorted(BUILT))
def test_defaults_are_right_and_can_be_written(name: str) -> None:
    """The default of each option, as JSON has it, is what its own parser returns; so run.json can be read again."""
    for option in BUILT[name].options:
        if option.default is not None and not isinstance(option.default, tuple):
            assert option.parse(option.default) == option.default, option.name
            assert option.parse(str(option.default)) == option.default, option.name


@by_input(
    "section, declared",
    {
        "{compute: 80ms, model: 1.3B, noise: 5%}": (DeclaredCompute(0.08, False, 1.3e9, 0.05), 24, 1_300_000),
        "{compute: {real: true, at_least: 80ms}}": (DeclaredCompute(0.08, True), 4, 478_272),
        "{compute: 'real:80ms'}": (DeclaredCompute(0.08, True), 4, 478_272),
    },
)
def test_declared_compute(section: str, declared: tuple[DeclaredCompute, int, int]) -> None:
    compute, *size = declared
    workload = right(section)
    assert workload == AgentWorkload(layers=size[0], compute=compute)
    assert [workload.layers, workload.elements(1000)] == size
    assert (workload.step_s, workload.asleep) == (0.08, not compute.real)


@pytest.mark.parametrize("section", ["{compute: real}", "{compute: {real: true}}", "{}"])
def test_no_declared_compute(section: str) -> None:
    assert right(section) == AgentWorkload()


@by_input(
    "section, said",
    {
        "{compute: 0}": "expected a time above 0",
        "{compute: 80}": "expected a time with its unit, got 80",
        "{compute: {at_least: 80}}": "expected a time with its unit, got 80",
        "{compute: 2h}": "at most 1 hour",
        "{compute: {at_least: 1s, atmost: 2s}}": "unknown key 'atmost'",
        "{compute: {real: 1}}": "expected true or false",
        "{compute: {real: false}}": "expected a time, got no value",
        "{model: 1.3B}": "model belongs to declared compute",
        "{noise: 1%}": "noise belongs to declared compute",
        "{compute: {real: true, at_least: 1s}, model: 1.3B}": "a size cannot be declared",
        "{compute: 1s, noise: 200%}": "out of range",
        "{compute: 1s, model: 0}": "out of range",
        "{strategy: [sample]}": "expected the name of a strategy",
        "{strategy: sample, code: 8}": "code of strategy sample: expected a mapping",
        "{strategy: sample, code: {bots: 8}}": "unknown option of strategy sample 'code.bots'",
        "{strategy: sample, code: {bits: 8}, code.bits: 8}": "code.bits is written twice",
    },
)
def test_mistakes_of_strategies_and_compute(section: str, said: str) -> None:
    _, (finding,) = read(section)
    assert said in finding.message and finding.fix


@table(
    "workload",
    {
        "options": AgentWorkload(7, strategy="ddp", options={"accumulate": 3, "bits": 16}),
        "declared compute": AgentWorkload(7, layers=24, compute=DeclaredCompute(0.08, model=1.3e9, noise=0.05)),
        "paced compute": AgentWorkload(7, compute=DeclaredCompute(1e-3, real=True)),
    },
)
def test_what_run_json_says_can_be_read_again(workload: AgentWorkload) -> None:
    assert right(workload.to_dict()) == workload


def test_the_message_has_every_option_by_its_argument() -> None:
    message = AgentWorkload(strategy="sample", options={"code.bits": 8}).to_message(1000)
    options = {"every": 50, "parts": 4, "late": 1, "code_bits": 8, "home": "", "buckets": 8}
    assert message["strategy"] == {"name": "sample", "options": options}
    assert "compute" not in message
    compute = {"seconds": 0.08, "real": False, "noise": 0.0}
    assert LARGE.to_message(1000)["compute"] == {**compute, "elements": 1_300_000, "layers": 24}
    paced = AgentWorkload(compute=DeclaredCompute(0.08, real=True)).to_message(1000)
    assert paced["compute"] == {**compute, "real": True}


def test_a_declared_model_has_as_many_buckets_as_at_full_scale() -> None:
    """GPT-2 small, 124 M parameters of 4 bytes in buckets of 25 MiB: 19; 1.3 B: one for each of 24 x 4 matrices."""
    assert full_scale_buckets(124e6, 12) == 19
    assert full_scale_buckets(1.3e9, 24) == 96
    assert LARGE.values(1000)["buckets"] == LARGE.values(1)["buckets"] == 96
    assert AgentWorkload().values(1000)["buckets"] == 8
    assert replace(LARGE, options={"buckets": 5}).values(1000)["buckets"] == 5


@given(st.integers(1, 10**6), st.integers(1, 60))
@settings(deadline=None, max_examples=60)
def test_tensors_of_the_sleeping_model(elements: int, layers: int) -> None:
    """They add up, and are in order: one layer after the other, each of almost equal size."""
    tensors = asleep_tensors(elements + layers, layers)
    assert sum(tensor.elements for tensor in tensors) == elements + layers
    by_layer = [sum(tensor.elements for tensor in tensors if tensor.layer == layer) for layer in range(layers)]
    assert max(by_layer) - min(by_layer) <= 1 and min(by_layer) >= 1
    assert [tensor.layer for tensor in tensors] == sorted(tensor.layer or 0 for tensor in tensors)


def test_the_layout_is_that_of_topology_and_workload() -> None:
    layout = workload_layout.layout_of(replace(LARGE, steps=9), METRO)
    assert (layout.sites, layout.elements, layout.layers) == (("east", "east", "west", "west"), 1_300_000, 24)
    assert (layout.steps, layout.step_s, layout.tokens) == (9, 0.08, 256)
    assert workload_layout.layout_of(AgentWorkload(), METRO).elements == 478_272


PARTS = "x.yaml:8: parts: 9 parts of 4 layers; write fewer"


@table(
    "section, bad, findings",
    {
        "all that is wrong at once": (
            "every: 2, late: 2, parts: 9, home: north, code.bits: 8",
            "",
            [
                PARTS,
                "x.yaml:7: late: 2 of 2; write less",
                "x.yaml:3: home: unknown site; name one",
                "x.yaml:3: warning: code.bits: costs 3 ms",
            ],
        ),
        "nothing wrong": ("every: 2, home: west", "", []),
        # ``late`` is compared with ``every``, which is not known; ``parts`` is not.
        "beside a wrong option only what is certain": ("late: 60, parts: 9", "every", [PARTS]),
        "nothing is certain without the layers": ("late: 60, parts: 9", "layers", []),
        "real compute": ("compute: {real: true, at_least: 80ms}", "", []),
    },
)
def test_findings_of_a_strategy_on_a_topology(section: str, bad: str, findings: list[str]) -> None:
    assert examined(section, *bad.split()) == findings


def examined(section: str, *bad: str) -> list[str]:
    workload, _ = read(f"{{strategy: sample, {section}}}")
    return [*map(str, workload_layout.findings(workload, METRO, "x.yaml", {"": 3, "late": 7, "parts": 8}, bad))]


def test_a_strategy_that_needs_matrices_refuses_a_model_that_sleeps() -> None:
    (finding,) = examined("compute: 80ms")
    assert "splits the matrices of a real model" in finding and "compute: {real: true, at_least: 0.08s}" in finding


def test_a_message_of_less_than_a_packet_is_a_warning() -> None:
    """A million parameters / 1000 in 96 buckets among 4 ranks: 10 bytes a message, 10 kB at full scale."""
    workload = replace(LARGE, compute=DeclaredCompute(0.08, model=1e6), options={"buckets": 96})
    (finding,) = workload_layout.findings(workload, METRO, "x.yaml", {"": 3})
    assert finding.warning and "10 bytes" in finding.message and "packets here" in finding.message and finding.fix
    assert workload_layout.refuse_mistakes(workload, METRO, "the workload")[0].message == finding.message
    assert workload_layout.findings(AgentWorkload(), METRO, "x.yaml") == ()


@by_input("model, said", {1e15: "fit a rank's memory", 2000.0: "cannot have 24 layers"})
def test_a_model_that_no_rank_can_hold(model: float, said: str) -> None:
    with pytest.raises(FileMistakes, match=said):
        workload_layout.refuse_mistakes(replace(LARGE, compute=DeclaredCompute(0.08, model=model)), METRO)


# ---- words of a command


def test_changed_by_words_of_a_command() -> None:
    assert changed(AgentWorkload(60), "sample:every=7,code.bits=8", "80ms", "1.3B", "5%") == AgentWorkload(
        60,
        strategy="sample",
        options={"every": 7, "code.bits": 8},
        layers=24,
        compute=DeclaredCompute(0.08, False, 1.3e9, 0.05),
    )
    assert changed(AgentWorkload(60)) == AgentWorkload(60)
    paced = changed(AgentWorkload(), compute="{real: true, at_least: 80ms}")
    assert paced.compute == DeclaredCompute(0.08, True)


def test_changed_words_stand_in_for_what_a_file_says() -> None:
    """Another strategy drops the options of the first one; another compute drops the model; the rest stays."""
    written = right("{strategy: sample, every: 7, compute: 1s, model: 1.3B, steps: 9, layers: 12, seed: 4}")
    assert changed(written, "ddp") == replace(written, strategy="ddp", options={})
    assert (written.steps, written.layers, written.seed) == (9, 12, 4)
    real = changed(written, compute={"real": True, "at_least": "2s"})
    assert (real.strategy, real.options, real.compute) == ("sample", {"every": 7}, DeclaredCompute(2.0, True))
    assert changed(written, compute="real").compute is None
    assert changed(written, options={"every": 9, "parts": 2}).options == {"every": 9, "parts": 2}
    assert changed(written, compute=DeclaredCompute(3.0)).compute == DeclaredCompute(3.0)


def test_mistakes_in_words_are_told_all_at_once() -> None:
    with pytest.raises(FileMistakes) as caught:
        changed(AgentWorkload(), "sample:every=0,outer.rate=1", "soon", "x")
    places = [(finding.file, finding.line) for finding in caught.value.findings]
    assert places == [(option, 0) for option in ("--compute", "--model", "--strategy", "--strategy")]
    with pytest.raises(FileMistakes, match=r"compute: .*expected a time"):
        changed(AgentWorkload(), compute="soon", prefix="")


@pytest.mark.parametrize(
    "text", ["diloco:every", "diloco:", "diloco:=3", "diloco:every=", "diloco:every=1,every=2", ":every=3"]
)
def test_words_that_are_not_options(text: str) -> None:
    with pytest.raises(Unreadable):
        parse_words(text)
    with pytest.raises(FileMistakes, match="--strategy: "):
        changed(AgentWorkload(), text)


@by_input("text, fix", {"ddp:compute=80ms": "write --compute", "ddp:layers=3": "write layers: in an experiment"})
def test_a_key_of_the_workload_is_no_option_in_words(text: str, fix: str) -> None:
    with pytest.raises(FileMistakes, match="belongs to the workload, not to a strategy") as caught:
        changed(AgentWorkload(), text)
    assert caught.value.findings[0].fix.startswith(fix)


@by_input("value, fix", {0: "write 1 or more", "10": "write 9 or less", 2.0: "digits", "\u0665": "digits"})
def test_a_whole_number_is_written_in_digits(value: object, fix: str) -> None:
    with pytest.raises(Unreadable) as caught:
        whole(1, 9)(value)
    assert fix in caught.value.fix
    assert whole(1, 9)(5) == whole(1, 9)("5") == 5


def test_options_of_another_strategy_are_refused_in_python() -> None:
    with pytest.raises(UserError, match="strategy ddp has no option every"):
        AgentWorkload(options={"every": 3})


def test_full_scale_equivalent_in_words() -> None:
    assert equivalent(0.08, 1_300_000, 1000, 8e8) == (
        "compute is declared: 80 ms a step; at full scale 1.3 B parameters (5.2 GB of gradients)"
        " over fibers of 800 Gb/s, with the same distances and step"
    )
    small = "compute is declared: 80 ms a step, of 478 k parameters (1.91 MB of gradients)"
    assert equivalent(0.08, 478_272, 1) == small


@pytest.mark.parametrize("written", [[[]], [["a"], []], "a+b", [["a", ""]], "[[a],[]]", "[[a]", "[a, b]"])
def test_a_group_of_sites_has_at_least_one(written: object) -> None:
    with pytest.raises(Unreadable):
        names_by_group(written)


def test_groups_of_sites_are_written_in_a_command_as_in_a_file() -> None:
    tiers = "multi-tier:every=2,regions=[[a, b],[c]],every_regions=4"
    assert list_of_words(f"ddp,{tiers},fsdp") == ["ddp", tiers, "fsdp"]
    _, options = parse_words(tiers)
    assert names_by_group(options["regions"]) == names_by_group([["a", "b"], ["c"]]) == (("a", "b"), ("c",))
    assert (options["every"], options["every_regions"]) == ("2", "4")
