"""What requests and answers look like, for the API's description. Tests read each back into its type."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from farm.control.access_views import AccountView, AuditView, InviteView, JoinView, NewTokenView, TokenView
from farm.control.matching_views import (
    MatchingView,
    ModelTime,
    ModelWorth,
    NodeFactor,
    PolicySpread,
    ProfileView,
    StepProfile,
)
from farm.control.views import (
    ChangedView,
    FarmView,
    FoundLine,
    HookView,
    JobView,
    LimitHolder,
    LimitView,
    LogPiece,
    LogView,
    PlannedStep,
    PlanView,
    StalledView,
    WhyLine,
    WhyView,
)
from farm.flow.recording import RecordedDevice, RecordedStep, Recording
from farm.flow.stats import Calibration, Within, spread
from farm.model.attempts import Attempt, JobUsage, PublishedFile
from farm.model.decisions import Decision
from farm.model.events import Event, EventKind
from farm.model.hooks import HookEvent
from farm.model.ids import AttemptId, JobId, NodeId, StepId, TaskId
from farm.model.limits import LimitScope
from farm.model.machines import Capabilities, Demand, Device, DeviceKind, DeviceLoad, Node
from farm.model.stalls import Evidence, MoveCosts, Stall, StallKind
from farm.model.states import AttemptState, JobState, NodeState, Outcome, TaskState
from farm.model.work import Counts, Isolation, Job, JobSettings, OutputSpec, Profile, Step, Tag, Task

_ATTEMPT_ID = AttemptId("5f0c7a52-9d0e-4e0b-8a54-1f3b8f0f2f11")

SUBMISSION: dict[str, Any] = {
    "name": "shot_010",
    "template": {
        "specificationVersion": "jobtemplate-2023-09",
        "name": "shot_010",
        "parameterDefinitions": [
            {"name": "Frames", "type": "STRING", "default": "1-3"},
            {"name": "OutputDir", "type": "PATH", "objectType": "DIRECTORY", "dataFlow": "OUT"},
        ],
        "steps": [
            {
                "name": "Render",
                "parameterSpace": {
                    "taskParameterDefinitions": [
                        {"name": "Frame", "type": "INT", "range": "{{Param.Frames}}"}
                    ]
                },
                "script": {
                    "actions": {
                        "onRun": {
                            "command": "povray",
                            "args": [
                                "+Iscene.pov",
                                "+K{{Task.Param.Frame}}",
                                "+O{{Param.OutputDir}}/{{Task.Param.Frame}}.png",
                            ],
                        }
                    }
                },
            }
        ],
    },
    "parameters": {"Frames": "1-250", "OutputDir": "/projects/film/shot_010"},
    "settings": {"priority": 60, "pool": "night"},
    "outputs": [
        {
            "step": "Render",
            "directory_parameter": "OutputDir",
            "file_pattern": "#.png",
            "frames_parameter": "Frame",
        }
    ],
    "software": ["povray"],
}

STEP = Step(
    id=StepId(31),
    job_id=JobId(12),
    name="Render",
    position=0,
    demand=Demand(pool="night", software=("povray",)),
    profile=Profile(compute_share=0.9, bandwidth_share=0.1, confidence=0.4, source="hint", tag=Tag.COMPUTE),
    isolation=Isolation.STAGED,
    output=OutputSpec(
        step="Render", directory_parameter="OutputDir", file_pattern="#.png", frames_parameter="Frame"
    ),
    frames="1-250",
    counts=Counts(ready=200, running=4, done=45, failed=1),
    mean_runtime_s=31.5,
)
JOB = Job(
    id=JobId(12),
    uid="0a6c2f7e-4b58-4f4e-9a0a-2d1f0f3f9c55",
    name="shot_010",
    kind="openjd",
    state=JobState.ACTIVE,
    settings=JobSettings(priority=60, user="anna", pool="night"),
    submitted_at=1_764_486_000.25,
    steps=(STEP,),
    output_directories=("/projects/film/shot_010",),
    reason="1 of 250 tasks failed",
)
JOB_VIEW = JobView(
    job=JOB,
    counts=JOB.counts,
    progress=46 / 250,
    tag=Tag.COMPUTE,
    eta_s=(1_606.5, 1_690.2),
    spread=spread([28.0, 31.0, 35.5]),
    moves=MoveCosts(moved=2, copies=1, copies_won=1, lost_s=320.0, saved_s=2_700.0),
)
TASK = Task(
    id=TaskId(4_711),
    job_id=JobId(12),
    step_id=StepId(31),
    step="Render",
    index=6,
    label="7",
    state=TaskState.RUNNING,
    starts=1,
    node_id="blade-3",
    progress=0.4,
)
ATTEMPT = Attempt(
    id=_ATTEMPT_ID,
    task_id=TaskId(4_711),
    job_id=JobId(12),
    step_id=StepId(31),
    node_id=NodeId("blade-3"),
    device_id="cpu",
    state=AttemptState.SUCCEEDED,
    assigned_at=1_764_486_010.0,
    started_at=1_764_486_010.1,
    finished_at=1_764_486_041.6,
    outcome=Outcome.SUCCEEDED,
    exit_code=0,
    progress=1.0,
    runtime_s=31.5,
    peak_memory_mib=812,
    cpu_s=120.4,
    decision=Decision(
        model="NVIDIA GeForce RTX 4090",
        predicted_s=31.2,
        upper_s=36.0,
        load_s=6.2,
        price=0.031,
        advantage=0.97,
        best_advantage=0.99,
        near_equals=3,
        runner_up=StepId(40),
        runner_up_advantage=0.99,
        period="always",
    ),
    files=(
        PublishedFile(path="/projects/film/shot_010/7.png", size_bytes=884_211, width=1_920, height=1_080),
    ),
)
USAGE = JobUsage(
    attempts=240,
    gpu_hours=18.4,
    wasted_gpu_hours=0.6,
    energy_kwh=5.1,
    energy_attempts=240,
    vram_peak_mib=9_600,
    busy=0.94,
    memory_busy=0.31,
    throttled_s=0.0,
    models=("NVIDIA GeForce RTX 4090",),
)
NODE = Node(
    id=NodeId("blade-3"),
    state=NodeState.ONLINE,
    capabilities=Capabilities(
        cpus=16,
        memory_mib=64_000,
        pools=("default", "night"),
        devices=(Device(id="cpu", kind=DeviceKind.CPU, model="EPYC 7313P", slots=4, fp32_tflops=0.9),),
        software={"povray": "3.7.0"},
    ),
    loads=(DeviceLoad(device_id="cpu", utilisation=0.97, memory_occupancy=0.2),),
    disk_free_mib=180_000,
    silent_s=2.1,
    attempts=(_ATTEMPT_ID,),
    running=("12 shot_010 7",),
    agent_version="0.1.0",
)
EVENT = Event(
    id=90_210,
    at=1_764_486_041.7,
    kind=EventKind.TASK_DONE,
    job_id=JobId(12),
    task_id=TaskId(4_711),
    attempt_id=_ATTEMPT_ID,
    node_id=NodeId("blade-3"),
)
FARM = FarmView(
    version="0.1.0",
    now=1_764_486_042.0,
    policy="fitness",
    leader="server-1-3f9c55aa",
    nodes=12,
    nodes_online=11,
    slots=44,
    slots_used=40,
    counts=Counts(ready=1_200, running=40, done=3_000),
    user="anna",
    role="user",
)
METRICS = (
    "# HELP ridgeline_tasks Tasks of jobs that have not ended.\n# TYPE ridgeline_tasks gauge\n"
    'ridgeline_tasks{state="ready"} 42.0\n'
)
LIMIT = LimitView(
    name="arnold",
    amount=10,
    per=LimitScope.TASK,
    used=10,
    free=0,
    waiting=230,
    is_from_settings=False,
    holders=(LimitHolder(job_id=JobId(12), tasks=10),),
)
_WITHIN = Within(count=2_000, sd_s=3.1, relative=0.21, floor_sd_s=2.4)
PROFILE = ProfileView(
    steps=(
        StepProfile(
            step="Render",
            declared=Profile(compute_share=0.7, bandwidth_share=0.3, confidence=0.1, tag=Tag.COMPUTE),
            learnt=Profile(
                compute_share=0.62, bandwidth_share=0.38, confidence=0.7, source="history", tag=Tag.COMPUTE
            ),
            runs=24,
            load_s=6.2,
            vram_peak_mib=9_600,
            spread=spread([28.0, 31.0, 35.5]),
            times=(ModelTime(model="NVIDIA GeForce RTX 4090", runs=24, median_s=31.2, upper_s=36.0),),
        ),
    )
)
RECORDING = Recording(
    hours=12.0,
    devices=(
        RecordedDevice(
            model="NVIDIA GeForce RTX 4090",
            kind=DeviceKind.GPU,
            slots=12,
            pools=("default",),
            fp32_tflops=81.0,
            memory_bandwidth_gbps=950.0,
            vram_mib=24_564,
            watts=450.0,
        ),
    ),
    steps=(
        RecordedStep(
            name="shot_010/Render",
            at_s=312.5,
            user="anna",
            priority=50,
            profile=Profile(compute_share=0.7, bandwidth_share=0.3, confidence=0.1, tag=Tag.COMPUTE),
            compute_share=0.62,
            gpus=1,
            vram_mib=9_600,
            pool="",
            load_s=6.2,
            seconds={"NVIDIA GeForce RTX 4090": 25.0},
            content=(0.98, 1.03, 1.1),
        ),
    ),
)
MATCHING = MatchingView(
    policy="predictive",
    tasks=2_000,
    spread=spread([28.0, 31.0, 35.5]),
    within=_WITHIN,
    policies=(
        PolicySpread(policy="predictive", weights={"window": 0.8}, since=1_764_480_000.0, within=_WITHIN),
        PolicySpread(
            policy="fifo",
            weights={},
            since=1_764_300_000.0,
            within=Within(count=1_800, sd_s=8.2, relative=0.6, floor_sd_s=2.5),
        ),
    ),
    predictions=Calibration(
        count=2_000, within_likely=0.51, within_worst=0.9, median_error=0.08, median_error_s=4.5
    ),
    etas=Calibration(count=48, within_likely=0.48, within_worst=0.88, median_error=0.11, median_error_s=95.0),
    waiting_bound_s=5_400.0,
    models=(ModelWorth(model="NVIDIA GeForce RTX 4090", slots=12, price=0.031, one_more_saves_s=167.4),),
    slow_nodes=(NodeFactor(node="blade-3", factor=1.6),),
)
PLAN = PlanView(
    name="shot_010",
    steps=(
        PlannedStep(
            name="Render",
            tasks=250,
            frames="1-250",
            depends_on=(),
            isolation=Isolation.STAGED,
            demand=STEP.demand,
            profile=STEP.profile,
        ),
    ),
    output_directories=JOB.output_directories,
    warnings=(),
)
CHANGED = ChangedView(changed=200, job=JOB_VIEW)
_STALL = Stall(
    kind=StallKind.HUNG,
    text="no CPU, no I/O for 2:10; last output 2:11 ago: Developing out.exr",
    since=1_764_486_171.0,
    action="ended, to run on another node",
)
STALLED = StalledView(
    job_name="shot_010",
    user="anna",
    step="Render",
    label="7",
    stall=_STALL,
    attempt=Attempt(
        id=_ATTEMPT_ID,
        task_id=TaskId(4_711),
        job_id=JobId(12),
        step_id=StepId(31),
        node_id=NodeId("blade-3"),
        device_id="cpu",
        state=AttemptState.CANCELLING,
        assigned_at=1_764_486_010.0,
        started_at=1_764_486_010.1,
        evidence=Evidence(
            attempt_id=_ATTEMPT_ID,
            age_s=161.0,
            processes=1,
            states={"S": 1},
            command="mitsuba",
            cpu_s=31.2,
            memory_mib=812,
            cpu_idle_s=130.0,
            io_idle_s=130.0,
            silent_s=131.0,
            last_line="Developing out.exr",
        ),
        stall=_STALL,
    ),
)
WHY = WhyView(
    lines=(
        WhyLine(
            step="Render",
            text="3 nodes: VRAM 24,000 MiB < 31,000 MiB needed",
            count=3,
            node_ids=(NodeId("blade-1"), NodeId("blade-2"), NodeId("blade-4")),
            is_momentary=False,
        ),
        WhyLine(step="Render", text="blade-3: fits, but all 4 slots are busy", count=1, node_ids=(NODE.id,)),
    )
)
LOG = LogView(chunks=(LogPiece(sequence=0, text="Parsing... 3 s\n"),), is_ended=False)
HOOK = HookView(name="chat", kind="webhook", on=(HookEvent.FAILED, HookEvent.STALLED), every_job=False)
FOUND_LINE = FoundLine(
    task_id=TaskId(4_711),
    step="Render",
    label="7",
    attempt_id=_ATTEMPT_ID,
    node_id=NODE.id,
    number=212,
    text="Warning: texture wood.png is missing",
)
INVITE = InviteView(code="K7QD-4M2X-9TRF", until=1_796_000_900.0, node_id=None, needs_approval=False)
JOINED = JoinView(
    node_id=NodeId("blade-4"),
    token="rl_Q2hhbmdlIG1lLCBJIGFtIG9ubHkgYW4gZXhhbXBsZQ",
    is_pending=False,
    at=1_796_000_000.0,
)
ACCOUNT = AccountView(
    node_id=NodeId("blade-4"),
    is_pending=False,
    broker_url="amqp://node-blade-4:example@farm.studio.example:5672/farm",
)
TOKEN = TokenView(name="anna-laptop", user="anna", role="user")
NEW_TOKEN = NewTokenView(
    token="rl_Q2hhbmdlIG1lLCBJIGFtIG9ubHkgYW4gZXhhbXBsZQ", name="anna-laptop", user="anna", role="user"
)
AUDIT = AuditView(
    id=77,
    at=1_764_486_050.0,
    actor="anna",
    token="anna-laptop",
    ip="10.0.0.7",
    method="PATCH",
    path="/api/v1/jobs/12",
    target="job 12",
    before={"priority": 50},
    after={"priority": 60},
    status=200,
)


def shown(value: Any) -> Any:
    """An example as JSON."""
    kind: Any = type(value)
    return TypeAdapter(kind).dump_python(value, mode="json")


def page(value: Any, *, following: int | None = None) -> dict[str, Any]:
    """A page of one, as JSON."""
    return {"items": [shown(value)], "next": following}
