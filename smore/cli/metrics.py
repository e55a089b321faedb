"""``smore metrics``: where Prometheus finds the platform's metrics."""

import os
from typing import Annotated
from urllib.parse import urlsplit

import typer

from smore.cli.terminal import fail, platform_home, write

app = typer.Typer(help="Metrics for Prometheus.", no_args_is_help=True)

#: Where the printed configuration expects the key of a gateway that is not of this machine.
KEY_FILE = "/etc/prometheus/smore-key"


@app.callback()
def metrics() -> None:
    """Metrics for Prometheus."""


@app.command("scrape-config")
def scrape_config(
    compose: Annotated[bool, typer.Option("--compose", help="Of the services of docker-compose.yml.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="With --compose: GPU instances of the node.")] = 1,
) -> None:
    """
    Print scrape_configs for prometheus.yml: the platform of this machine, or where SMORE_URL names another one its
    gateway alone.
    """
    import yaml

    from smore.local import machine, scrape

    key_file = KEY_FILE
    url, home = os.environ.get("SMORE_URL"), platform_home()
    endpoints = machine.endpoints(home)
    if compose:
        jobs = [
            scrape.gateway_job("gateway:8400", KEY_FILE),
            scrape.processes_job(dict(scrape.of_compose(workers))),
        ]
    elif url and (endpoints is None or url.rstrip("/") != endpoints.gateway_url):
        write(
            f"# The gateway at {url} alone. The platform's other processes serve metrics of their own on ports that are"
        )
        write("# known where it runs: run `smore metrics scrape-config` there too, with --compose where that runs it.")
        parts = urlsplit(url)
        jobs = [scrape.gateway_job(parts.netloc, KEY_FILE, scheme=parts.scheme)]
    elif endpoints is not None:
        address = urlsplit(endpoints.gateway_url).netloc
        key_file = str(home.resolve() / "prometheus-key")
        jobs = [
            scrape.gateway_job(address, key_file),
            scrape.processes_job(scrape.of_processes(endpoints.metrics_host, endpoints.metrics_ports)),
        ]
    else:
        fail(f"no platform runs in {home}: start it with `smore up`, name a gateway in SMORE_URL, or use --compose")
    write(f"# A key that may read alone: (umask 077; smore keys create prometheus --scope read > {key_file})")
    write(yaml.safe_dump({"scrape_configs": jobs}, sort_keys=False), end="")
