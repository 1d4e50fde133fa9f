"""`farm nodes` and `farm node`."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from farm.cli import show
from farm.cli.answers import read
from farm.cli.listing import Listing, Wanted
from farm.cli.naming import Connected, find_node
from farm.cli.show import Column, cell, words
from farm.control.fields import NODE_FIELDS, node_notes
from farm.model.machines import Device, DeviceKind, DeviceLoad, Node
from farm.model.states import NodeState
from farm.text import duration, plural, size


def nodes(client: Connected, wanted: Wanted) -> None:
    listing = Listing(Node, NODE_FIELDS, "nodes", wanted)
    columns = [
        Column("Node", shrinks=True, least=8),
        Column("State"),
        Column("Device", shrinks=True, least=10),
        Column("Class"),
        Column("Busy", is_right=True),
        Column("Load", is_right=True),
        Column("Running", shrinks=True, least=10),
        Column("Note", shrinks=True, least=8),
    ]
    empty = "no such nodes" if wanted.is_filtered else "no nodes: start one with `farm worker`"
    listing.put(listing.matching(client().items("/nodes")), columns, _node_row, empty=empty)


def _node_row(node: Node) -> list[Any]:
    able = node.capabilities
    best = max(able.devices, key=lambda device: device.fp32_tflops or 0.0, default=None)
    loads = {load.device_id: load.utilisation for load in node.loads}
    models = Counter(device.model for device in able.devices if device.kind != "cpu") or Counter(
        device.model for device in able.devices
    )
    device = ", ".join(f"{count} x {model}" if count > 1 else model for model, count in models.items())
    note = "; ".join(node_notes(node))
    if node.state in (NodeState.OFFLINE, NodeState.SUSPECT) and not node.reason:
        note = f"silent for {duration(node.silent_s)}{'; ' if note else ''}{note}"
    return [
        cell(node.id),
        show.state(node.state),
        cell(device),
        cell(", ".join(dict.fromkeys(device.device_class for device in able.devices if device.device_class))),
        cell(f"{len(node.attempts)}/{able.slots}"),
        cell(show.percent(None if best is None else loads.get(best.id))),
        cell(", ".join(node.running)),
        cell(note),
    ]


def node(client: Connected, name: str, wanted: Wanted) -> None:
    from farm.control.detail_fields import DEVICE_FIELDS, DeviceSeen

    listing = Listing(DeviceSeen, DEVICE_FIELDS, "devices", wanted)
    answer = find_node(client(), name)
    node = read(Node, answer)
    able = node.capabilities
    loads = {load.device_id: load for load in node.loads}
    seen = [DeviceSeen(device=device, load=loads.get(device.id)) for device in able.devices]
    if listing.put_chosen(seen, empty="no devices"):
        return
    if wanted.is_json:
        show.data(answer)
        return
    show.facts(
        [
            ("node", cell(node.id)),
            ("state", words(f"{node.state}, {node.reason}") if node.reason else show.state(node.state)),
            ("last heard", f"{duration(node.silent_s)} ago"),
            ("system", cell(f"{able.os_family} {able.cpu_arch}, {plural(able.cpus, 'core')}")),
            ("memory", size(able.memory_mib * 2**20)),
            ("disk free", "n/a" if node.disk_free_mib is None else size(node.disk_free_mib * 2**20)),
            (
                "disk rate",
                ""
                if able.disk_write_mbps is None or able.disk_read_mbps is None
                else f"writes {able.disk_write_mbps:,.0f}, reads {able.disk_read_mbps:,.0f} MB/s (measured)",
            ),
            ("pools", cell(", ".join(able.pools))),
            (
                "renderers",
                words(", ".join(f"{name} {version}" for name, version in sorted(able.software.items()))),
            ),
            (
                "attributes",
                words(", ".join(f"{k}={'|'.join(v)}" for k, v in sorted(able.attributes.items()))),
            ),
            ("amounts", words(", ".join(f"{k}={v:g}" for k, v in sorted(able.amounts.items())))),
            ("agent", cell(node.agent_version)),
            *(("note", words(text)) for text in able.notes),
            ("busy", f"{len(node.attempts)} of {plural(able.slots, 'slot')}"),
            *(("running", words(text)) for text in node.running),
        ]
    )
    print()
    show.table(
        [
            Column("Device", shrinks=True, least=10),
            Column("Kind"),
            Column("Slots", is_right=True),
            Column("FP32", is_right=True),
            Column("Mem. bandwidth", is_right=True),
            Column("Ridge", is_right=True),
            Column("Class"),
            Column("VRAM", is_right=True),
            Column("Load", is_right=True),
            Column("Mem.", is_right=True),
            Column("Temp.", is_right=True),
            Column("Power", is_right=True),
        ],
        (_device_row(each.device, each.load) for each in seen),
        empty="no devices",
    )
    told = [line for each in seen for line in _device_notes(each.device, each.load)]
    if told:
        print()
    for line in told:
        show.put(words(line))


def _device_notes(device: Device, load: DeviceLoad | None) -> list[str]:
    """What a table has no room for: where the figures come from, what is unknown and why, what is wrong."""
    if device.kind is DeviceKind.CPU:
        rate = device.ray_rate_mrays
        return [] if rate is None else [f"{device.model}: {rate:.3g} million rays/s (measured)"]
    facts = [device.id, device.architecture, device.api, device.pci]
    if device.pcie_generation and device.pcie_width:
        facts.append(f"PCIe {device.pcie_generation}.0 x{device.pcie_width}")
    if device.ray_tracing_generation is not None:
        generation = device.ray_tracing_generation
        facts.append(f"ray tracing generation {generation}" if generation else "no ray-tracing hardware")
    if device.tdp_w is not None:
        facts.append(f"{device.tdp_w:.0f} W")
    if device.host_bandwidth_gbps is not None:
        facts.append(f"{device.host_bandwidth_gbps:.3g} GB/s from the host")
    if device.ray_rate_mrays is not None:
        facts.append(f"{device.ray_rate_mrays:.3g} million rays/s")
    if device.driver:
        facts.append(f"driver {device.driver}")
    lines = [f"{device.model}: {', '.join(filter(None, facts))}"]
    by_source: dict[str, list[str]] = {}
    for name, source in device.sources.items():
        by_source.setdefault(source, []).append(_SHORT.get(name, name))
    if by_source:
        lines.append("  " + "; ".join(f"{', '.join(names)}: {source}" for source, names in by_source.items()))
    lines += [f"  {_SHORT.get(name, name)} is not known: {why}" for name, why in device.unknown.items()]
    if load is None and not device.is_declared:
        lines.append("  its load is not known")
    for text in (load.fault, load.closed, load.complaint) if load is not None else ():
        if text:
            lines.append(f"  {text}")
    return lines


def _device_row(device: Device, load: DeviceLoad | None) -> list[Any]:
    tflops, bandwidth = device.fp32_tflops, device.memory_bandwidth_gbps
    return [
        cell(device.model),
        cell(device.kind),
        cell(device.slots),
        "n/a" if tflops is None else f"{tflops:.3g} TFLOPS",
        "n/a" if bandwidth is None else f"{bandwidth:.4g} GB/s",
        "n/a" if device.ridge is None else f"{device.ridge:.3g} FLOP/B",
        cell(device.device_class),
        "-" if device.vram_mib is None else size(device.vram_mib * 2**20),
        show.percent(None if load is None else load.utilisation),
        show.percent(None if load is None else load.memory_occupancy),
        "n/a" if load is None or load.temperature_c is None else f"{load.temperature_c:.0f} °C",
        "n/a" if load is None or load.power_w is None else f"{load.power_w:.0f} W",
    ]


_SHORT: Final = {
    "fp32_tflops": "FP32",
    "memory_bandwidth_gbps": "memory bandwidth",
    "vram_mib": "VRAM",
    "tdp_w": "power",
    "host_bandwidth_gbps": "rate from the host",
    "ray_rate_mrays": "ray rate",
}
