"""Renders one frame of a Houdini file: `hython render.py SCENE FRAME OUTPUT NODE`. Not run here.

node.render() returns although the node failed, so its errors are read. A template carries this file as text,
where double braces would be read as expressions.
"""

import os
import sys

_OUTPUTS = (
    "vm_picture",
    "picture",
    "outputimage",
    "RS_outputFileNamePrefix",
    "ar_picture",
    "SettingsOutput_img_file",
)


def refuse(text: str) -> int:
    print(f"ridgeline-houdini error: {text}", flush=True)
    return 66


def main() -> int:
    import hou  # type: ignore[import-not-found]

    scene, frame, output, path = sys.argv[1:]
    try:
        hou.hipFile.load(scene, suppress_save_prompt=True, ignore_load_warnings=True)
    except hou.OperationFailed as error:
        return refuse(f"{scene} cannot be loaded: {error.description()}")
    node = hou.node(path)
    if node is None:
        return refuse(f"the scene has no node {path}")
    parameter = next((node.parm(name) for name in _OUTPUTS if node.parm(name) is not None), None)
    if parameter is None:
        return refuse(f"{path} has none of the outputs known: {', '.join(_OUTPUTS)}")
    parameter.set(output)
    try:
        node.render(frame_range=(int(frame), int(frame)), verbose=True, output_progress=True)
    except hou.OperationFailed as error:
        return refuse(f"frame {frame}: {error.instanceMessage()}")
    errors = node.errors()
    if errors:
        return refuse(f"frame {frame}: {' '.join(errors)}")
    return 0 if os.path.exists(output) else refuse(f"frame {frame}: {path} wrote no {output}")


if __name__ == "__main__":
    sys.exit(main())
