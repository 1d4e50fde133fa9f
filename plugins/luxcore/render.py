"""Renders one LuxCore scene: `render.py SCENE.cfg OUTPUT [KEY=VALUE ...]`, with the pyluxcore wheel.

The wheel's own `pyluxcore-console` fails at once in 2.11, so this drives the library. Standard library and
pyluxcore only; a template carries this file as text, where double braces would be read as expressions.
"""

import os
import sys
import time


def main() -> int:
    import pyluxcore  # type: ignore[import-not-found]

    scene, output, *changes = sys.argv[1:]
    os.chdir(os.path.dirname(scene) or ".")  # paths in the scene are relative to it
    pyluxcore.Init()
    properties = pyluxcore.Properties(scene)
    for change in changes:
        name, _, value = change.partition("=")
        properties.SetFromString(f"{name.strip()} = {value.strip()}\n")
    for name in ("batch.haltspp", "batch.halttime", "batch.haltthreshold"):
        if properties.IsDefined(name):
            break
    else:
        print("luxcore error: the scene never ends: give batch.haltspp=200, or halttime", flush=True)
        return 66
    session = pyluxcore.RenderSession(pyluxcore.RenderConfig(properties))
    session.Start()
    while not session.HasDone():
        time.sleep(0.25)  # LuxCore renders in threads of its own and has no other way to wait
        session.UpdateStats()
        done = session.GetStats().Get("stats.renderengine.convergence").GetFloat()
        samples = int(session.GetStats().Get("stats.renderengine.pass").GetFloat())
        print(f"luxcore progress: {max(done, 0.0) * 100:.1f}% pass {samples}", flush=True)
    session.Stop()
    session.GetFilm().SaveOutput(output, pyluxcore.FilmOutputType.RGB_IMAGEPIPELINE, pyluxcore.Properties())
    sys.stdout.flush()
    os._exit(0 if os.path.exists(output) else 66)  # its clean-up may crash


if __name__ == "__main__":
    sys.exit(main())
