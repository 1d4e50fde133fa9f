"""Peak figures from what NVML tells, against published ones; and the catalogue's exact lookups.

Bus widths and cores are those of the data sheets. Clocks are what the driver tells as the highest: those in
`SEEN` stand in public dumps of real boards, whose addresses are given; the others are half of the published
data rate, or typed in from memory of such dumps, and may be a few MHz off what a given board tells.
"""

from __future__ import annotations

import pytest

from workers.gpu import catalogue, peaks

# name -> (bus bits, NVML memory MHz)
MEMORY = {
    "GeForce GTX 1050 Ti": (128, 3504),
    "GeForce GTX 1060 6GB": (192, 4004),
    "GeForce GTX 1070": (256, 4004),
    "GeForce GTX 1070 Ti": (256, 4004),
    "GeForce GTX 1080": (256, 5005),
    "GeForce GTX 1080 Ti": (352, 5505),
    "TITAN Xp": (384, 5705),
    "TITAN V": (3072, 850),
    "GeForce GTX 1650": (128, 4001),
    "GeForce GTX 1650 SUPER": (128, 6001),
    "GeForce GTX 1660": (192, 4001),
    "GeForce GTX 1660 SUPER": (192, 7001),
    "GeForce GTX 1660 Ti": (192, 6001),
    "GeForce RTX 2060": (192, 7001),
    "GeForce RTX 2060 SUPER": (256, 7001),
    "GeForce RTX 2070": (256, 7001),
    "GeForce RTX 2070 SUPER": (256, 7001),
    "GeForce RTX 2080": (256, 7001),
    "GeForce RTX 2080 SUPER": (256, 7751),
    "GeForce RTX 2080 Ti": (352, 7001),
    "TITAN RTX": (384, 7001),
    "GeForce RTX 3050": (128, 7001),
    "GeForce RTX 3060": (192, 7501),
    "GeForce RTX 3060 Ti": (256, 7001),
    "GeForce RTX 3070": (256, 7001),
    "GeForce RTX 3070 Ti": (256, 9501),
    "GeForce RTX 3080": (320, 9501),
    "GeForce RTX 3080 Ti": (384, 9501),
    "GeForce RTX 3090": (384, 9751),
    "GeForce RTX 3090 Ti": (384, 10501),
    "GeForce RTX 4060": (128, 8501),
    "GeForce RTX 4060 Ti": (128, 9001),
    "GeForce RTX 4070": (192, 10501),
    "GeForce RTX 4070 SUPER": (192, 10501),
    "GeForce RTX 4070 Ti": (192, 10501),
    "GeForce RTX 4070 Ti SUPER": (256, 10501),
    "GeForce RTX 4080": (256, 11201),
    "GeForce RTX 4080 SUPER": (256, 11501),
    "GeForce RTX 4090": (384, 10501),
    "GeForce RTX 5070": (192, 14001),
    "GeForce RTX 5070 Ti": (256, 14001),
    "GeForce RTX 5080": (256, 15001),
    "GeForce RTX 5090": (512, 14001),
    "Tesla P40": (384, 3615),
    "Tesla P100-PCIE-16GB": (4096, 715),
    "Tesla P100-SXM2-16GB": (4096, 715),
    "Tesla V100-SXM2-16GB": (4096, 877),
    "Tesla V100-SXM2-32GB": (4096, 877),
    "Tesla T4": (256, 5001),
    "A10": (384, 6251),
    "A30": (3072, 1215),
    "A40": (384, 7251),
    "A100-SXM4-40GB": (5120, 1215),
    "A100-SXM4-80GB": (5120, 1593),
    "A100 80GB PCIe": (5120, 1512),
    "L4": (192, 6251),
    "L40S": (384, 9001),
    "H100 80GB HBM3": (5120, 2619),
    "RTX A6000": (384, 8001),
    "RTX 6000 Ada Generation": (384, 10001),
}

# name -> (cores, NVML SM MHz, NVML brand)
ARITHMETIC = {
    "Tesla P40": (3840, 1531, 2),
    "Tesla P100-SXM2-16GB": (3584, 1480, 2),
    "Tesla V100-SXM2-32GB": (5120, 1530, 2),
    "Tesla V100-PCIE-16GB": (5120, 1380, 2),
    "Tesla T4": (2560, 1590, 2),
    "A10": (9216, 1695, 14),
    "A40": (10752, 1740, 14),
    "A100-SXM4-80GB": (6912, 1410, 14),
    "A100-PCIE-40GB": (6912, 1410, 14),
    "L4": (7424, 2040, 14),
    "L40S": (18176, 2520, 14),
    "H100 80GB HBM3": (16896, 1980, 14),
    "H200": (16896, 1980, 14),
    "B200": (18944, 1965, 14),
    "GeForce RTX 3060 Ti": (4864, 2100, 5),
    "GeForce RTX 3070": (5888, 2100, 5),
    "GeForce RTX 3080": (8704, 2100, 5),
    "GeForce RTX 3090": (10496, 2100, 5),
    "GeForce RTX 4060 Laptop GPU": (3072, 2100, 5),
    "GeForce RTX 4070": (5888, 3105, 5),
    "GeForce RTX 4080": (9728, 3105, 5),
    "GeForce RTX 4090": (16384, 3105, 5),
    "GeForce RTX 5090": (21760, 3090, 5),
    "RTX 6000 Ada Generation": (18176, 3105, 13),
}

