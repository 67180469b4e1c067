"""Host classes: CPU generations, limits of the process, and untrusted files."""

from __future__ import annotations

import itertools
import platform
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortune import Goal, read_record
from ortune.host import Host, HostClass, read_host
from ortune.host.cpuinfo import find_model_name, read_processor, read_virtual
from ortune.host.host_class import PROPERTY_NAMES, describe_difference
from ortune.host.macos import build_processor, parse_sysctl
from ortune.host.microarchitectures import name_generation
from ortune.host.processor import INSTRUCTIONS, MOST_CHARACTERS, Caches, CpuType, Processor
from ortune.host.windows import parse_identifier
from ortune.record.layout import encode, to_plain
from ortune.report.host_map import describe_host
from ortune.tuning.hints import describe_search, find_similar_searches, remember
from ortune.tuning.share_outcome import name_identity
from tests.conftest import ROOT, run_ortune
from tests.hosts import HOSTS, list_files, read_files, write_files
from tests.records import EXAMPLE, ONE_THREAD
from tests.simulated import make_host, make_model

CPU_FIELDS = ("cpu_model", "platform", "cpu", "instructions", "caches")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Host]:
    return {
        name: read_files(tmp_path_factory.mktemp(name), list_files(host), host.machine) for name, host in HOSTS.items()
    }


@pytest.fixture(scope="module")
def classes(hosts: dict[str, Host]) -> dict[str, HostClass]:
    return {name: HostClass.of(host) for name, host in hosts.items()}


def read_class(root: Path, name: str, **limits: str) -> HostClass:
    host = HOSTS[name]
    return HostClass.of(read_files(root, list_files(host, **limits), host.machine))


class TestGenerations:
    def test_names(self, classes: dict[str, HostClass]) -> None:
        assert {name: found.name for name, found in classes.items()} == {
            name: host.name for name, host in HOSTS.items()
        }

    def test_no_two_share_a_class(self, classes: dict[str, HostClass]) -> None:
        assert len(classes) >= 20
        assert len({found.id for found in classes.values()}) == len(classes)
        for one, other in itertools.permutations(classes.values(), 2):
            assert not one.includes(other)

    def test_the_number_of_cpus_is_not_what_distinguishes_them(self, classes: dict[str, HostClass]) -> None:
        kinds = {tuple(str(getattr(found, name)) for name in CPU_FIELDS) for found in classes.values()}
        assert len(kinds) == len(classes)

    def test_marketing_names_do_not_distinguish_them(self, classes: dict[str, HostClass]) -> None:
        names = [found.cpu_model for found in classes.values()]
        assert names.count("AMD EPYC") == 4
        assert names.count("") == sum(host.machine == "aarch64" for host in HOSTS.values()) >= 10
        guests = [classes[f"zen{number}-guest"] for number in (2, 3, 4, 5)]
        for one, other in itertools.combinations(guests, 2):
            assert set(one.differences(other)) <= {"cpu", "instructions", "caches"}

    @pytest.mark.parametrize(
        ("name", "instructions"),
        [
            ("haswell", "sse4_1 avx f16c fma avx2"),
            ("cascadelake", "sse4_1 avx f16c fma avx2 avx512f avx512bw avx512dq avx512vl avx512_vnni"),
            ("raptorlake", "sse4_1 avx f16c fma avx2 avx_vnni waitpkg"),
            ("graviton1", ""),
            ("graviton2", "asimdhp asimddp"),
            ("graviton3", "asimdhp asimddp i8mm bf16 sve svei8mm"),
            ("ampereone", "asimdhp asimddp i8mm bf16"),
        ],
    )
    def test_instruction_sets(self, classes: dict[str, HostClass], name: str, instructions: str) -> None:
        assert classes[name].instructions == instructions

    def test_amx(self, classes: dict[str, HostClass]) -> None:
        assert {name for name, found in classes.items() if "amx_int8" in found.instructions.split()} == {
            "emeraldrapids",
            "graniterapids",
            "sapphirerapids",
        }

    def test_caches_memory_and_virtualization(self, classes: dict[str, HostClass]) -> None:
        assert classes["haswell"].caches == Caches(l1d_bytes=32 << 10, l2_bytes=256 << 10, l3_bytes=30 << 20)
        assert classes["graviton1"].caches == Caches(l1d_bytes=32 << 10, l2_bytes=2 << 20)
        assert classes["haswell"].n_memory_channels == 8
        assert classes["icelake"].n_memory_channels is None
        assert {name for name, found in classes.items() if found.virtual is None} == {
            "apple-m1",
            "raspberrypi4",
            "rk3588",
        }
        assert classes["icelake"].virtual and classes["altra"].virtual and not classes["grace"].virtual

    def test_two_kinds_of_cores(self, classes: dict[str, HostClass]) -> None:
        found = classes["rk3588"]
        assert found.cpu == CpuType(vendor="0x41", family="8", model="0xd05+0xd0b", stepping="r2p0+r4p0")
        assert found.usable_cores_by_kind == (4, 4)
        assert classes["raptorlake"].usable_cores_by_kind == (16, 8)

    def test_the_numbers_of_cpus_do_not_matter(self, tmp_path: Path) -> None:
        """Some firmware lists fast cores first."""
        host = HOSTS["apple-m1"]
        files = list_files(host), list_files(msgspec.structs.replace(host, kinds=host.kinds[::-1]))
        one, other = (read_files(tmp_path / str(number), listing) for number, listing in enumerate(files))
        assert one.topology != other.topology
        assert HostClass.of(one) == HostClass.of(other)


