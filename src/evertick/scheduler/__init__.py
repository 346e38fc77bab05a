"""The scheduler: the object users hold, and what they may write."""

from evertick.scheduler.scheduler import Health, JobSet, Parts, Scheduler

__all__ = ["Health", "JobSet", "Parts", "Scheduler"]