# name -> (bus bits, memory MHz, SM MHz, where it was seen); None: not in that dump
SEEN: dict[str, tuple[int | None, int | None, int | None, str]] = {
    "Tesla T4": (None, 5001, 1590, "github.com/NVIDIA/nvidia-docker/issues/1446"),
    "GeForce GTX 1080 Ti": (None, 5505, 1911, "github.com/NVIDIA/nvidia-docker/issues/829"),
    "Tesla V100-SXM2-32GB": (None, 877, 1530, "github.com/NVIDIA/nvidia-docker/issues/914"),
    "A100-SXM4-40GB": (None, 1215, 1410, "github.com/NVIDIA/nvidia-docker/issues/1648"),
    "GeForce RTX 3090": (None, 9751, None, "github.com/nicehash/NiceHashQuickMiner/issues/206"),
    "GeForce RTX 4090": (384, 10501, None, "github.com/NVIDIA/nvbench/pull/207"),
    "H200": (None, 3201, 1980, "github.com/awslabs/amazon-eks-ami/pull/1985"),
    "B200": (7680, 3996, None, "github.com/pytorch/ao/pull/4002"),
}


@pytest.mark.parametrize("name", SEEN)
def test_what_real_drivers_were_seen_to_tell_stands_in_the_tables_here(name: str) -> None:
    bits, memory_mhz, sm_mhz, _ = SEEN[name]
    assert name in MEMORY or name in ARITHMETIC
    if name in MEMORY:
        assert MEMORY[name] == (bits or MEMORY[name][0], memory_mhz or MEMORY[name][1])
    if name in ARITHMETIC:
        assert ARITHMETIC[name][1] == (sm_mhz or ARITHMETIC[name][1])
    model = catalogue.look_up(name)
    assert model is not None
    if bits is not None:
        assert peaks.memory_bandwidth_gbps(bits, memory_mhz) == pytest.approx(
            model.memory_bandwidth_gbps, rel=0.01
        )


def test_peak_bandwidth_is_within_one_percent_on_public_cards() -> None:
    assert len(MEMORY) >= 50
    wrong = {}
    for name, (bits, mhz) in MEMORY.items():
        model = catalogue.look_up(name)
        derived = peaks.memory_bandwidth_gbps(bits, mhz)
        assert model is not None, name
        assert derived is not None
        if abs(derived / model.memory_bandwidth_gbps - 1) > 0.01:
            wrong[name] = (derived, model.memory_bandwidth_gbps)
    assert not wrong


def test_peak_arithmetic_is_within_four_percent_on_public_cards() -> None:
    assert len(ARITHMETIC) >= 20
    wrong = {}
    for name, (cores, mhz, brand) in ARITHMETIC.items():
        model = catalogue.look_up(name)
        derived = peaks.fp32_tflops(cores, mhz, brand=brand, name=name)
        assert model is not None, name
        assert derived is not None
        if abs(derived / model.fp32_tflops - 1) > 0.04:
            wrong[name] = (round(derived, 1), model.fp32_tflops)
    assert not wrong


def test_every_model_finds_itself_under_the_names_drivers_give() -> None:
    found = catalogue.models()
    assert len(found) == 200
    for (vendor, _), model in found.items():
        assert catalogue.look_up(model.name, vendor) is model
    for name in ("NVIDIA GeForce RTX 4090", "GEFORCE RTX 4090", "nvidia geforce rtx 4090"):
        assert catalogue.look_up(name) is catalogue.look_up("GeForce RTX 4090")
    arc = catalogue.look_up("Intel(R) Arc(TM) A770 Graphics", "intel")
    assert arc is catalogue.look_up("Arc A770", "intel")
    assert arc is not None


def test_no_model_is_found_by_the_beginning_of_its_name() -> None:
    for (vendor, _), model in catalogue.models().items():
        for other in (f"{model.name} X", f"{model.name}0", model.name[:-1]):
            hit = catalogue.look_up(other, vendor)
            assert hit is None or catalogue.key(hit.name) == catalogue.key(other)
    assert catalogue.look_up("GeForce RTX 4090", "amd") is None


def test_a_figure_that_counts_pairs_is_halved() -> None:
    model = catalogue.look_up("Radeon RX 7900 XTX", "amd")
    assert model is not None
    assert model.fp32_tflops == pytest.approx(61.4 / 2, rel=0.01)


def test_what_was_measured_is_believed_before_what_is_written() -> None:
    told = {"driver": 80.0, "catalogue": 82.6, "measured": 71.0}
    assert peaks.settle(told).source == "measured"
    assert peaks.settle(told | {"configured": 50.0}).value == 50.0
    assert peaks.settle({"driver": 80.0, "catalogue": 82.6}).source == "catalogue"
    assert peaks.settle({"driver": 80.0, "catalogue": None}).value == 80.0
    assert peaks.settle({"driver": None, "catalogue": None}).value is None
    assert not peaks.settle({"driver": 80.0, "catalogue": 82.6}).doubt
    assert peaks.settle({"driver": 40.0, "catalogue": 82.6}).doubt


@pytest.mark.parametrize(
    ("vram", "whole", "share"),
    [
        (9728, 81920, 1 / 8),
        (19968, 81920, 2 / 8),
        (40192, 81920, 4 / 8),
        (81152, 81559, 1),
        (10, 81920, 1 / 8),
    ],
)
def test_an_instance_has_whole_eighths_of_the_bandwidth(vram: int, whole: int, share: float) -> None:
    assert peaks.slice_share(vram, whole) == share


def test_multiprocessors_have_as_many_cores_as_their_generation() -> None:
    told = {
        (6, 0): 64,
        (6, 1): 128,
        (7, 0): 64,
        (7, 5): 64,
        (8, 0): 64,
        (8, 6): 128,
        (9, 0): 128,
        (12, 0): 128,
    }
    assert {capability: peaks.cores_per_multiprocessor(capability) for capability in told} == told
