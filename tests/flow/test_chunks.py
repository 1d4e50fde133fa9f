from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from farm.flow.chunks import MOST_FRAMES, Chunk, ChunkRun, cut, packed, recut, unpacked, wanted_length

RUNS = st.lists(
    st.builds(
        ChunkRun,
        length=st.integers(1, MOST_FRAMES),
        runtime_s=st.floats(0, 1e5),
        load_s=st.floats(0, 1e5),
    ),
    max_size=6,
)


def run(length: int, frame_s: float, load_s: float = 0.0) -> ChunkRun:
    return ChunkRun(length=length, runtime_s=load_s + length * frame_s, load_s=load_s)


def frames(chunks: list[Chunk]) -> list[int]:
    return sorted(at for chunk in chunks for at in range(chunk.first, chunk.end))


@given(st.integers(0, 1_000_000), st.integers(1, MOST_FRAMES))
def test_an_index_says_which_chunk_it_is_in_31_bits(first: int, length: int) -> None:
    chunk = Chunk(first=first, length=length)
    assert unpacked(packed(chunk)) == chunk
    assert 0 < packed(chunk) < 2**31
    assert packed(chunk) < packed(Chunk(first=first + 1, length=1)), "indexes rise along the frames"


@given(st.integers(0, 50), st.integers(0, 5000), st.integers(-3, 3000))
def test_chunks_cover_each_frame_once(first: int, count: int, most: int) -> None:
    made = cut(first, first + count, most=most)
    assert frames(made) == list(range(first, first + count))
    assert all(1 <= chunk.length <= max(most, 1) for chunk in made)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3000), unique=True, max_size=60), RUNS, st.floats(1, 1e5), st.integers(0, 500))
def test_what_is_cut_anew_holds_the_same_frames(
    at: list[int], runs: list[ChunkRun], target_s: float, slots: int
) -> None:
    waiting = [Chunk(first=each, length=1) for each in at]
    made = recut(waiting, runs, target_s=target_s, slots=slots)
    assert made is None or frames(made) == sorted(at)


def test_chunks_fill_the_target_and_grow_step_by_step() -> None:
    assert wanted_length([run(1, 2.0)], target_s=300) is None, "one run says too little"
    assert wanted_length([run(1, 2.0)] * 2, target_s=300) == 4, "not from 1 to 150 at once"
    assert wanted_length([run(64, 2.0)] * 2, target_s=300) == 150
    assert wanted_length([run(64, 2.0, load_s=100.0)] * 2, target_s=300) == 100, "loading is paid once"
    assert wanted_length([run(4, 500.0)] * 2, target_s=300) == 1
    assert wanted_length([run(4, 1.0, load_s=900.0)] * 2, target_s=300) == 1


def test_chunks_shrink_towards_the_end_so_that_all_slots_end_together() -> None:
    waiting = cut(0, 1000, most=1)
    made = recut(waiting, [run(50, 1.0)] * 4, target_s=50, slots=4)
    assert made is not None
    lengths = [chunk.length for chunk in made]
    assert lengths[0] == 50
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 1
    # Handed out one by one to whoever is free, the last slot ends no later than a few frames after the first.
    busy = [0, 0, 0, 0]
    for length in lengths:
        busy[busy.index(min(busy))] += length
    assert max(busy) - min(busy) <= 5
    plain = [0, 0, 0, 0]
    for chunk in cut(0, 1000, most=150):
        plain[plain.index(min(plain))] += chunk.length
    assert max(plain) - min(plain) > 50, "as chunks of one size would not"


def test_waiting_chunks_that_are_about_right_are_left_alone() -> None:
    runs = [run(50, 1.0)] * 4
    made = recut(cut(0, 1000, most=1), runs, target_s=50, slots=4)
    assert made is not None
    assert recut(made, runs, target_s=50, slots=4) is None
    assert recut([], runs, target_s=50, slots=4) is None
