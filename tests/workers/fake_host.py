"""A session host for tests: speaks the real lines, and does what the step's parameter `Do` says.

Started by `containment.host_command`'s prefix like the real one. Appends a line to the file of the parameter
`Log` for each run: a doubled run is seen there.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time

from farm.model.states import Outcome
from farm.wire.messages import (
    Finished,
    HostCancel,
    HostOutput,
    HostReady,
    HostRun,
    Progress,
    Started,
    ToHost,
    dump,
    load,
)


def say(message: object) -> None:
    sys.stdout.buffer.write(dump(message) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    say(HostReady())
    lines = iter(sys.stdin.buffer.readline, b"")
    for line in lines:
        message = load(ToHost, line)
        if isinstance(message, HostRun):
            run(message)


def run(message: HostRun) -> None:
    parameters = {name: value for name, (_, value) in message.script.parameters.items()}
    attempt_id = message.order.attempt_id
    if "Log" in parameters:
        with open(parameters["Log"], "a", encoding="utf-8") as log:
            log.write(f"{attempt_id}\n")
    do = parameters.get("Do", "succeed")
    if do == "die early":
        os._exit(3)
    say(Started(attempt_id=attempt_id))
    outcome, reason = Outcome.SUCCEEDED, ""
    if do == "talk":
        say(Progress(attempt_id=attempt_id, fraction=0.5, message="half"))
        say(HostOutput(text="one\n"))
        say(HostOutput(text="two\n", sequence=1))
    elif do == "show environment":
        say(
            HostOutput(
                text="\n".join(f"{k}={v}" for k, v in sorted((os.environ | message.environment).items()))
            )
        )
    elif do.startswith("wait for "):
        while not os.path.exists(do.removeprefix("wait for ")):
            time.sleep(0.01)
    elif do == "die":
        os._exit(3)
    elif do in ("wait", "wait and ignore cancel"):
        command = ["sleep", "1000"]
        environment = {**os.environ, "FARM_ATTEMPT_ID": attempt_id}
        child = subprocess.Popen(command, env=environment, start_new_session=True, stdin=subprocess.DEVNULL)
        outcome, reason = wait_for_cancel(ignores=do == "wait and ignore cancel")
        child.kill()
        child.wait()
    say(Finished(attempt_id=attempt_id, outcome=outcome, reason=reason, exit_code=0))


def wait_for_cancel(*, ignores: bool) -> tuple[Outcome, str]:
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.buffer, selectors.EVENT_READ)
        while True:
            selector.select()
            line = sys.stdin.buffer.readline()
            if not line:
                os._exit(0)
            message = load(ToHost, line)
            if isinstance(message, HostCancel) and not ignores:
                return message.outcome, message.reason
            time.sleep(0)


if __name__ == "__main__":
    main()
