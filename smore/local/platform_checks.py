"""Checks of what ``smore up`` has started on this machine: the gateway, the metrics, the processes, their settings."""

import os
import re
from collections.abc import Iterator
from typing import Final

from smore.local import asking, scrape, started_settings
from smore.local.findings import Finding, Site, broken, ok, warning
from smore.process.environment import described, warnings

#: In /proc/PID/status, hexadecimal, and the bit of it.
_CAPABILITIES: Final = re.compile(r"^CapEff:\s*(\w+)", re.MULTILINE)
_CAP_SYS_NICE: Final = 23


def gateway(place: Site) -> Iterator[Finding]:
    if place.gateway_url is None:
        return

    where = f"{place.gateway_url}, of the platform in {place.config.home.resolve()}"
    match asking.answering_instance(place.gateway_url):
        case None:
            yield broken("gateway", f"no answer from {where}", "`smore logs gateway` says why it does not serve")
        case place.instance:
            yield ok("gateway", where)
        case _:
            yield broken(
                "gateway",
                f"another platform answers at {where}",
                "end that platform, or `smore down`, then `smore up` with another SMORE_API__PORT",
            )


def folders(place: Site) -> Iterator[Finding]:
    home = place.config.home.resolve()
    if home.exists():
        yield ok("folder", f"{home}, logs in {home / 'logs'}")


def metrics(place: Site) -> Iterator[Finding]:
    if not place.metrics_ports:
        return
    silent = scrape.silent(place.metrics_host, place.metrics_ports, place.instance)
    for name, why in silent.items():
        yield warning(
            f"metrics of {name}",
            f"it serves none: {why}",
            f"`smore logs {name}` says why; where another program has the port, end that one, then `kill"
            f" {place.processes.get(name, 'PID')}`: {name} is started again at once",
        )
    serving = [f"{name} {port}" for name, port in place.metrics_ports.items() if name not in silent]
    if serving:
        yield ok("metrics", f"{', '.join(serving)} of {place.metrics_host}")


def supervisor(place: Site) -> Iterator[Finding]:
    if place.killed is not None:
        text = f"process {place.killed} was killed: its processes go on, and none that ends is restarted"
        yield broken(
            "supervisor",
            text,
            "`smore up`: it starts the platform again; training goes on and nothing that waits is lost",
        )
    elif place.processes:
        yield ok("supervisor", f"watches {len(place.processes)} processes")


def ends(place: Site) -> Iterator[Finding]:
    for name, end in place.ends.items():
        yield warning(
            f"ends of {name}",
            f"{end.count} since the start, last at {end.at} ({end.how})",
            f"it was started again each time; `smore logs {name}` may say why it ended, `dmesg` who killed it",
        )


def settings(place: Site) -> Iterator[Finding]:

    for name, (there, here) in started_settings.changed_settings(place.config.home, place.config).items():
        yield warning(
            f"setting {name}",
            f"the platform was started with {there}, this shell says {here}",
            "`smore down`, then `smore up` start it with this shell's; `smore settings --running` shows those in force",
        )
    strange = warnings(os.environ)
    if strange:
        yield warning("settings", "; ".join(strange), "`smore settings` lists the names")
    else:
        given = [one.variable for one in described() if one.variable in os.environ]
        yield ok(
            "settings", f"{', '.join(given) or 'none'} from this shell's environment, the others as they are shipped"
        )


def priorities(place: Site) -> Iterator[Finding]:
    """Whether the workers here may say who goes first on a CPU partition."""
    workers = {name: place.kernel(f"proc/{pid}/status") or "" for name, pid in place.processes.items()}
    told = {name: _CAPABILITIES.search(text) for name, text in workers.items() if name.startswith("worker")}
    lacking = [name for name, found in told.items() if found and not int(found[1], 16) >> _CAP_SYS_NICE & 1]
    if lacking:
        yield warning(
            "priorities",
            f"no CAP_SYS_NICE: {', '.join(lacking)}",
            "give it to them, or run them as root: on CPU partitions `slo.precedence` does nothing without it, and calls of"
            " class batch of a function that users call too keep its priority",
        )
