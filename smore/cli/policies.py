"""``smore compare`` and ``smore replay``: what other policies do with the same load."""

import typer

from smore.cli import launch


def compare(context: typer.Context) -> None:
    """Policies on a simulated cluster, with intervals and a page of figures: smore compare --preset fig14 --seeds 10 --out page.

    With --live on the devices at hand, through REST, and in the simulator beside it: smore compare --live --repeats 3 --out page.
    """
    if "--live" in context.args:
        launch.start("live", *(word for word in context.args if word != "--live"))
    else:
        launch.start("compare", "compare", *context.args)


def replay(context: typer.Context) -> None:
    """
    What another policy would have done with what really came: smore replay --since 24h --policy edf-util --gpus +1.
    """
    launch.start("replay", *context.args)
