"""A few seeds on every change; thousands of them, and every mutant, with `make test-faults`."""

from __future__ import annotations

import re

import pytest

from tests.simulation.database import Database
from tests.simulation.farm import PROFILES, new_database, run_seed
from tests.simulation.mutants import MUTANTS, Mutant, hunt, planted

QUICK = ("a step's counts do not move along",)


ALWAYS = ("calm", "storm", "restarts", "exclusive", "people")


@pytest.mark.parametrize(
    "profile", [pytest.param(name, marks=[] if name in ALWAYS else pytest.mark.faults) for name in PROFILES]
)
def test_a_seed_of_each_kind_breaks_no_promise(profile: str) -> None:
    result = run_seed(1, profile=profile)
    assert not result.violation, f"python -m tests.simulation --seed 1 --profile {profile} --trace"
    assert result.tasks > 0


def test_the_same_seed_is_the_same_history() -> None:
    once = run_seed(7, profile="nodes")
    assert once == run_seed(7, profile="nodes")
    assert once.digest != run_seed(8, profile="nodes").digest


def test_the_short_way_to_the_database_gives_the_same_histories_and_rows() -> None:
    short, whole = new_database(), new_database(is_short=False)
    for seed, profile in ((3, "storm"), (4, "people"), (5, "calm")):
        results = [run_seed(seed, profile=profile, database=each) for each in (short, whole)]
        assert results[0] == results[1]
        rows = [_rows(each) for each in (short, whole)]
        assert rows[0] == rows[1]
        assert any('INSERT INTO "attempt"' in line for line in rows[0])


def _rows(database: Database) -> list[str]:
    """Every row there is, without the name of the seed's folder."""
    return [re.sub(r"farm-simulation-\w+", "", line) for line in database.raw.iterdump()]


def test_every_mutant_fits_the_code() -> None:
    """One that does not is to be planted anew."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20
    for mutant in MUTANTS:
        with planted(mutant):
            pass


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.name in QUICK], ids=lambda m: m.name)
def test_a_bug_that_is_planted_is_found(mutant: Mutant) -> None:
    assert hunt(mutant) is not None


@pytest.mark.faults
@pytest.mark.parametrize("first", range(0, 1_000, 100))
def test_hundreds_of_seeds_break_no_promise(first: int) -> None:
    found = [result for seed in range(first, first + 100) if (result := run_seed(seed)).violation]
    assert not found, f"python -m tests.simulation --seed {found[0].seed} --trace: {found}"


@pytest.mark.faults
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_every_bug_that_is_planted_is_found(mutant: Mutant) -> None:
    assert hunt(mutant) is not None, f"{mutant.name}: survived {mutant.seeds} seeds of {mutant.profile}"