class TestLimits:
    def test_a_driver_makes_no_other_class(self, tmp_path: Path) -> None:
        with_driver = read_class(tmp_path, "haswell")
        without = msgspec.structs.replace(with_driver, n_memory_channels=None, caches=None, id="other")
        assert with_driver.includes(without)
        assert without.includes(with_driver)
        assert not with_driver.includes(msgspec.structs.replace(with_driver, n_memory_channels=4))

    def test_a_host_that_reports_less_searches_apart(self, hosts: dict[str, Host]) -> None:
        """It may be equal to each of two hosts that differ: none of them share measurements."""
        host = hosts["haswell"]
        less = msgspec.structs.replace(host, processor=msgspec.structs.replace(host.processor, n_memory_channels=None))
        assert HostClass.of(host).includes(HostClass.of(less))
        program = SimpleNamespace(path="model.onnx")
        prepared = [cast("Any", SimpleNamespace(host=prepared_host, program=program)) for prepared_host in (host, less)]
        assert name_identity(prepared[0], {}) != name_identity(prepared[1], {})

    def test_the_same_host_twice(self, tmp_path: Path) -> None:
        first, second = (read_class(tmp_path / folder, "zen1", quota="150000 100000") for folder in ("a", "b"))
        assert first == second
        assert first.includes(second)

    def test_another_quota(self, tmp_path: Path) -> None:
        found = [
            read_class(tmp_path / str(number), "icelake", quota=quota)
            for number, quota in enumerate(("", "max 100000", "200000 100000", "150000 100000"))
        ]
        assert found[0] == found[1]
        assert len({host_class.id for host_class in found}) == 3
        assert found[2].differences(found[3]) == {"cpu_quota": (2.0, 1.5)}
        assert found[3].name.endswith("quota 1.5")

    @pytest.mark.parametrize(
        ("name", "one", "other", "differing"),
        [
            ("icelake", "0-3", "0-1", {"n_usable", "n_usable_cores"}),
            ("icelake", "0-1", "0,2", {"n_usable_cores"}),
            ("sapphirerapids", "0-3", "0-1,96-97", {"n_usable_numa_nodes", "n_usable_l3_caches"}),
            ("zen1", "0-11", "0-5,12-17", {"n_usable_numa_nodes"}),
            ("zen1", "0-5", "0-3,6-7", {"n_usable_l3_caches"}),
            ("raptorlake", "0,2", "0,16", {"usable_cores_by_kind", "caches"}),
            ("rk3588", "0-3", "4-7", {"usable_cores_by_kind", "caches", "cpu"}),
        ],
    )
    def test_another_cpuset(self, tmp_path: Path, name: str, one: str, other: str, differing: set[str]) -> None:
        first, second = read_class(tmp_path / "a", name, allowed=one), read_class(tmp_path / "b", name, allowed=other)
        assert first.id != second.id
        assert set(first.differences(second)) & differing
        assert not first.includes(second)

    def test_cpusets_of_the_same_shape(self, tmp_path: Path) -> None:
        """Containers that get CPUs of their own share a class."""
        assert read_class(tmp_path / "a", "zen1", allowed="0-5") == read_class(tmp_path / "b", "zen1", allowed="12-17")


