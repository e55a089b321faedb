"""How many GPU instances each project's jobs hold, and how many they may."""

from collections import Counter
from collections.abc import Mapping
from math import inf

from scheduler.policy.jobs.events import ProjectLimit


class Projects:
    def __init__(self) -> None:
        self.limits: Mapping[str, ProjectLimit] = {}
        self.held: Counter[str] = Counter()

    def most(self, project: str) -> float:
        limit = self.limits.get(project)
        return inf if limit is None or limit.gpus is None else limit.gpus

    def room(self, project: str) -> float:
        """GPU instances that it may have beside those that it holds; inf = no limit."""
        return self.most(project) - self.held[project]
