"""Paths of one system as another sees them."""

from __future__ import annotations

import pytest

from farm.model.paths import map_parameters, map_path, path_rules

RULES = path_rules(
    {
        "Z:\\projects": "/mnt/projects",
        "Z:\\projects\\cache": "/fast/cache",
        "//server/share": "/mnt/share",
        "\\\\nas\\plates": "/mnt/plates",
        "/Volumes/work": "D:\\work",
        "s3://bucket/shots": "/mnt/shots",
    }
)


@pytest.mark.parametrize(
    ("path", "mapped"),
    [
        (r"Z:\projects\a\b.blend", "/mnt/projects/a/b.blend"),
        (r"z:/PROJECTS/a", "/mnt/projects/a"),
        (r"Z:\projects", "/mnt/projects"),
        (r"Z:\projects\cache\x", "/fast/cache/x"),
        (r"Z:\projects2\a", r"Z:\projects2\a"),
        (r"Z:\proj", r"Z:\proj"),
        (r"\\NAS\plates\1.exr", "/mnt/plates/1.exr"),
        ("/Volumes/work/a/b", r"D:\work\a\b"),
        ("/Volumes/Work/a", "/Volumes/Work/a"),
        ("/Volumes/workshop", "/Volumes/workshop"),
        ("s3://bucket/shots/1", "/mnt/shots/1"),
        ("/elsewhere", "/elsewhere"),
        ("", ""),
    ],
)
def test_paths_are_mapped_name_by_name_by_the_closest_rule(path: str, mapped: str) -> None:
    assert map_path(path, RULES) == mapped


def test_only_paths_are_mapped() -> None:
    mapped = map_parameters(
        {
            "Scene": ("PATH", r"Z:\projects\a.blend"),
            "Note": ("STRING", r"Z:\projects\a.blend"),
            "Plates": ("LIST[PATH]", r'["Z:\\projects\\p", "/x"]'),
            "Broken": ("LIST[PATH]", "no list"),
        },
        RULES,
    )
    assert mapped == {
        "Scene": ("PATH", "/mnt/projects/a.blend"),
        "Note": ("STRING", r"Z:\projects\a.blend"),
        "Plates": ("LIST[PATH]", '["/mnt/projects/p", "/x"]'),
        "Broken": ("LIST[PATH]", "no list"),
    }