class TestHostsOfFewFacts:
    def test_a_host_without_any_details(self) -> None:
        found = HostClass.of(make_host(4))
        assert found.includes(HostClass.of(make_host(4)))
        assert set(found.differences(HostClass.of(make_host(2, smt=2)))) == {"n_cores", "n_usable_cores"}


class TestWhereItIsShown:
    def test_host(self, tmp_path: Path) -> None:
        here = HostClass.of(read_host())
        done = run_ortune("host", cwd=tmp_path, columns=200)
        assert f"class  {here.name}  {here.id}" in done.stdout

    def test_report(self, classes: dict[str, HostClass]) -> None:
        runtime = read_record(EXAMPLE).runtime
        facts = dict(describe_host(classes["zen4-guest"], runtime).facts)
        assert facts["CPU type"] == "Zen 4 (AuthenticAMD family 25 model 17 stepping 1)"
        assert facts["host class"] == classes["zen4-guest"].id

    def test_the_history_of_searches(self, tmp_path: Path, classes: dict[str, HostClass]) -> None:
        """Searches give hints, unless their class is another one."""
        path, traits = tmp_path / "history.jsonl", make_model().traits
        for name in ("zen3-guest", "zen4-guest", "icelake"):
            remember(path, describe_search(classes[name], traits, Goal(), [ONE_THREAD]))
        found = find_similar_searches(path, classes["zen4-guest"], traits, Goal())
        assert [past_search.host for past_search in found] == [classes["zen4-guest"]]

    def test_the_documented_class(self) -> None:
        found = re.search(r'```json\n"host": (\{.*?\n\})\n```', (ROOT / "docs" / "record.md").read_text(), re.DOTALL)
        assert found
        assert msgspec.json.decode(found[1], type=HostClass) == read_record(ROOT / "tests/data/server.ortune.json").host


class TestText:
    def test_differences(self, classes: dict[str, HostClass]) -> None:
        one, other = classes["zen5-guest"], classes["cascadelake"]
        texts = [describe_difference(name, *values) for name, values in one.differences(other).items()]
        assert texts[:4] == [
            "CPU AMD EPYC in the record, Intel(R) Xeon(R) CPU @ 2.80GHz here",
            "CPU type Zen 5 (AuthenticAMD family 26 model 2 stepping 1) in the record, "
            "Cascade Lake (GenuineIntel family 6 model 85 stepping 7) here",
            "instruction sets avx_vnni, avx512_bf16 in the record, fewer here",
            "caches L1d 48K, L2 1M, L3 32M in the record, L1d 32K, L2 1M, L3 33M here",
        ]
        assert describe_difference("cpu_quota", None, 1.5) == "CPU quota none in the record, 1.5 here"
        assert describe_difference("virtual", None, True) == "virtual machine unknown in the record, yes here"

    def test_the_record_stays_small(self, classes: dict[str, HostClass]) -> None:
        for found in classes.values():
            text = encode(found).decode()
            assert len(text.splitlines()) <= 22
            assert len(text) < 1000
            assert list(to_plain(found)) == [name for name in HostClass.__struct_fields__ if name in to_plain(found)]
            assert msgspec.json.decode(text, type=HostClass) == found

    def test_every_property_has_a_name(self) -> None:
        assert list(PROPERTY_NAMES) == [name for name in HostClass.__struct_fields__ if name not in {"id", "name"}]


