"""The run-time model: what it knows before, during and after a step's first runs."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest

from farm.flow.predict import RunTimeModel
from farm.flow.run_times import Estimate, FarmState, Rates, Run, SceneLoad, StepState
from farm.flow.shares import share_weights
from farm.model.work import Profile, Tag

COMPUTE = Profile(compute_share=0.85, bandwidth_share=0.15, confidence=1.0, source="user", tag=Tag.COMPUTE)
BANDWIDTH = Profile(
    compute_share=0.15, bandwidth_share=0.85, confidence=1.0, source="user", tag=Tag.BANDWIDTH
)
FAST = Rates(fp32_tflops=80, memory_bandwidth_gbps=600, source="measured")
WIDE = Rates(fp32_tflops=20, memory_bandwidth_gbps=2400, source="measured")
SLOW = Rates(fp32_tflops=8, memory_bandwidth_gbps=300, source="measured")


def model(**rates: Rates) -> RunTimeModel:
    made = RunTimeModel()
    for name, each in (rates or {"fast": FAST, "wide": WIDE, "slow": SLOW}).items():
        made.add_model(name, each)
    return made


def run(seconds: float, on: str = "fast", *, step: str = "s", node: str = "n1", **more: object) -> Run:
    return replace(Run(step=step, model=on, node=node, runtime_s=seconds), **more)  # type: ignore[arg-type]


def test_before_the_first_run_the_roofline_tells_device_models_apart() -> None:
    made = model()
    for name, profile in (("c", COMPUTE), ("b", BANDWIDTH)):
        made.add_step(name, profile)
    assert made.estimate("c", "fast").median_s < made.estimate("c", "wide").median_s
    assert made.estimate("b", "wide").median_s < made.estimate("b", "fast").median_s
    assert made.estimate("c", "slow").median_s > made.estimate("c", "fast").median_s


def test_a_ray_tracer_goes_by_measured_rays_else_by_ray_tracing_hardware() -> None:
    traced = replace(COMPUTE, is_ray_traced=True)

    def faster(first: Rates, second: Rates, profile: Profile, *, third: Rates = SLOW) -> float:
        """How much sooner the first is done."""
        made = model(first=first, second=second, third=third)
        made.add_step("s", profile)
        return made.estimate("s", "second").median_s / made.estimate("s", "first").median_s

    plain = replace(FAST, ray_factor=0.5)
    assert faster(FAST, plain, COMPUTE) == pytest.approx(1.0)
    assert faster(FAST, plain, traced) > 1.3
    many, few = replace(FAST, ray_rate_mrays=900.0), replace(FAST, ray_rate_mrays=300.0)
    assert faster(many, few, COMPUTE) == pytest.approx(1.0)
    assert faster(many, few, traced) > 1.5
    # Measured alone, or against a CPU's, it has nothing to be compared with.
    assert faster(many, FAST, traced) == pytest.approx(1.0)
    cpu = replace(SLOW, is_cpu=True, ray_rate_mrays=1.0)
    assert faster(many, FAST, traced, third=cpu) == pytest.approx(1.0)
    # The data sheet stands in for a rate that one of them lacks.
    assert faster(replace(many, ray_factor=1.3), plain, traced) > 1.3


def test_what_was_learnt_of_a_device_model_stays_when_another_node_measures_it_a_little_off() -> None:
    made = model()
    made.add_step("s", COMPUTE)
    for _ in range(4):
        made.observe(run(100))
        made.observe(run(700, "slow"))
    learnt = made.farm_state().models["slow"]["correction"]
    assert any(learnt)
    made.add_model("slow", replace(SLOW, fp32_tflops=8.3))
    assert made.farm_state().models["slow"]["correction"] == learnt
    made.add_model("slow", replace(SLOW, fp32_tflops=16.0))
    assert not any(made.farm_state().models["slow"]["correction"])


def test_one_run_teaches_the_scale_on_every_device_model() -> None:
    made = model()
    made.add_step("s", COMPUTE)
    before = made.estimate("s", "slow")
    made.observe(run(600))
    after = made.estimate("s", "slow")
    assert after.median_s > 3 * before.median_s
    assert after.sd < before.sd
    assert made.estimate("s", "fast").median_s == pytest.approx(600, rel=0.15)


def test_a_device_model_of_unknown_rates_is_learnt_from_its_runs() -> None:
    made = model(known=FAST, unknown=Rates(fp32_tflops=None, memory_bandwidth_gbps=None))
    made.add_step("s", COMPUTE)
    for _ in range(5):
        made.observe(run(30, "known"))
    doubt = made.estimate("s", "unknown").sd
    for _ in range(5):
        made.observe(run(90, "unknown", node="n2"))
    assert made.estimate("s", "unknown").median_s == pytest.approx(90, rel=0.1)
    assert made.estimate("s", "unknown").sd < doubt


def test_runs_on_two_device_models_tell_a_wrong_tag() -> None:
    made = model()
    made.add_step("s", COMPUTE)
    for _ in range(4):
        made.observe(run(60, "fast"))
        made.observe(run(15, "wide", node="n2"))
    learnt = made.profile("s", COMPUTE)
    assert learnt.tag is Tag.BANDWIDTH
    assert learnt.source == "history"
    assert made.profile("s", COMPUTE).confidence > 0.4


def test_a_slow_node_is_told_from_a_slow_step() -> None:
    made = model()
    for number in range(12):
        step = f"s{number}"
        made.add_step(step, COMPUTE)
        for _ in range(3):
            made.observe(run(40, node="good", step=step))
            made.observe(run(80, node="lemon", step=step))
    assert made.node_factor("lemon") / made.node_factor("good") == pytest.approx(2, rel=0.25)
    assert made.node_factor("never seen") == 1


def test_loading_is_kept_apart_from_rendering() -> None:
    made = model()
    made.add_step("s", COMPUTE)
    for _ in range(5):
        made.observe(run(50, load_s=20.0))
        made.observe(run(31, load_s=1.0, loaded=SceneLoad.WARM))
    cold, warm = made.estimate("s", "fast"), made.estimate("s", "fast", loaded=SceneLoad.WARM)
    assert cold.load_s == pytest.approx(20)
    assert warm.load_s == pytest.approx(1)
    assert cold.median_s - warm.median_s == pytest.approx(19)
    assert warm.median_s == pytest.approx(31, rel=0.05)


@pytest.mark.parametrize("load_s", [2.0, 20.0, 90.0])
def test_a_cache_helps_a_scene_once_it_was_seen_to(load_s: float) -> None:
    made = model()
    made.add_step("usual", COMPUTE)
    made.observe(run(40, load_s=20.0, step="usual"))
    row = made.add_step("s", COMPUTE)
    for _ in range(9):
        made.observe(run(40 + load_s, load_s=load_s, step="s"))
    cold, warm, cached = made.load_s(row)
    assert warm == cached == cold
    made.observe(run(40 + load_s, load_s=load_s, step="s", loaded=SceneLoad.CACHED))
    assert made.load_s(row).cached > 0.6 * cold
    for _ in range(9):
        made.observe(run(40, load_s=load_s / 10, step="s", loaded=SceneLoad.CACHED))
    cold, warm, cached = made.load_s(row)
    assert cached < 0.3 * cold
    # What a device has just run is in its node's cache as well.
    assert warm == cached < cold


def test_what_an_older_version_has_learnt_of_loading_is_taken_up() -> None:
    made = model()
    made.add_step("s", COMPUTE)
    made.observe(run(50, load_s=20.0))
    steps, _ = made.take_changes()
    old = replace(steps["s"], load_s=steps["s"].load_s[:2], load_runs=steps["s"].load_runs[:2])
    restored = RunTimeModel.restored(made.farm_state(), {"s": old})
    assert restored.load_s(0) == made.load_s(0)


def test_a_run_that_was_stopped_teaches_that_it_takes_longer() -> None:
    made = model()
    made.add_step("s", COMPUTE)
    before = made.estimate("s", "fast").median_s
    made.observe(run(2 * before, is_censored=True))
    after = made.estimate("s", "fast").median_s
    assert after > before
    assert made.runs("s") == {}


def test_a_run_that_surely_hung_teaches_nothing() -> None:
    made = model()
    made.add_step("s", COMPUTE)
    for _ in range(10):
        made.observe(run(10))
    before = made.estimate("s", "fast").median_s
    made.observe(run(3600, is_censored=True))
    assert made.estimate("s", "fast").median_s == pytest.approx(before, rel=0.03)


def test_one_wild_run_moves_little_and_a_lasting_change_is_followed() -> None:
    made = model()
    made.add_step("s", COMPUTE)
    for _ in range(10):
        made.observe(run(10))
    made.observe(run(100, node="n9"))
    assert made.estimate("s", "fast").median_s < 16
    for _ in range(12):
        made.observe(run(20))
    assert made.estimate("s", "fast").median_s == pytest.approx(20, rel=0.2)


def test_a_step_inherits_what_an_earlier_one_taught() -> None:
    made = model()
    made.add_step("old", COMPUTE)
    for _ in range(6):
        made.observe(run(300, step="old"))
        made.observe(run(90, "wide", step="old", node="n2"))
    made.add_step("new", Profile(), like="old")
    assert made.estimate("new", "fast").median_s == pytest.approx(300, rel=0.15)
    assert made.estimate("new", "wide").median_s == pytest.approx(90, rel=0.15)
    assert made.estimate("new", "fast").sd > made.estimate("old", "fast").sd


def test_vram_need_is_the_peak_and_a_margin_or_what_the_job_says() -> None:
    made = model()
    made.add_step("s", COMPUTE)
    made.observe(run(10, vram_peak_mib=10_000))
    made.observe(run(10, vram_peak_mib=9_000))
    assert made.vram_mib("s", 0) == 11_500
    assert made.vram_mib("s", 16_000) == 16_000


def test_the_state_survives_as_json() -> None:
    made = model()
    for number in range(70):
        made.add_step(f"s{number}", COMPUTE)
        made.observe(run(10 + number, step=f"s{number}"))
        made.observe(run(20 + number, "wide", step=f"s{number}", node="n2"))
    steps, farm = made.take_changes()
    assert farm is not None
    assert made.take_changes() == ({}, None)
    text = json.dumps([asdict(farm), {name: asdict(state) for name, state in steps.items()}])
    read_farm, read_steps = json.loads(text)
    back = RunTimeModel.restored(
        FarmState(**read_farm), {name: StepState(**state) for name, state in read_steps.items()}
    )
    for step in ("s0", "s69"):
        for device in ("fast", "wide", "slow"):
            was, now = made.estimate(step, device, node="n2"), back.estimate(step, device, node="n2")
            assert now.median_s == pytest.approx(was.median_s, rel=1e-4)
            assert now.upper_s == pytest.approx(was.upper_s, rel=1e-3)
    for each in (made, back):
        each.observe(run(55, step="s3"))
    assert back.estimate("s3", "slow").median_s == pytest.approx(
        made.estimate("s3", "slow").median_s, rel=1e-3
    )


def test_only_what_changed_is_told() -> None:
    made = model()
    for step in ("a", "b"):
        made.add_step(step, COMPUTE)
    made.take_changes()
    made.observe(run(10, step="b"))
    assert set(made.take_changes()[0]) == {"b"}


def test_a_device_model_that_comes_later_is_known_to_old_steps() -> None:
    made = model()
    made.add_step("s", COMPUTE)
    for _ in range(4):
        made.observe(run(60))
    for number in range(20):
        made.add_model(f"late{number}", replace(FAST, fp32_tflops=160))
    late = made.estimate("s", "late19").median_s
    assert 25 < late < 50


def test_rows_are_used_again() -> None:
    made = model()
    made.add_step("a", COMPUTE)
    made.observe(run(5000, step="a"))
    made.forget("a")
    made.add_step("b", COMPUTE)
    assert made.steps == {"b": 0}
    assert made.runs("b") == {}
    assert made.estimate("b", "fast").median_s < 500


def test_an_unknown_tag_says_nothing_and_a_sure_one_much() -> None:
    assert np.ptp(share_weights(Profile())) == 0
    assert share_weights(COMPUTE)[-1] > 3 * share_weights(COMPUTE)[0]


def test_predictions_are_right_and_their_band_holds_what_it_says() -> None:
    """Synthetic truth of another form than the model's: 20 % content, liking for device models 0.15."""
    draw = np.random.default_rng(5)
    figures = [(8, 320), (31, 600), (37, 696), (30, 300), (92, 864), (36, 936), (83, 1008), (20, 2039)]
    names = [f"d{at}" for at in range(len(figures))]
    made = RunTimeModel()
    for name, (flops, gbps) in zip(names, figures, strict=True):
        made.add_model(name, Rates(fp32_tflops=flops, memory_bandwidth_gbps=gbps, source="measured"))
    errors, below_median, below_upper = [], [], []
    for number in range(200):
        share = draw.choice([draw.beta(12, 2), draw.beta(2, 10), draw.uniform(0.3, 0.7)])
        scale = 60 * math.exp(draw.normal(0, 0.8))
        likes = np.exp(draw.normal(0, 0.15, len(names)))
        truth = [
            scale * (share * 31 / flops + (1 - share) * 600 / gbps) * like
            for (flops, gbps), like in zip(figures, likes, strict=True)
        ]
        step = f"s{number}"
        made.add_step(step, Profile())
        wander = draw.normal()
        for frame in range(6):
            wander = 0.95 * wander + math.sqrt(1 - 0.95**2) * draw.normal()
            device = int(draw.integers(len(names)))
            took_s = truth[device] * math.exp(0.2 * wander + draw.normal(0, 0.05))
            if frame == 5:
                told = made.estimate(step, names[device])
                errors.append(abs(told.median_s / took_s - 1))
                below_median.append(took_s <= told.median_s)
                below_upper.append(took_s <= told.upper_s)
            node = f"n{draw.integers(50)}"
            made.observe(Run(step=step, model=names[device], node=node, runtime_s=took_s))
    assert np.median(errors) <= 0.12
    assert np.mean(below_median) == pytest.approx(0.5, abs=0.08)
    assert np.mean(below_upper) == pytest.approx(0.9, abs=0.06)


