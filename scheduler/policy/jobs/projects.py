"""How many GPU instances each project's jobs hold, and how many they may."""

from collections import Counter
from collections.abc import Mapping
from math import inf

from scheduler.policy.jobs.events import ProjectLimit


class Projects:
    def __init__(self, limits: Mapping[str, ProjectLimit] = {}, held: Mapping[str, int] = {}) -> None:
        self.limits = limits
        self.held: Counter[str] = Counter(held)

    def most(self, project: str) -> float:
        limit = self.limits.get(project)
        return inf if limit is None or limit.gpus is None else limit.gpus

    def most_promised(self, project: str) -> float:
        """GPU instances that promises may be for at a time."""
        limit = self.limits.get(project)
        return limit.promised if limit is not None and limit.promised is not None else self.most(project)

    def room(self, project: str) -> float:
        """GPU instances that it may have beside those that it holds; inf = no limit."""
        return self.most(project) - self.held[project]