class TestOtherSystems:
    def test_apple_silicon(self) -> None:
        """Values of archspec/archspec-json, tests/targets/darwin-sequoia-m4."""
        values = parse_sysctl(
            "hw.perflevel0.l1dcachesize: 131072\nhw.perflevel0.l2cachesize: 16777216\nhw.l1dcachesize: 65536\n"
            "hw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_I8MM: 1\n"
            "hw.optional.arm.FEAT_FP16: 1\nhw.optional.arm.FEAT_SME: 1\nhw.optional.arm.FEAT_SME2: 0\n"
            "hw.cpufamily: 399882554\nhw.cpusubfamily: 5\nkern.hv_vmm_present: 0\n"
        )
        assert build_processor(values) == Processor(
            cpu=CpuType(vendor="Apple", family="399882554", model="5"),
            instructions="asimdhp asimddp i8mm bf16 sme",
            caches=Caches(l1d_bytes=131072, l2_bytes=16777216),
            virtual=False,
        )

    def test_intel_mac(self) -> None:
        values = parse_sysctl(
            "machdep.cpu.vendor: GenuineIntel\nmachdep.cpu.family: 6\nmachdep.cpu.model: 142\n"
            "machdep.cpu.stepping: 10\n"
            "hw.cpufamily: 260141638\nhw.optional.avx1_0: 1\nhw.optional.avx2_0: 1\nhw.optional.avx512f: 0\n"
            "hw.l1dcachesize: 32768\nhw.l2cachesize: 262144\nhw.l3cachesize: 6291456\n"
        )
        found = build_processor(values)
        assert found.cpu == CpuType(vendor="GenuineIntel", family="6", model="142", stepping="10")
        assert found.instructions == "avx avx2"
        assert found.caches == Caches(l1d_bytes=32768, l2_bytes=262144, l3_bytes=6291456)

    def test_a_mac_without_any_values(self) -> None:
        assert build_processor({}) == Processor()
        assert build_processor({"hw.l2cachesize": "9" * 99, "hw.cpufamily": "\x1b[31m"}) == Processor()

    @pytest.mark.parametrize(
        ("text", "cpu"),
        [
            (
                "Intel64 Family 6 Model 85 Stepping 7, GenuineIntel",
                CpuType(vendor="GenuineIntel", family="6", model="85", stepping="7"),
            ),
            (
                "ARMv8 (64-bit) Family 8 Model D4B Revision   0, Qualcomm Technologies Inc",
                CpuType(vendor="Qualcomm Technologies In", family="8", model="D4B", stepping="0"),
            ),
            ("x86_64", None),
            ("", None),
        ],
    )
    def test_windows(self, text: str, cpu: CpuType | None, monkeypatch: pytest.MonkeyPatch) -> None:
        assert parse_identifier(text).cpu == cpu
        monkeypatch.setattr(sys, "platform", "win32")
        monkeypatch.setattr(platform, "processor", lambda: text)
        host = read_host(memory=False)
        assert (host.cpu_model, host.processor.cpu) == (text, cpu)