def test_the_more_run_at_once_the_less_the_last_ones_say_of_the_next() -> None:
    def after(still_running: int) -> Estimate:
        made = model()
        made.add_step("s", COMPUTE)
        for seconds in (60, 60, 60, 60, 60, 90, 90, 90):
            made.observe(run(seconds, still_running=still_running))
        return made.estimate("s", "fast")

    alone, among_many = after(0), after(40)
    assert alone.median_s > among_many.median_s > 55
    assert among_many.sd > alone.sd
    assert among_many.sd == pytest.approx(after(400).sd, rel=0.1)


def test_a_device_model_follows_the_middle_of_its_steps_not_a_few_far_off() -> None:
    made = model(known=FAST, other=FAST)
    for number in range(200):
        step = f"s{number}"
        made.add_step(step, COMPUTE)
        made.observe(run(60, "known", step=step))
        made.observe(run(600 if number % 10 == 0 else 60, "other", step=step, node=f"n{number}"))
    made.add_step("next", COMPUTE)
    made.observe(run(60, "known", step="next"))
    assert made.estimate("next", "other").median_s == pytest.approx(60, rel=0.05)


def test_a_farm_whose_steps_do_not_follow_the_roofline_expects_no_better_of_the_next() -> None:
    def after(off: float) -> RunTimeModel:
        made = model(known=FAST, other=FAST, third=FAST)
        for number in range(40):
            step = f"s{number}"
            made.add_step(step, COMPUTE)
            for _ in range(3):
                made.observe(run(60, "known", step=step, node=f"n{number}"))
            factor = math.exp(off if number % 2 else -off)
            made.observe(run(60 * factor, "other", step=step, node=f"m{number}"))
        made.add_step("next", COMPUTE)
        for _ in range(3):
            made.observe(run(60, "known", step="next"))
        return made

    fits, strays = after(0.05), after(0.6)
    assert fits.misfit == 1
    assert strays.misfit > 2
    assert strays.estimate("next", "third").sd > 1.3 * fits.estimate("next", "third").sd
    again = RunTimeModel.restored(FarmState(**json.loads(json.dumps(asdict(strays.farm_state())))), {})
    assert again.misfit == pytest.approx(strays.misfit, rel=1e-4)


def test_steps_far_off_the_roofline_outweigh_twice_as_many_that_follow_it() -> None:
    made = model(known=FAST, other=FAST)
    for number in range(60):
        step = f"s{number}"
        made.add_step(step, COMPUTE)
        for _ in range(3):
            made.observe(run(60, "known", step=step, node=f"n{number}"))
        made.observe(run(180 if number % 3 == 0 else 60, "other", step=step, node=f"m{number}"))
    assert made.misfit > 2


def test_a_ray_tracers_step_stays_one_across_a_restart() -> None:
    made = model()
    made.add_step("s", replace(COMPUTE, is_ray_traced=True))
    made.observe(run(60, step="s"))
    steps, farm = made.take_changes()
    assert farm is not None
    back = RunTimeModel.restored(farm, steps)
    for each in (made, back):
        each.add_model("rtx", replace(FAST, ray_factor=1.3))
    assert back.estimate("s", "rtx").median_s == pytest.approx(made.estimate("s", "rtx").median_s, rel=1e-3)
