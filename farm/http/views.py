"""The API's own types; they are defined in `farm.control.views`, one ring further in."""

from farm.control.access_views import AuditView, NewTokenView, TokenView
from farm.control.requests import JobChange, RetryChoice, TaskChoice, TokenRequest
from farm.control.views import (
    ChangedView,
    FarmView,
    JobView,
    LogPiece,
    LogView,
    Page,
    PlannedStep,
    PlanView,
    WhyLine,
    WhyView,
)

__all__ = [
    "AuditView",
    "ChangedView",
    "FarmView",
    "JobChange",
    "JobView",
    "LogPiece",
    "LogView",
    "NewTokenView",
    "Page",
    "PlanView",
    "PlannedStep",
    "RetryChoice",
    "TaskChoice",
    "TokenRequest",
    "TokenView",
    "WhyLine",
    "WhyView",
]