class TestUntrustedFiles:
    def test_without_any_file(self, tmp_path: Path) -> None:
        topology = make_host(2).topology
        assert read_processor(tmp_path, topology, (0, 1), "") == Processor()

    @pytest.mark.parametrize(
        "line",
        [
            "vendor_id : \x1b]0;title\x07",
            "vendor_id : " + "A" * 10**6,
            "vendor_id : GenuineIntel\nmodel : 99999999999999999999\nstepping : -1\ncpu family : 6",
            "CPU implementer : 0xffffffffffffffffff\nCPU part : 0x\nCPU variant : x\nCPU revision : 1e9",
            "CPU implementer : 0x41\nCPU variant : 0x1\nCPU part : 0xd0c\nCPU revision : \u0663",
            "flags : " + "avx " * 10**5,
            "model name : " + "\u202e" * 1000,
            "vendor_id : GenuineIntel\ncpu family : 6\nmodel : \u0668\u0665",
        ],
    )
    def test_values(self, tmp_path: Path, line: str) -> None:
        text = f"processor : 0\n{line}\n"
        files = {"proc/cpuinfo": text, "sys/devices/system/cpu/online": "0"}
        found = HostClass.of(read_host(write_files(tmp_path, files), memory=False))
        self.check(found)

    @given(
        st.lists(
            st.sampled_from(("processor : 0", "processor : 1", "vendor_id : X", "CPU implementer : 0x41"))
            | st.text(max_size=30)
        )
    )
    def test_any_cpuinfo(self, lines: list[str]) -> None:
        text = "\n".join(lines)
        found = read_processor(Path("/nowhere"), make_host(2).topology, (0, 1), text)
        host = msgspec.structs.replace(make_host(2), processor=found, cpu_model=find_model_name(text))
        self.check(HostClass.of(host))

    @pytest.mark.parametrize(
        ("size", "bytes_"), [("32K", 32 << 10), ("1G", 1 << 30), ("0K", None), ("99999999999K", None), ("-1K", None)]
    )
    def test_cache_sizes(self, tmp_path: Path, size: str, bytes_: int | None) -> None:
        cache = "sys/devices/system/cpu/cpu0/cache/index0"
        files = {f"{cache}/level": "1", f"{cache}/type": "Data", f"{cache}/size": size}
        found = read_processor(write_files(tmp_path, files), make_host(1).topology, (0,), "")
        assert found.caches == (Caches(l1d_bytes=bytes_) if bytes_ else None)

    @pytest.mark.parametrize(
        ("maker", "product", "virtual"),
        [
            ("Amazon EC2", "c7g.metal", False),
            ("Amazon EC2", "c7g.large", True),
            ("QEMU", "KVM Virtual Machine", True),
            ("GIGABYTE", "R152-P30", False),
            ("", "", None),
        ],
    )
    def test_virtual_machines_on_arm(self, tmp_path: Path, maker: str, product: str, virtual: bool | None) -> None:
        dmi = "sys/class/dmi/id"
        write_files(tmp_path, {f"{dmi}/sys_vendor": maker, f"{dmi}/product_name": product})
        assert read_virtual(tmp_path, "CPU implementer : 0x41") is virtual

    def test_old_kernels_of_arm(self, tmp_path: Path) -> None:
        """They describe all CPUs once, at the end."""
        text = (
            "Processor\t: ARMv7 Processor rev 1 (v7l)\nprocessor\t: 0\nBogoMIPS\t: 1595.80\n\nprocessor\t: 1\n"
            "BogoMIPS\t: 1595.80\n\nFeatures\t: swp half neon\nCPU implementer\t: 0x41\nCPU architecture: 7\n"
            "CPU variant\t: 0x2\nCPU part\t: 0xc09\nCPU revision\t: 1\n"
        )
        found = read_processor(tmp_path, make_host(2).topology, (0,), text)
        assert found.cpu == CpuType(vendor="0x41", family="7", model="0xc09", stepping="r2p1")
        assert name_generation(found.cpu) == "Cortex-A9"

    def check(self, found: HostClass) -> None:
        assert found.name.isprintable()
        assert len(found.cpu_model) <= MOST_CHARACTERS
        assert set(found.instructions.split()) <= set(INSTRUCTIONS)
        assert len(encode(found)) < 2000
        assert found.includes(found)


@given(
    st.builds(
        CpuType,
        vendor=st.sampled_from(("GenuineIntel", "AuthenticAMD", "0x41")) | st.text(),
        family=st.text(),
        model=st.text(),
    )
)
def test_any_type_of_a_record_has_a_text(cpu: CpuType) -> None:
    assert isinstance(str(cpu), str)
    assert isinstance(name_generation(cpu), str)
