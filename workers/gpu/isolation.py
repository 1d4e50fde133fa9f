"""What keeps an attempt on its device: environment variables, by UUID where there is one. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from farm.model.machines import Capabilities, Device, DeviceKind

HIDDEN: Mapping[str, Mapping[str, str]] = {
    "nvidia": {"CUDA_VISIBLE_DEVICES": ""},
    "amd": {"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"},
    # An empty mask would mean "all".
    "intel": {"ONEAPI_DEVICE_SELECTOR": "!level_zero:gpu"},
}
"""What hides all devices of a vendor."""


def device_environment(capabilities: Capabilities, device_id: str) -> dict[str, str]:
    """Variables for an attempt on the device (or devices: ids joined by commas).

    Indices are no use: CUDA and the driver count differently. All GPUs that are not the attempt's are
    hidden, of every vendor that the machine has; they belong to other slots.
    """
    ids = device_id.split(",")
    gpus = [device for device in capabilities.devices if device.kind is not DeviceKind.CPU]
    own = [device for device in gpus if device.id in ids]
    added: dict[str, str] = {}
    for vendor in dict.fromkeys(_vendor(device) for device in gpus):
        added |= HIDDEN.get(vendor, {})
    for vendor in dict.fromkeys(_vendor(device) for device in own):
        for name in HIDDEN.get(vendor, {}):
            added.pop(name, None)
        added |= _visible([device for device in own if _vendor(device) == vendor])
    return added


def _vendor(device: Device) -> str:
    return device.vendor or "nvidia"


def _visible(devices: list[Device]) -> dict[str, str]:
    """The variables of several devices of one vendor: their values joined, each once and in order."""
    merged: dict[str, list[str]] = {}
    for device in devices:
        for name, value in (device.visible or _by_uuid(device)).items():
            values = merged.setdefault(name, [])
            if name == "HIP_VISIBLE_DEVICES":
                values.append(str(len(values)))  # what ROCr leaves is counted from 0
            elif value not in values:
                values.append(value)
    return {name: ",".join(values) for name, values in merged.items()}


def _by_uuid(device: Device) -> dict[str, str]:
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": device.id}
