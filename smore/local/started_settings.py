"""What a platform was started with: for who compares it with a shell's settings, and for the audit."""

import json
import os
from pathlib import Path
from typing import Final

from smore.local import embedded, supervision
from smore.process.environment import described, shown, value_of
from smore.process.settings import Settings

#: The file of the settings that the platform was last started with, in its home.
_FILE: Final = "settings.json"
#: The file of the first of its ports for metrics, and of the setting that it was chosen by.
_PORTS: Final = "metrics-port.json"


def running_settings(home: Path) -> dict[str, str] | None:
    """
    The settings that the running platform was started with, by variable, as :func:`smore.process.environment.shown`
    shows them; None where it does not run.
    """
    run = home.resolve() / "run"
    return None if not run.exists() or supervision.running(run.resolve()) is None else _noted_settings(home)


def note_settings(home: Path, config: Settings) -> None:
    """Write down what the platform of this home is started with."""
    embedded.write_private(home / _FILE, json.dumps(_shown(config)))


def note_metrics_port(home: Path, config: Settings, first: int) -> None:
    """Write down the first port of the block that the platform of this home has for its metrics."""
    embedded.write_private(home / _PORTS, json.dumps({"setting": config.node.metrics_port, "first": first}))


def noted_metrics_port(home: Path, config: Settings) -> int | None:
    """
    The first of the ports for metrics that the platform of this home had last; None where it had none, or another
    SMORE_NODE__METRICS_PORT is set since.
    """
    try:
        noted = json.loads((home / _PORTS).read_text())
        return int(noted["first"]) if noted["setting"] == config.node.metrics_port else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _noted_settings(home: Path) -> dict[str, str] | None:
    """What the platform of this home was last started with; None where it never was."""
    try:
        return dict(json.loads((home / _FILE).read_text()))
    except FileNotFoundError:
        return None


def audit_settings(home: Path, config: Settings, postgres_url: str) -> None:
    """Write the settings that differ from those of the last start into the audit, in a row with both values."""
    before, now = _noted_settings(home) or {}, _shown(config)
    # Settings that an upgrade has added or removed are nobody's change.
    changed = [name for name, value in before.items() if name in now and now[name] != value]
    if not changed:
        return
    from smore.postgres.audit import Audit, AuditedChange
    from smore.postgres.connection import make_engine

    engine = make_engine(postgres_url, "up")
    try:
        Audit(engine).write(
            AuditedChange(
                project="default",
                key_id=f"uid {os.getuid()}",
                route="smore up",
                target="settings",
                request_id="",
                before={name: before[name] for name in changed},
                after={name: now[name] for name in changed},
            )
        )
    finally:
        engine.dispose()


def changed_settings(home: Path, config: Settings) -> dict[str, tuple[str, str]]:
    """Settings in which ``config`` differs from the running platform: (what that was started with, what it is here)."""
    here, there = _shown(config), running_settings(home) or {}
    return {name: (value, here[name]) for name, value in there.items() if here.get(name, value) != value}


def _shown(config: Settings) -> dict[str, str]:
    # The home says which platform is meant, and is no setting of it.
    return {one.variable: shown(value_of(config, one)) for one in described() if one.path != ("home",)}
