"""
Why the processes that decide could not work with the settings, in a line each: ``python -m scheduler.refusals`` prints them
and ends with exit code 2 where there are any. ``smore up`` asks before it starts anything.
"""

import sys
from collections.abc import Callable
from typing import Any

from scheduler.policy.setting import UnknownPolicy
from smore.process.environment import settings
from smore.process.settings import JobsSettings, PolicySettings, PrewarmSettings, Settings


def of_policy(policy: PolicySettings) -> str:
    """Why no leader could decide with these settings, and which setting it is; "" = one can."""
    from scheduler.policy.knobs import preset

    shadow = {"SMORE_POLICY__SHADOW": lambda: preset(policy.shadow)} if policy.shadow else {}
    return _first_refused(
        {
            "SMORE_POLICY__NAME": lambda: preset(policy.name),
            "SMORE_POLICY__KNOBS": lambda: preset(policy.name, **policy.knobs),
            **shadow,
        }
    )


def of_prewarm(prewarm: PrewarmSettings) -> str:
    """The same of the prewarmer's settings."""
    from scheduler.leader.foresight import prewarm_knobs

    return _first_refused(
        {
            "SMORE_PREWARM__RULE": lambda: prewarm_knobs(prewarm.model_copy(update={"knobs": {}})),
            "SMORE_PREWARM__KNOBS": lambda: prewarm_knobs(prewarm),
        }
    )


def of_jobs(jobs: JobsSettings) -> str:
    """The same of the rule for trainings."""
    from scheduler.policy.jobs.knobs import job_setting, why_not_live

    def live() -> None:
        if refusal := why_not_live(job_setting(jobs.policy, **jobs.knobs)):
            raise UnknownPolicy(refusal)

    return _first_refused(
        {
            "SMORE_JOBS__POLICY": lambda: job_setting(jobs.policy),
            "SMORE_JOBS__KNOBS": lambda: job_setting(jobs.policy, **jobs.knobs),
            "SMORE_JOBS__POLICY ": live,
        }
    )


def _first_refused(makers: dict[str, Callable[[], Any]]) -> str:
    for setting, make in makers.items():
        try:
            make()
        except (ValueError, TypeError) as error:
            return f"{setting.strip()}: {error}"
    return ""


def of(config: Settings) -> list[str]:
    """All of them."""
    refused = [of_policy(config.policy), of_jobs(config.jobs)]
    if config.prewarm != PrewarmSettings():
        refused.append(of_prewarm(config.prewarm))
    return [reason for reason in refused if reason]


if __name__ == "__main__":
    reasons = of(settings())
    for reason in reasons:
        print(reason)
    sys.exit(2 if reasons else 0)
