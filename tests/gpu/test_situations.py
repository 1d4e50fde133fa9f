"""What the NVIDIA provider makes of 30 and more kinds of machines, on a fake driver library."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.fakes import Reader, board, busy, node


def only(devices: list[Any]) -> Any:
    (device,) = devices
    return device


# --- whole nodes ----------------------------------------------------------------------------------


def test_a_node_of_eight_alike_has_eight_devices_by_uuid(reader: Reader) -> None:
    devices = reader.look(node(*(board("h100", i) for i in range(8))))
    assert len({device["id"] for device in devices}) == 8
    assert {device["model"] for device in devices} == {"NVIDIA H100 80GB HBM3"}
    assert [device["pci"] for device in devices][:2] == ["0000:17:00.0", "0000:18:00.0"]
    assert reader.notes == []


def test_a_consumer_and_a_data_centre_board_side_by_side(reader: Reader) -> None:
    rtx, t4 = reader.look(node(board("rtx4090", 0), board("t4", 1)))
    assert (rtx["fp32_tflops"], rtx["memory_bandwidth_gbps"]) == (82.6, 1008)
    assert (t4["fp32_tflops"], t4["vram_mib"]) == (8.1, 15360)
    assert (rtx["ray_tracing_generation"], t4["ray_tracing_generation"]) == (3, 1)
    assert rtx["sources"]["fp32_tflops"] == "catalogue"
    assert rtx["sources"]["vram_mib"] == "driver"


def test_a_workstation_board_has_its_sheet_power_and_link(reader: Reader) -> None:
    device = only(reader.look(node(board("l40s"))))
    assert (device["tdp_w"], device["pcie_generation"], device["pcie_width"]) == (350, 4, 16)
    assert (device["architecture"], device["api"], device["driver"]) == ("ada", "cuda 8.9", "580.95.05")


@pytest.mark.parametrize("kind", ["gtx1080ti", "rtx3090", "rtx5090", "v100", "b200", "h200", "p40", "l4"])
def test_every_generation_is_known(reader: Reader, kind: str) -> None:
    device = only(reader.look(node(board(kind))))
    assert device["fp32_tflops"]
    assert device["memory_bandwidth_gbps"]
    assert device["vram_mib"]
    assert device["unknown"] == {}


def test_a_board_that_no_catalogue_knows_gets_its_figures_from_the_driver(reader: Reader) -> None:
    device = only(reader.look(node(board("rtx4090", name="NVIDIA GeForce RTX 9999"))))
    assert device["sources"]["fp32_tflops"] == "driver"
    assert device["fp32_tflops"] == pytest.approx(82.4, abs=0.1)
    assert device["memory_bandwidth_gbps"] == pytest.approx(1008.1, abs=0.1)
    assert device["ray_tracing_generation"] is None


def test_a_name_that_begins_like_a_known_one_is_another_card(reader: Reader) -> None:
    device = only(reader.look(node(board("rtx4090", name="NVIDIA GeForce RTX 4090 Laptop GPU"))))
    assert device["fp32_tflops"] == 33.0
    device = only(reader.look(node(board("rtx4090", name="NVIDIA GeForce RTX 4090 Super Duper"))))
    assert device["sources"]["fp32_tflops"] == "driver"


def test_catalogue_and_driver_that_contradict_each_other_are_told(reader: Reader) -> None:
    device = only(reader.look(node(board("rtx4090", cores=9000))))
    assert device["fp32_tflops"] == 82.6
    assert "doubtful" in reader.notes[0]


# --- MIG ------------------------------------------------------------------------------------------


def test_instances_stand_in_for_the_gpu_that_is_cut_up(reader: Reader) -> None:
    big, small = reader.look(node(board("a100", mig=("3g.40gb", "1g.10gb"))))
    assert (big["kind"], big["id"], big["parent_id"]) == ("mig", "MIG-n-0000-0", "GPU-n-0000")
    assert big["memory_bandwidth_gbps"] == pytest.approx(2039 / 2)
    assert small["memory_bandwidth_gbps"] == pytest.approx(2039 / 8)
    assert small["fp32_tflops"] == pytest.approx(19.5 * 14 / 108, rel=0.01)
    assert big["visible"]["CUDA_VISIBLE_DEVICES"] == big["id"]


def test_an_instance_cannot_say_how_busy_it_is_and_that_is_not_zero(reader: Reader) -> None:
    reader.look(node(board("a100", mig=("3g.40gb",))))
    sample = only(reader.ask("samples"))
    assert (sample["busy"], sample["memory_busy"], sample["power_w"]) == (None, None, None)
    assert sample["vram_used_mib"] == 12


def test_instances_with_gaps_between_them_are_found(reader: Reader) -> None:
    cut = board("h100", mig=("1g.10gb", "1g.10gb", "1g.10gb"))
    del cut["mig"][1]
    assert [d["id"] for d in reader.look(node(cut))] == ["MIG-n-0000-0", "MIG-n-0000-2"]


def test_a_gpu_in_mig_mode_without_instances_is_told_of(reader: Reader) -> None:
    assert reader.look(node(board("a100", mig_mode=1))) == []
    assert "no instance" in reader.notes[0]


def test_mig_and_whole_gpus_on_one_node(reader: Reader) -> None:
    devices = reader.look(node(board("a100", 0, mig=("2g.20gb",)), board("a100", 1)))
    assert [device["kind"] for device in devices] == ["mig", "gpu"]


def test_an_instance_that_was_cut_anew_is_gone(reader: Reader) -> None:
    reader.look(node(board("h100", mig=("1g.10gb",))))
    reader.driver.change(0, mig={0: {"uuid": None}})
    assert "cut up anew" in only(reader.ask("samples"))["fault"]


# --- what some cannot say ---------------------------------------------------------------------------


def test_a_jetson_has_the_memory_of_its_host(reader: Reader) -> None:
    orin = board("rtx3060ti", name="Orin (nvgpu)", memory_mib=None, bus_bits=256, brand=0)
    device = only(reader.look(node(orin)))
    assert device["is_unified"]
    assert device["vram_mib"] > 100
    assert device["memory_bandwidth_gbps"] is None, "its memory clock is no memory clock"
    assert "memory_bandwidth_gbps" in device["unknown"]


def test_memory_that_a_driver_does_not_tell_is_unknown_and_why(reader: Reader) -> None:
    device = only(reader.look(node(board("rtx3090", memory_mib=None))))
    assert device["vram_mib"] is None
    assert device["unknown"]["vram_mib"] == "the driver does not tell"


def test_wsl_tells_no_utilisation_and_no_processes(reader: Reader) -> None:
    silent = {
        "nvmlDeviceGetUtilizationRates": "UNKNOWN",
        "nvmlDeviceGetComputeRunningProcesses_v3": "UNKNOWN",
    }
    silent["nvmlDeviceGetGraphicsRunningProcesses_v3"] = "UNKNOWN"
    device = only(reader.look(node(board("rtx3090", error=silent))))
    assert "busy" not in device["telemetry"]
    assert "processes" not in device["telemetry"]
    sample = only(reader.ask("processes"))
    assert (sample["busy"], sample["processes"], sample["temperature_c"]) == (None, None, 35)


def test_a_vgpu_tells_no_energy_and_no_power(reader: Reader) -> None:
    reader.look(node(board("a100", energy_mj=None, power_mw=None, virtualization=2)))
    sample = only(reader.ask("samples"))
    assert (sample["energy_j"], sample["power_w"], sample["busy"]) == (None, None, 0)


def test_a_board_from_before_volta_has_no_energy_counter(reader: Reader) -> None:
    assert "energy" not in only(reader.look(node(board("gtx1080ti"))))["telemetry"]


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetNumGpuCores",
        "nvmlDeviceGetMemoryBusWidth",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetArchitecture",
        "nvmlGpmQueryDeviceSupport",
        "nvmlEventSetCreate",
        "nvmlDeviceGetMigMode",
    ],
)
def test_an_old_driver_without_a_function_is_read_all_the_same(reader: Reader, function: str) -> None:
    device = only(reader.look(node(board("rtx3090"), missing={function: 1}, driver="450.80.02")))
    assert device["fp32_tflops"]
    assert device["vram_mib"] == 24576
    assert only(reader.ask("samples"))["vram_used_mib"] is not None
    assert reader.ask("faults") == {}


def test_the_old_memory_call_counts_the_driver_s_share(reader: Reader) -> None:
    reader.look(node(board("rtx3090", used_mib=1000), missing={"nvmlDeviceGetMemoryInfo_v2": 1}))
    assert only(reader.ask("samples"))["vram_used_mib"] == 1319
    reader.look(node(board("rtx3090", used_mib=1000)))
    assert only(reader.ask("samples"))["vram_used_mib"] == 1000


def test_a_garbled_name_is_no_name(reader: Reader) -> None:
    fixture = node(board("rtx3090", name="\udcff\udcfe\udc80"))
    device = only(reader.look(fixture))
    assert device["model"] == "NVIDIA GPU"
    assert device["sources"]["fp32_tflops"] == "driver"


def test_a_garbled_bus_address_is_none(reader: Reader) -> None:
    assert only(reader.look(node(board("rtx3090", pci="\udcff\udcfe"))))["pci"] is None


def test_a_name_cannot_harm_a_terminal(reader: Reader) -> None:
    device = only(reader.look(node(board("rtx3090", name="evil \x1b[31m card"))))
    assert "\x1b" not in device["model"]


def test_a_function_that_may_not_be_called_is_unknown(reader: Reader) -> None:
    reader.look(node(board("rtx3090", error={"nvmlDeviceGetPowerUsage": "NO_PERMISSION"})))
    assert only(reader.ask("samples"))["power_w"] is None


# --- no driver, or a broken one --------------------------------------------------------------------


def test_a_machine_without_a_loaded_driver_says_so(reader: Reader) -> None:
    assert reader.look({}) == []
    assert reader.notes == ["the NVIDIA driver is not loaded"]
    assert reader.node_fault == ""


def test_driver_and_library_of_two_versions_drain_the_node(reader: Reader) -> None:
    assert reader.look(node(board("rtx3090"), init={"error": "LIB_RM_VERSION_MISMATCH"})) == []
    assert "reboot" in reader.node_fault
    assert reader.notes == [reader.node_fault]


def test_a_driver_that_does_not_start_is_told_of(reader: Reader) -> None:
    assert reader.look(node(board("rtx3090"), init={"error": "UNKNOWN"})) == []
    assert "does not start" in reader.notes[0]
    assert reader.node_fault == ""


def test_a_driver_without_gpus_is_no_problem(reader: Reader) -> None:
    assert reader.look(node()) == []
    assert reader.notes == []


def test_a_gpu_that_is_lost_at_the_start_leaves_the_others(reader: Reader) -> None:
    devices = reader.look(node(board("h100", 0), board("h100", 1, lost=1), board("h100", 2)))
    assert [device["id"] for device in devices] == ["GPU-n-0000", "GPU-n-0002"]
    assert "GPU 1 is lost" in reader.notes[0]


def test_a_gpu_that_needs_a_reset_is_told_of(reader: Reader) -> None:
    error = {"nvmlDeviceGetUUID": "RESET_REQUIRED"}
    assert reader.look(node(board("h100", error=error))) == []
    assert "needs a reset" in reader.notes[0]


def test_two_gpus_of_one_name_are_not_one(reader: Reader) -> None:
    assert len(reader.look(node(board("t4", 0), board("t4", 1, uuid="GPU-n-0000")))) == 1
    assert "another one" in reader.notes[0]


def test_a_gpu_without_an_identity_is_left_out(reader: Reader) -> None:
    assert len(reader.look(node(board("t4", 0, uuid=None), board("t4", 1)))) == 1
    assert "left out" in reader.notes[0]


# --- while it runs -----------------------------------------------------------------------------------


def test_a_load_that_changes_is_seen(reader: Reader) -> None:
    reader.look(node(board("rtx4090")))
    assert only(reader.ask("samples"))["busy"] == 0
    reader.driver.change(0, **busy(board("rtx4090"), 97, 33, used_mib=9000))
    sample = only(reader.ask("samples"))
    assert (sample["busy"], sample["memory_busy"], sample["vram_used_mib"]) == (0.97, 0.33, 9000)
    assert (sample["temperature_c"], sample["slowdowns"]) == (66, []), "a power cap is normal at full load"


def test_a_gpu_that_falls_off_the_bus_is_lost_and_its_neighbour_is_not(reader: Reader) -> None:
    reader.look(node(board("h100", 0), board("h100", 1)))
    reader.driver.change(0, lost=1)
    lost, well = reader.ask("samples")
    assert "fallen off the bus" in lost["fault"]
    assert well["fault"] == ""
    assert well["vram_total_mib"] == 81559


def test_heat_that_slows_a_gpu_down_is_told(reader: Reader) -> None:
    reader.look(node(board("rtx4090")))
    reader.driver.change(0, reasons=0x40 | 4, sm_mhz_now=900, temperature=92)
    sample = only(reader.ask("samples"))
    assert sample["slowdowns"] == ["hardware thermal slowdown"]
    assert sample["clock_mhz"] == 900


def test_an_xid_is_a_fault_of_its_gpu_only(reader: Reader) -> None:
    reader.look(node(board("h100", 0), board("h100", 1)))
    reader.driver.xid(1, 79)
    assert reader.ask("faults") == {"GPU-n-0001": "Xid 79: fell off the bus"}
    assert reader.ask("faults") == {}, "told once"


def test_an_xid_of_the_application_s_doing_is_no_fault(reader: Reader) -> None:
    reader.look(node(board("h100")))
    reader.driver.xid(0, 31)
    assert reader.ask("faults") == {}


def test_an_xid_of_a_cut_up_gpu_is_a_fault_of_all_its_instances(reader: Reader) -> None:
    reader.look(node(board("a100", mig=("1g.10gb", "1g.10gb"))))
    reader.driver.xid(0, 95)
    assert sorted(reader.ask("faults")) == ["MIG-n-0000-0", "MIG-n-0000-1"]


def test_processes_of_both_kinds_are_listed_once(reader: Reader) -> None:
    told = {0: {"pid": 10, "mib": 500}, 1: {"pid": 11, "type": "G", "mib": 70}, 2: {"pid": 10, "type": "G"}}
    reader.look(node(board("rtx4090", process=told)))
    assert {p["pid"] for p in only(reader.ask("processes"))["processes"]} == {10, 11}
    assert only(reader.ask("samples"))["processes"] is None, "not asked"


def test_hopper_counters_are_shares(reader: Reader) -> None:
    told = {2: 95.0, 10: 62.0, 12: 31.0, 5: 0.0}
    reader.look(node(board("h100", gpm=told)))
    # The key of the support flag is a number of its own in the fixture.
    reader.driver.write(reader.driver.path.read_text() + "gpu.0.gpm = 1\n")
    reader.ask("new")
    reader.ask("devices")
    assert only(reader.ask("samples"))["dram_active"] is None, "counters need two readings"
    sample = only(reader.ask("samples"))
    assert (sample["dram_active"], sample["arithmetic_active"]) == (0.62, 0.31)
    assert sample["multiprocessors_active"] == 0.95


def test_a_power_cap_and_a_narrow_link_are_told(reader: Reader) -> None:
    reader.look(node(board("rtx4090", power_limit_mw=270_000, pcie_width_now=4)))
    sample = only(reader.ask("samples"))
    assert sample["power_limit_share"] == 0.6
    assert (sample["link_width"], sample["link_most_width"]) == (4, 16)


def test_a_container_that_lost_its_devices_is_given_up_after_a_while(reader: Reader) -> None:
    reader.look(node(board("rtx4090")))
    reader.driver.change_node(
        error={
            f"nvmlDeviceGet{what}": "UNKNOWN"
            for what in (
                "MemoryInfo_v2",
                "MemoryInfo",
                "UtilizationRates",
                "Temperature",
                "PowerUsage",
                "ClockInfo",
            )
        }
    )
    faults = [only(reader.ask("samples"))["fault"] for _ in range(12)]
    assert faults[0] == ""
    assert "restart the container" in faults[-1]


def test_a_changed_compute_mode_is_seen(reader: Reader) -> None:
    reader.look(node(board("rtx4090")))
    reader.driver.change(0, compute_mode=2)
    assert only(reader.ask("samples"))["compute_mode"] == 2


def test_a_forked_child_starts_the_driver_anew(reader: Reader) -> None:
    reader.look(node(board("rtx4090")))
    assert reader.ask("fork") == ["GPU-n-0000"]
    assert only(reader.ask("samples"))["busy"] == 0, "the parent goes on"
