"""What is known of a scene's cost before it was rendered. Pure."""

from __future__ import annotations

from plugins.blender.blendfile import BlendHead


def hints(*, size_bytes: int, head: BlendHead, frames: int) -> dict[str, float | str]:
    """For `Submission.hints`. `scene_mib` is the file's size: what it holds itself, not what it links."""
    known: dict[str, float | str] = {"scene_mib": round(size_bytes / 2**20, 3), "frames": float(frames)}
    if head.version is not None:
        known["saved_by"] = f"{head.version[0]}.{head.version[1]}"
    return known
